"""Mosquitto as a child: configured, fenced, encrypted, and gone when its parent is gone."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from device_runtime.broker.errors import BrokerRefused, BrokerStartError, BrokerUnreachable
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.mosquitto import Mosquitto, access_list, configure, hash_passwords
from device_runtime.broker.servers.server import BrokerOptions, WebSockets
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Connected, Disconnected, LinkOptions, Received
from device_runtime.broker.wire.url import TLS

pytestmark = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
USERS = {"aggregator": "a-secret", "pi-1": "secret-1", "pi-2": "secret-2"}


def as_user(url: str, user: str) -> str:
    return url.replace("//", f"//{user}:{USERS[user]}@")


def gone(pid: int, within_s: float = 120.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_it_has_a_name_and_an_address_of_this_machine() -> None:
    broker = Mosquitto()
    assert broker.name.startswith("Mosquitto ")
    assert broker.name.split()[1][0].isdigit()
    assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
    assert broker.alive
    broker.stop()
    broker.stop()
    assert not broker.alive
    assert gone(broker.pid)


def test_each_device_speaks_and_hears_only_on_its_own_branch(mosquitto_house: Any) -> None:
    url = mosquitto_house.broker(BrokerOptions(users=USERS)).url
    aggregator = mosquitto_house.listener(as_user(url, "aggregator"), "aggregator", "fl/v1/#")
    first = mosquitto_house.listener(as_user(url, "pi-1"), "pi-1", "fl/v1/#")
    two = mosquitto_house.listener(as_user(url, "pi-2"), "pi-2", "fl/v1/#")
    for peer in (aggregator, first, two):
        peer.expect(Connected)
    first.link.publish("fl/v1/d/pi-2/up/contribution", b"forged")
    first.link.publish("fl/v1/all/round", b"forged", retain=True)
    first.link.publish("fl/v1/d/pi-1/dn/receipt", b"forged")
    first.link.publish("fl/v1/d/pi-1/up/contribution", b"mine")
    assert aggregator.expect(Received) == Received("fl/v1/d/pi-1/up/contribution", b"mine")
    aggregator.link.publish("fl/v1/d/pi-2/dn/receipt", b"for pi-2")
    aggregator.link.publish("fl/v1/all/round", b"for all")
    assert two.expect(Received) == Received("fl/v1/d/pi-2/dn/receipt", b"for pi-2")
    assert two.expect(Received) == Received("fl/v1/all/round", b"for all")
    assert first.expect(Received) == Received("fl/v1/all/round", b"for all")
    assert first.is_quiet()
    assert two.is_quiet(0.0)


def test_a_device_writes_the_topics_of_the_protocol_on_its_branch_and_no_others(mosquitto_house: Any) -> None:
    url = mosquitto_house.broker(BrokerOptions(users=USERS)).url
    aggregator = mosquitto_house.listener(as_user(url, "aggregator"), "aggregator", "fl/v1/#")
    device = mosquitto_house.peer(as_user(url, "pi-1"), "pi-1")
    aggregator.expect(Connected)
    ours = [leaf.replace("+/+", f"{'0' * 64}/7") for leaf in topics.UP]
    for leaf in ("x", "x/y/z", "state/x", "block", f"block/{'0' * 64}", "block/a/b/c", "get/1", *ours):
        device.link.publish(topics.up("pi-1", leaf), b"1", retain=True)
    assert [aggregator.expect(Received).topic for _ in ours] == [topics.up("pi-1", leaf) for leaf in ours]
    assert aggregator.is_quiet()


def test_what_devices_make_a_broker_keep_is_bounded(tmp_path: Path) -> None:
    text = mosquitto.configure(BrokerOptions(), (1883, 0), tmp_path)
    for name in ("max_connections", "memory_limit", "max_queued_bytes", "persistent_client_expiration"):
        assert re.search(rf"^{name} [1-9]", text, re.MULTILINE), name
    both = mosquitto.configure(BrokerOptions(web=WebSockets(0, "secret")), (1883, 1884), tmp_path)
    limit = f"max_connections {mosquitto.CONNECTIONS}"  # counted for each listener, so said below each
    assert all(limit in section for section in re.split(r"^listener ", both, flags=re.MULTILINE)[1:])


def test_a_broker_that_has_no_more_memory_for_a_client_goes_on_for_others(
    mosquitto_house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [line for line in mosquitto.LIMITS if not line.startswith("memory_limit")]
    monkeypatch.setattr(mosquitto, "LIMITS", (*limits, "memory_limit 8000000"))
    broker = mosquitto_house.broker(BrokerOptions(users=USERS))
    evil = mosquitto_house.peer(as_user(broker.url, "pi-1"), "pi-1")
    for number in range(300):
        evil.link.publish(topics.up("pi-1", topics.block(bytes(32), number)), bytes(65536), retain=True)
    evil.expect(Disconnected)
    evil.link.close()
    assert broker.alive
    aggregator = mosquitto_house.listener(as_user(broker.url, "aggregator"), "aggregator", "fl/v1/all/#")
    aggregator.expect(Connected)


@pytest.mark.parametrize("topic", ["fl/v1/x", "fl/v1/d/pi/up/c"], ids=["acknowledged", "in few bytes"])
def test_a_burst_longer_than_the_default_queue_arrives_whole(mosquitto_house: Any, topic: str) -> None:
    url = mosquitto_house.broker().url
    reader = mosquitto_house.listener(url, "reader", "fl/v1/#")
    writer = mosquitto_house.peer(url, "writer")
    for number in range(3000):
        assert writer.link.publish(topic, b"%d" % number)
    assert [reader.expect(Received).payload for _ in range(3000)] == [
        b"%d" % number for number in range(3000)
    ]


def test_retained_offers_survive_a_crash_with_persistence(mosquitto_house: Any, tmp_path: Path) -> None:
    options = BrokerOptions(folder=tmp_path, persistence=True)
    broker = mosquitto_house.broker(options)
    writer = mosquitto_house.listener(broker.url, "writer", "fl/v1/all/round")
    writer.link.publish("fl/v1/all/round", b"offer", retain=True)
    writer.expect(Received)
    end = time.monotonic() + 120
    database = tmp_path / "mosquitto.db"
    while not (database.exists() and b"offer" in database.read_bytes()) and time.monotonic() < end:
        time.sleep(0.02)
    broker.kill()
    reader = mosquitto_house.listener(mosquitto_house.broker(options).url, "reader", "fl/v1/all/round")
    assert reader.expect(Received).payload == b"offer"


_PARENT = """
import sys, time
from device_runtime.broker.servers.mosquitto import Mosquitto
broker = Mosquitto()
print(broker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_its_parent_however_that_dies(number: signal.Signals) -> None:
    arguments = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert not gone(pid, within_s=0.05)
        parent.send_signal(number)
    assert gone(pid)


def test_it_outlives_the_thread_that_started_it() -> None:
    started: list[Mosquitto] = []
    thread = threading.Thread(target=lambda: started.append(Mosquitto()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].alive
    started[0].stop()


def test_a_taken_port_is_said() -> None:
    broker = Mosquitto()
    with pytest.raises(
        BrokerStartError, match=r"port \d+ \(address already in use\): choose another with --port"
    ):
        Mosquitto(BrokerOptions(port=broker.port))
    broker.stop()


def test_a_start_that_fails_says_what_mosquitto_says(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("not a certificate")
    tls = TLS(cert=tmp_path / "no.pem", key=tmp_path / "no.pem")
    with pytest.raises(
        BrokerStartError, match=r"did not start on port \d+: Error: Unable to load server certificate"
    ):
        Mosquitto(BrokerOptions(tls=tls))


def test_passwords_are_neither_in_files_nor_in_texts(tmp_path: Path) -> None:
    options = BrokerOptions(users=USERS)
    written = (
        configure(options, (1, 0), tmp_path) + access_list(options) + hash_passwords(options) + repr(options)
    )
    assert "secret" not in written


@pytest.mark.parametrize("user", ["pi:7", "pi\n", "", "#", "+"])
def test_a_user_name_that_would_break_out_of_a_file_is_refused(user: str) -> None:
    with pytest.raises(BrokerStartError, match="use 1 to 64 letters"):
        BrokerOptions(users={user: "x"})


def test_an_open_broker_for_the_network_is_refused() -> None:
    with pytest.raises(BrokerStartError, match="open to the network: give it TLS and users"):
        BrokerOptions(host="192.168.1.5")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TLS]:
    """An authority, and for a name the files that prove it."""
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    signs = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]  # Python 3.13 refuses an authority without
    arguments = ["-keyout", str(ca_key), "-out", str(ca), "-days", "2", "-subj", "/CN=CA"]
    _openssl("req", "-x509", *new_key, *signs, *arguments)

    def issue(name: str) -> TLS:
        key, request, cert = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl("req", *new_key, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        signed = ["-CA", str(ca), "-CAkey", str(ca_key), "-CAcreateserial", "-extfile", str(extensions)]
        _openssl("x509", "-req", "-in", str(request), *signed, "-out", str(cert), "-days", "2")
        return TLS(ca=ca, cert=cert, key=key)

    return issue


@needs_openssl
def test_tls_with_passwords(mosquitto_house: Any, certificates: Callable[[str], TLS]) -> None:
    server = certificates("localhost")
    broker = mosquitto_house.broker(BrokerOptions(users=USERS, tls=TLS(cert=server.cert, key=server.key)))
    assert broker.url.startswith("mqtts://")
    options = LinkOptions(subscriptions=("fl/v1/#",))
    url = as_user(broker.url, "aggregator")
    peer = mosquitto_house.peer(url, "aggregator", options, TLS(ca=server.ca))
    peer.link.publish("fl/v1/x", bytes(100_000))
    assert peer.expect(Received).payload == bytes(100_000)
    with pytest.raises(BrokerUnreachable, match=r"no TLS connection .*check --ca"):
        mosquitto_house.peer(url, "stranger")
    with pytest.raises(BrokerUnreachable):
        mosquitto_house.peer(url.replace("mqtts", "mqtt"), "plain")


@needs_openssl
def test_tls_with_certificates_of_devices(mosquitto_house: Any, certificates: Callable[[str], TLS]) -> None:
    server = certificates("localhost")
    url = mosquitto_house.broker(BrokerOptions(tls=server)).url
    options = LinkOptions(subscriptions=("fl/v1/#",))
    aggregator = mosquitto_house.peer(url, "aggregator", options, certificates("aggregator"))
    device = mosquitto_house.peer(url, "pi-1", options, certificates("pi-1"))
    device.link.publish("fl/v1/d/pi-2/up/hello", b"forged")
    device.link.publish("fl/v1/d/pi-1/up/hello", b"mine")
    assert aggregator.expect(Received) == Received("fl/v1/d/pi-1/up/hello", b"mine")
    with pytest.raises((BrokerRefused, BrokerUnreachable)):
        mosquitto_house.peer(url, "nobody", options, TLS(ca=server.ca))


@pytest.fixture
def enterable() -> Iterator[Path]:
    """A folder that all users may enter."""
    with tempfile.TemporaryDirectory(prefix="mosquitto-tests-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts Mosquitto as somebody else")


def user_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]


@only_root
@needs_openssl
def test_started_by_root_with_tls_and_a_folder_it_runs_without_rights(
    enterable: Path, certificates: Callable[[str], TLS]
) -> None:
    tls = certificates("127.0.0.1")
    folder = enterable / "broker"
    options = BrokerOptions(folder=folder, persistence=True, tls=tls, users=USERS)
    for _ in range(2):  # the second start finds what the first has left
        broker = Mosquitto(options)
        try:
            assert user_of(broker.pid) != 0
        finally:
            broker.stop()
        assert (folder / "mosquitto.db").stat().st_uid != 0
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "mosquitto.log"} == {
            0o600
        }
    assert tls.key is not None and tls.key.stat().st_uid == 0


@only_root
def test_where_root_must_stay_root_it_says_why(enterable: Path, tmp_path: Path, caplog: Any) -> None:
    (shut := tmp_path / "shut").mkdir(mode=0o700)
    (full := enterable / "full").mkdir()
    (full / "thesis.txt").write_text("mine")
    for folder, why in ((shut / "broker", "may not enter"), (full, "has other files \\(thesis.txt\\)")):
        caplog.clear()
        broker = Mosquitto(BrokerOptions(folder=folder))
        try:
            assert user_of(broker.pid) == 0
        finally:
            broker.stop()
        assert re.search(f"Mosquitto runs as root: .*{why}", caplog.text)
    assert (full / "thesis.txt").stat().st_uid == full.stat().st_uid == 0


@only_root
def test_root_that_may_give_nothing_away_starts_it_as_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    broker = Mosquitto()
    try:
        assert user_of(broker.pid) == 0
    finally:
        broker.stop()
    assert "cannot be given to user" in caplog.text
