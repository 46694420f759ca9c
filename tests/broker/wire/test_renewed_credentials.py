"""Certificates and passwords that are renewed on the disk are used at the next connection."""

import queue
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_runtime.broker.errors import UrlError
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.link import Connected, Event, Link, LinkOptions, Received
from device_runtime.broker.wire.url import TLS, BrokerUrl

FAST_S = (0.05, 0.2)
needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Home:
    """A broker that starts again at its port, and a link to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.running: Mosquitto | None = None
        self.link: Link | None = None
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def broker(self, **options: Any) -> Mosquitto:
        if self.running:
            self.running.kill()
        self.running = Mosquitto(BrokerOptions(port=self.port, **options))
        self.port = self.running.port
        return self.running

    def join(self, url: BrokerUrl, **options: Any) -> None:
        usual = {"subscriptions": ("fl/v1/#",), "reconnect_s": FAST_S}
        self.link = Link(url, "pi", self.inbox, LinkOptions(**{**usual, **options}))
        self.link.connect(60.0)

    def expect(self, kind: type[Event]) -> Any:
        while True:
            if isinstance(event := self.inbox.get(timeout=60), kind):
                return event

    def close(self) -> None:
        if self.link:
            self.link.close()
        if self.running:
            self.running.stop()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    new_home = Home(tmp_path)
    yield new_home
    new_home.close()


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def issue(folder: Path, names: tuple[str, ...]) -> None:
    """A new authority, and of it a certificate with its key for each name."""
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    signs = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    _openssl("req", "-x509", *new_key, *signs, "-keyout", ca_key, "-out", ca, "-days", 2, "-subj", "/CN=CA")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in names:
        key, request, cert = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        _openssl("req", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ["-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", folder / "ext"]
        _openssl("x509", "-req", "-in", request, *signed, "-out", cert, "-days", 2)


@needs_openssl
@needs_mosquitto
def test_certificates_that_are_renewed_three_times_are_read_at_each_connection(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Authority, our certificate and its key: all new, and the second time half written for a while."""
    folder = home.folder
    server = TLS(ca=folder / "ca.pem", cert=folder / "server.pem", key=folder / "server.key")
    ours = TLS(ca=folder / "ca.pem", cert=folder / "aggregator.pem", key=folder / "aggregator.key")
    issue(folder, ("server", "aggregator"))
    home.join(BrokerUrl.parse(home.broker(tls=server).url, ours))
    assert home.expect(Connected) == Connected(first=True)
    for turn in range(3):
        issue(folder, ("server", "aggregator"))
        whole = (folder / "aggregator.pem").read_text()
        if turn == 1:
            (folder / "aggregator.pem").write_text(whole[:200])
        home.broker(tls=server)
        if turn == 1:
            end = time.monotonic() + 60
            while "reading it again at the next attempt" not in caplog.text and time.monotonic() < end:
                time.sleep(0.02)
            (folder / "aggregator.pem").write_text(whole)
        assert home.expect(Connected) == Connected(first=False)
        assert home.link is not None
        home.link.publish("fl/v1/t", str(turn).encode())
        assert home.expect(Received).payload == str(turn).encode()
    assert f"cannot use the TLS files {folder / 'ca.pem'}, {folder / 'aggregator.pem'}" in caplog.text


@needs_mosquitto
def test_a_password_that_is_renewed_is_read_at_each_connection(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    file = home.folder / "password"
    file.write_text("one")
    url = home.broker(users={"aggregator": "one"}).url

    def renewed() -> BrokerUrl:
        return BrokerUrl.parse(url.replace("//", f"//aggregator:{file.read_text()}@"))

    home.join(renewed(), renewed=renewed)
    assert home.expect(Connected) == Connected(first=True)
    for password in ("two", "three", "four"):
        file.unlink()
        home.broker(users={"aggregator": password})
        end = time.monotonic() + 60
        while "cannot read the credentials" not in caplog.text and time.monotonic() < end:
            time.sleep(0.02)
        file.write_text(password)
        assert home.expect(Connected) == Connected(first=False)
        caplog.clear()
    assert home.link is not None
    assert home.link.connected


def test_a_file_that_is_missing_at_the_start_is_named(tmp_path: Path) -> None:
    missing = TLS(ca=tmp_path / "no.pem")
    with pytest.raises(UrlError, match=r"cannot use the TLS files .*no\.pem"):
        Link(BrokerUrl.parse("mqtts://127.0.0.1", missing), "pi", queue.SimpleQueue())
