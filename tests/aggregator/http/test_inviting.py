"""The dashboard lets browsers in: in a real Chromium, on a real service, with a broker that was set up."""

import os
import pwd
import queue
import re
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from device_runtime.aggregator.http.join import NEEDED, WEB
from device_runtime.broker.security.audit import AUDIT, entries
from device_runtime.broker.security.signing import DeviceSigner
from device_runtime.broker.servers import mosquitto, register
from device_runtime.broker.servers import one_time_links as link_book
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.messages import Hello, State, encode

from .conftest import PATIENCE_MS

segno = pytest.importorskip("segno", reason="needs pip install 'device-runtime[aggregator]'")
playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
expect = playwright.expect
pytestmark = [
    pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(not (WEB / "vendor" / NEEDED).exists(), reason="web/vendor is not there: make web"),
]


@pytest.fixture
def house(tmp_path, program, launched, eventually):
    """A broker that was set up and runs, and `serve --web` there; gives its address, token and folder."""
    user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []
    folder, log = tmp_path / "enrolment", tmp_path / "serve.log"
    init = ["broker", "init", folder, "--name", "127.0.0.1", "--port", find_port(BrokerOptions()), *user]
    subprocess.run([program, *map(str, init)], check=True, capture_output=True)
    command = (str(mosquitto.find()), "-c", str(folder / "mosquitto.conf"))
    serve = ["serve", "--enrolment", folder, "--bundle", "digits-wrn-10-1", "--run-dir", tmp_path / "run"]
    with launched(tmp_path / "mosquitto.log", other=command):
        eventually(lambda: "running" in (tmp_path / "mosquitto.log").read_text())
        with launched(log, *serve, "--web", "--http", "127.0.0.1:0") as process:
            eventually(lambda: "browsers join at" in log.read_text() or process.poll() is not None, 300)
            words = log.read_text().split()
            url = next(word for word in words if word.startswith("http://"))
            token = (tmp_path / "run" / "http-token").read_text().strip()
            assert "#link=" not in log.read_text()  # which many may read
            page = next(word for word in words if word.endswith("/join/,")).rstrip(",")
            opened = BrokerFolder(folder)
            _, secret = links.make(opened, time.time(), 900)
            yield url, token, opened, links.address(page, secret)


@pytest.fixture
def visit(browser, house):
    contexts = []

    def make(width=1280, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(house[0])
        page.fill("#token", house[1])
        page.click("#enter button")
        page.wait_for_selector("#invite")
        page.wrong = []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on(
            "console", lambda message: page.wrong.append(message.text) if message.type == "error" else None
        )
        return page

    yield make
    for context in contexts:
        context.close()


def dark(path):
    """The modules that an SVG path covers, as (column, row)."""
    runs = re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", path)
    assert "".join(f"M{x} {y}h{n}v1h-{back}z" for x, y, n, back in runs) == path
    return {(int(x) + place, int(y)) for x, y, n, _ in runs for place in range(int(n))}


def test_a_link_is_made_shown_as_a_qr_code_used_and_revoked(visit, house, tmp_path):
    url, _, opened, _ = house
    page = visit()
    expect(page.locator("#invite-table tbody tr")).to_have_count(1)  # that of the terminal
    page.fill("#invite-device", "kitchen")
    page.click("#invite-form button")
    page.wait_for_selector("#invite-made svg.qr path")
    link = page.inner_text("#invite-made code")
    assert link.startswith(f"{url}/join/#link=")
    drawn = dark(page.get_attribute("#invite-made svg path", "d"))
    code = segno.make(link, error="m", micro=False).matrix
    assert drawn == {(x + 4, y + 4) for y, row in enumerate(code) for x, module in enumerate(row) if module}
    size = str(len(code) + 8)
    assert page.get_attribute("#invite-made svg", "viewBox").split() == ["0", "0", size, size]
    expect(page.locator("#invite-table tbody tr")).to_have_count(2)
    assert "open" in page.inner_text("#invite-table tr:has-text('kitchen')")
    assert len(link_book.read_links(opened).links) == 2

    page.fill("#invite-device", "kitchen")
    page.click("#invite-form button")
    expect(page.locator("#invite-trouble")).to_contain_text("give another name")
    page.wrong.clear()  # Chromium tells of that 409

    opening = links.LinkRequest(link.partition("#link=")[2], "c" * 43)
    links.use(opened, opening, link_book.read_links(opened).links[0].made + 1)
    page.reload()
    page.wait_for_selector("#invite-table tr:has-text('kitchen') .tag.used")
    page.click("#invite-table tr:has-text('kitchen') button")
    page.wait_for_selector("#invite-table tr:has-text('kitchen') .tag.revoked")
    assert [entry.revoked != "" for entry in register.entries(opened)] == [True]
    refused, kitchen = [entry for entry in entries([opened.folder]) if entry.action == "make a link"]
    assert (kitchen.user, kitchen.address, kitchen.subject, kitchen.result) == (
        "token http-token",
        "127.0.0.1",
        "kitchen",
        "done",
    )
    assert "give another name" in refused.result
    assert "#link=" not in (opened.folder / AUDIT).read_text()
    assert page.wrong == []


def test_the_fleet_says_which_devices_are_browsers(visit, house):
    opened = house[2]
    page = visit()
    linked = Link(opened.for_aggregator, "fleet", queue.SimpleQueue())  # it may speak for all
    linked.connect()
    for name, engine in (("phone", "onnxruntime-web 1.30.0 wasm"), ("pi", "onnxruntime 1.31.0")):
        signer = DeviceSigner(register.add(opened, name, datetime.now(timezone.utc)).secret)
        linked.publish(topics.up(name, "state"), encode(State(boot=1, online=True)), True)
        hello = Hello(
            boot=1, num_examples=1, profile="here", memory_bytes=1, engine=engine, battery_percent=-1
        )
        topic = topics.up(name, "hello")
        linked.publish(topic, signer.seal(topic, encode(hello)))
    row = page.locator("#fleet-table tr:has-text('phone')")
    expect(row.locator(".browser")).to_have_text("browser", timeout=PATIENCE_MS)
    expect(page.locator("#fleet-table tr:has-text('pi')").first).to_contain_text("onnxruntime 1.31.0")
    expect(page.locator("#fleet-table .browser")).to_have_count(1)
    linked.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_code_is_dark_on_light_on_a_phone_in_any_scheme(visit, house, scheme, tmp_path):
    page = visit(360, scheme)
    page.click("#invite-form button")
    page.wait_for_selector("#invite-made svg.qr path")
    fill = "e => getComputedStyle(e).fill"
    assert page.eval_on_selector("#invite-made svg rect", fill) == "rgb(255, 255, 255)"
    assert page.eval_on_selector("#invite-made svg path", fill) == "rgb(0, 0, 0)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert len(link_book.read_links(house[2]).links) == 2  # with that of the terminal
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.locator("#invite").screenshot(path=pictures / f"invite-360-{scheme}.png")
