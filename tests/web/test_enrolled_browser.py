"""A phone as it joins over a network: one port with TLS, a one-time link, signed offers."""

import json
import os
import pwd
import re
import subprocess
import time
from socket import AF_INET

import numpy as np
import psutil
import pytest

from device_runtime.broker.servers import mosquitto, register
from device_runtime.broker.servers import one_time_links as link_book
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire.url import is_loopback

from .conftest import Visit

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
pytest.importorskip("cryptography", reason="needs pip install 'device-runtime[aggregator]'")
sklearn = pytest.importorskip("sklearn.datasets", reason="needs pip install scikit-learn")
pytestmark = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")


class Address:
    """Of the page, as `Visit` wants it."""

    def __init__(self, url):
        self.url = url


def in_a_network():
    """An address of this machine that others could reach; None where it is in no network."""
    addresses = [
        entry.address for few in psutil.net_if_addrs().values() for entry in few if entry.family == AF_INET
    ]
    return next((address for address in addresses if not is_loopback(address)), None)


class House:
    """A broker that was set up and runs, and `serve --web` over HTTPS, as others in a network reach it."""

    def __init__(self, folder, program, launched, eventually):
        self.folder, self._launched, self._eventually = folder, launched, eventually
        self.host = in_a_network() or "127.0.0.1"
        user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []
        where = ["--name", self.host, "--port", find_port(BrokerOptions()), *user]
        init = ["broker", "init", folder / "enrolment", *where]
        subprocess.run([program, *map(str, init)], check=True, capture_output=True)
        self.opened = BrokerFolder(folder / "enrolment")
        http = f'port = 0\nhost = "{self.host}"\n'
        if is_loopback(self.host):  # elsewhere it has these by itself
            http += 'cert = "enrolment/server.pem"\nkey = "enrolment/server.key"\n'
        (folder / "server.toml").write_text(
            f'run_dir = "run"\n[broker]\nenrolment = "enrolment"\n[http]\n{http}[web]\n'
        )

    def mosquitto(self):
        command = (str(mosquitto.find()), "-c", str(self.opened.folder / "mosquitto.conf"))
        return self._launched(self.folder / "mosquitto.log", other=command)

    def serve(self, *arguments):
        self._eventually(lambda: "running" in (self.folder / "mosquitto.log").read_text())
        options = ("--config", self.folder / "server.toml", "--bundle", "digits-wrn-10-1", *arguments)
        return self._launched(self.folder / "serve.log", "serve", *options)

    def link(self):
        """A new one, for the page that the log names; the log itself holds none."""
        log = self.folder / "serve.log"
        match = self._eventually(
            lambda: re.search(r"browsers join at (https://\S+/join/)", log.read_text()), 60
        )
        assert "#link=" not in log.read_text()
        _, secret = link_book.make(self.opened, time.time(), 900)
        return link_book.address(match[1], secret)

    def sent(self):
        path = self.folder / "run" / "contributions.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def house(tmp_path, program, launched, eventually):
    return House(tmp_path, program, launched, eventually)


@pytest.fixture
def phone(chromium):
    """A browser of its own that has taken the authority's certificate, as a phone has that was given it."""
    visits = []

    def make(url):
        visits.append(Visit(chromium, Address(url), ignore_https_errors=True))
        return visits[-1]

    yield make
    for visitor in visits:
        visitor.context.close()


def test_a_phone_joins_by_a_one_time_link_over_tls_and_takes_part(house, phone, eventually, tmp_path):
    digits = sklearn.load_digits()
    np.savez(tmp_path / "mine.npz", x=digits.images[:120].astype(np.uint8), y=digits.target[:120])
    with (
        house.mosquitto(),
        house.serve("--rounds", "2", "--deadline", "20", "--kinds", "few-shot") as service,
    ):
        link = house.link()
        visitor = phone(link)
        page = visitor.open()
        page.click("#join button")
        page.wait_for_selector("#teach:not([hidden])")
        assert "link=" not in page.url
        assert page.evaluate("crossOriginIsolated && isSecureContext")
        [entry] = register.entries(house.opened)
        assert entry.name.startswith("browser-")
        assert link_book.read_links(house.opened).links[0].device == entry.name

        other = phone(link)
        other.open()
        other.page.click("#join button")
        other.page.get_by_text("used by another browser already").wait_for()

        page.click("#files summary")
        page.set_input_files("#files-input", tmp_path / "mine.npz")
        page.get_by_text(re.compile("The task is over after 2 rounds")).wait_for()
        assert service.wait(600) == 0, (tmp_path / "serve.log").read_text()
    sent = house.sent()
    assert [(row["round"], row["device"], row["kind"]) for row in sent] == [
        (number, entry.name, "few-shot") for number in (1, 2)
    ]
    ours = (f"https://{house.host}:", f"wss://{house.host}:", "blob:")
    assert all(url.startswith(ours) for url in visitor.requests)
    # a browser that does not trust the authority, as here, keeps no page for opening without a network
    assert {text for text in visitor.wrong if "SSL certificate" not in text} == set()


@pytest.mark.slow
def test_a_page_that_is_opened_again_is_the_same_device_and_needs_no_link(house, phone):
    with house.mosquitto(), house.serve("--rounds", "2", "--kinds", "few-shot"):
        visitor = phone(house.link())
        page = visitor.open()
        page.click("#join button")
        page.wait_for_selector("#teach:not([hidden])")
        page.get_by_text("connected", exact=True).wait_for()
        page.goto(page.url)
        page.wait_for_selector("#teach:not([hidden])")
        page.get_by_text("connected", exact=True).wait_for()
        assert len(register.entries(house.opened)) == 1


def test_without_a_link_nobody_is_let_in_and_the_page_says_what_to_do(house, phone):
    with house.mosquitto(), house.serve("--rounds", "2"):
        visitor = phone(house.link().partition("#")[0])
        page = visitor.open()
        page.get_by_text("Open the link, or scan the code").wait_for()
        assert page.is_hidden("#board")
        assert register.entries(house.opened) == []
