"""A broker set up for production, run by a real Mosquitto: who gets in, who does not, and who any more."""

import os
import pwd
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from device_runtime.broker.errors import BrokerRefused, BrokerUnreachable
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.signing import DeviceSigner, Verifier
from device_runtime.broker.servers import mosquitto, production, register
from device_runtime.broker.servers.broker_folder import (
    BrokerFolder,
    BrokerSetup,
    SetupError,
    rotate_key,
)
from device_runtime.broker.servers.production import AuthorityError, issue, make_authority
from device_runtime.broker.servers.register import RegisterError
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire.link import Connected, Disconnected, LinkOptions, Received
from device_runtime.broker.wire.messages import Base, Blob, Offer
from device_runtime.broker.wire.topics import TopicError
from device_runtime.broker.wire.url import TLS
from device_runtime.cli import main

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None
    or not subprocess.check_output(["openssl", "version"]).startswith(
        b"OpenSSL"
    ),  # LibreSSL has other options
    reason="OpenSSL's program is not installed",
)
NOW = datetime.now(timezone.utc)
SECRET = ("ca.key", "server.key", "aggregator.key", "aggregator.password", "passwords", "devices.json")
FAST_S = (0.05, 0.5)


def new_folder(folder: Path, **changes: Any) -> BrokerFolder:
    user = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() == 0 else ""
    usual = {"names": ("127.0.0.1", "localhost"), "port": find_port(BrokerOptions()), "run_as": user}
    return production.init_broker(folder, BrokerSetup(**{**usual, **changes}), NOW)


class Running:
    """Mosquitto by the written configuration, started as the printed line says."""

    def __init__(self, opened: BrokerFolder) -> None:
        self.opened = opened
        self.log = opened.folder / "log"
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as log:
            configuration = str(self.opened.folder / "mosquitto.conf")
            self.process = subprocess.Popen([str(mosquitto.find()), "-c", configuration], stderr=log)
        end = time.monotonic() + 120
        while b"running" not in self.log.read_bytes():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def reload(self) -> None:
        with self.reloading():
            assert register.reload_mosquitto(self.opened).reached

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """By a signal; what comes after the line in the log meets the files that it has read."""
        before = self.log.read_bytes().count(b"Reloading config")
        yield
        end = time.monotonic() + 120
        while self.log.read_bytes().count(b"Reloading config") == before:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(600)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    running = Running(new_folder(tmp_path / "enrolment"))
    yield running
    running.stop()


@pytest.fixture
def join(running: Running, mosquitto_house: Any) -> Callable[..., Any]:
    """A peer with an enrolment, or the aggregator's."""

    def join(who: Enrolment | None = None, **changes: Any) -> Any:
        url = who.address if who else running.opened.for_aggregator
        user, password = changes.get("user", url.user), changes.get("password", url.password)
        text = f"mqtts://{user}:{password}@{changes.get('host', url.host)}:{url.port}"
        options = LinkOptions(subscriptions=("fl/v1/#",), reconnect_s=FAST_S)
        return mosquitto_house.peer(text, changes.get("id", user), options, changes.get("tls", url.tls))

    return join


def enrol(running: Running, name: str) -> Enrolment:
    enrolment = register.add(running.opened, name, NOW)
    running.reload()
    return enrolment


def test_nothing_is_ever_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "enrolment"
    new_folder(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(SetupError, match=r"has .*ca\.pem.* already, which is never written over"):
        new_folder(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("writes", [0, 1, 5, 10])
def test_a_folder_whose_making_came_to_nothing_half_way_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    folder, write, left = tmp_path / "e", production.write, iter(range(writes))

    def full(path: Path, text: str, mode: int = 0o600) -> None:
        if next(left, None) is None:
            raise SetupError("no space left on device")
        write(path, text, mode)

    with monkeypatch.context() as failing, pytest.raises(SetupError, match="no space left"):
        failing.setattr(production, "write", full)
        new_folder(folder)
    register.add(new_folder(folder), "pi-1", NOW)
    with pytest.raises(SetupError, match="never written over"):
        new_folder(folder)


def test_a_folder_that_lost_a_file_is_not_made_again(tmp_path: Path) -> None:
    (new_folder(tmp_path / "e").folder / "site.json").unlink()
    with pytest.raises(SetupError, match="never written over"):
        new_folder(tmp_path / "e")


def test_what_is_set_up_enrolled_and_revoked_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that took its place is sure to be there only when its folder was synced after it."""
    on_disk: dict[int, dict[str, int]] = {}
    sync = os.fsync

    def noted(handle: int) -> None:
        sync(handle)
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            on_disk[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(handle)}

    def missing_files(folder: Path) -> list[str]:
        inodes = on_disk.get(folder.stat().st_ino, {})
        return [
            entry.name
            for entry in os.scandir(folder)
            if entry.is_file() and inodes.get(entry.name) != entry.inode()
        ]

    monkeypatch.setattr(os, "fsync", noted)
    opened = new_folder(tmp_path / "e")
    assert missing_files(opened.folder) == []
    register.add(opened, "pi-1", NOW).save(tmp_path / "pi-1")
    assert missing_files(opened.folder) == missing_files(tmp_path / "pi-1") == []
    register.revoke(opened, "pi-1", NOW)
    assert missing_files(opened.folder) == []


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "enrolment")
    register.add(opened, "pi-1", NOW)
    for name in SECRET:
        assert stat.S_IMODE((opened.folder / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((opened.folder / "data").stat().st_mode) == 0o700


def test_others_can_replace_no_file_of_the_folder_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        opened = new_folder(tmp_path / "enrolment")
    finally:
        os.umask(before)
    assert stat.S_IMODE(opened.folder.stat().st_mode) & 0o022 == 0


def test_neither_a_password_nor_a_key_is_in_what_others_may_read(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "enrolment")
    enrolment = register.add(opened, "pi-1", NOW)
    secrets = [
        enrolment.password,
        opened.read("aggregator.password").strip(),
        opened.read("aggregator.key").strip(),
    ]
    for path in opened.folder.iterdir():
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o044:
            assert not any(secret in path.read_text() for secret in secrets), path
    assert enrolment.password not in opened.read("passwords")


@needs_openssl
def test_the_certificate_is_of_the_names_that_were_given_and_ends_when_it_was_said(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e", names=("broker.example.org", "192.0.2.7", "2001:db8::1"))
    text = subprocess.run(
        [
            "openssl",
            "x509",
            "-noout",
            "-ext",
            "subjectAltName",
            "-enddate",
            "-in",
            opened.folder / "server.pem",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "DNS:broker.example.org, IP Address:192.0.2.7, IP Address:2001:DB8:0:0:0:0:0:1" in text
    until = NOW + timedelta(days=production.SERVER_DAYS)
    assert f"{until:%b} {until.day:2} {until:%H:%M:%S %Y} GMT" in text
    assert opened.site.url == f"mqtts://broker.example.org:{opened.site.port}"


def test_an_ipv6_address_comes_first_in_brackets() -> None:
    assert BrokerSetup(names=("2001:db8::1",)).url == "mqtts://[2001:db8::1]:8883"
    assert BrokerSetup(names=("a.example",), websockets=8443).web_url == "wss://a.example:8443/mqtt"
    with pytest.raises(SetupError, match="has no WebSockets"):
        _ = BrokerSetup(names=("a.example",)).web_url


@pytest.mark.parametrize(
    "changes, error, why",
    [
        ({"names": ("bücher.example",)}, AuthorityError, "cannot stand in a certificate"),
        ({"names": ("192.0.2.7:8883",)}, AuthorityError, "without scheme and port"),
        ({"names": ("localhost", "mqtts://a.example")}, AuthorityError, "without scheme and port"),
        ({"names": ("user@a.example",)}, AuthorityError, "cannot stand in a certificate"),
        ({"names": ("",)}, AuthorityError, "'' cannot stand in a certificate"),
        ({"listen": "::1\nallow_anonymous true"}, SetupError, "has no spaces"),
        ({"port": 70_000}, SetupError, "two different ones up to 65535"),
        ({"port": 8883, "websockets": 8883}, SetupError, "two different ones"),
        ({"run_as": "nobody-of-this-name"}, SetupError, "no user of this machine is called"),
    ],
)
def test_what_cannot_be_set_up_leaves_nothing_behind(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    if "run_as" in changes and os.geteuid() != 0:
        pytest.skip("only root starts it as somebody else")
    with pytest.raises(error, match=why):
        new_folder(tmp_path / "e", **changes)
    assert not (tmp_path / "e").exists()


@needs_openssl
def test_an_authority_signs_for_no_other(tmp_path: Path) -> None:
    """What it signed is believed under it, and not under another of the same name."""
    ours, other = (make_authority("device-runtime", NOW, 10) for _ in range(2))
    server = issue(ours, ["localhost"], NOW, 5)
    for name, text in (
        ("ours", ours.certificate),
        ("other", other.certificate),
        ("server", server.certificate),
    ):
        (tmp_path / name).write_text(text)
    for name, verified in (("ours", True), ("other", False)):
        command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", name, "server"]
        assert (subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0) is verified


NAMES = ("broker.example.org", "*.fl.example.org", "192.0.2.7", "2001:db8::7", "localhost")


@needs_openssl
@pytest.mark.parametrize(
    ("names", "believed"),
    [
        (NAMES, True),
        (("192.0.2.7",), True),
        (("pi.fl.example.org",), True),
        (("www.example.org",), False),
        (("example.org",), False),
        (("bank.example",), False),
        (("localhost", "bank.example"), False),
        (("192.0.2.8",), False),
        (("2001:db8::8",), False),
    ],
)
def test_who_trusts_the_authority_of_a_broker_trusts_it_with_the_broker_s_names_alone(
    tmp_path: Path, names: tuple[str, ...], believed: bool
) -> None:
    """As a phone does, for good: whoever has ca.key could otherwise pretend to be any site."""
    ours = make_authority("device-runtime", NOW, 10, NAMES)
    (tmp_path / "ca").write_text(ours.certificate)
    (tmp_path / "server").write_text(issue(ours, names, NOW, 5).certificate)
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca", "server"]
    verified = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (verified.returncode == 0) is believed, verified.stderr
    if not believed:
        assert "permitted subtree violation" in verified.stderr


def test_a_folder_without_a_broker_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"no broker is set up in .*: make one with `device-runtime broker init"
    ):
        BrokerFolder(tmp_path)
    (tmp_path / "site.json").write_text('{"names": [], "more": 1}')
    with pytest.raises(SetupError, match=r"site\.json cannot be read"):
        BrokerFolder(tmp_path)


def test_each_device_gets_in_and_is_held_to_its_branch(running: Running, join: Callable[..., Any]) -> None:
    first, two = join(enrol(running, "pi-1")), join(enrol(running, "pi-2"))
    aggregator = join()
    for peer in (first, two, aggregator):
        assert peer.expect(Connected).first
    first.link.publish("fl/v1/d/pi-2/up/contribution", b"forged")
    first.link.publish("fl/v1/all/round", b"forged", retain=True)
    first.link.publish("fl/v1/d/pi-1/up/contribution", b"mine")
    assert aggregator.expect(Received) == Received("fl/v1/d/pi-1/up/contribution", b"mine")
    aggregator.link.publish("fl/v1/d/pi-2/dn/receipt", b"for pi-2")
    aggregator.link.publish("fl/v1/all/round", b"for all")
    assert two.expect(Received) == Received("fl/v1/d/pi-2/dn/receipt", b"for pi-2")
    assert [peer.expect(Received).payload for peer in (first, two)] == [b"for all", b"for all"]


def test_a_wrong_password_another_s_name_and_no_name_are_refused(
    running: Running, join: Callable[..., Any], mosquitto_house: Any
) -> None:
    address = enrol(running, "pi-1")
    for changes in ({"password": "wrong"}, {"user": "pi-2"}, {"user": "aggregator"}):
        with pytest.raises(BrokerRefused, match="wrong user name or password"):
            join(address, **changes)
    with pytest.raises(BrokerRefused):
        mosquitto_house.peer(f"mqtts://127.0.0.1:{address.address.port}", "x", None, address.address.tls)


def test_another_authority_and_another_host_name_are_refused(
    running: Running, join: Callable[..., Any]
) -> None:
    address = enrol(running, "pi-1")
    other = TLS(authority=make_authority("device-runtime", NOW, 10).certificate)
    with pytest.raises(BrokerUnreachable, match="no TLS connection"):
        join(address, tls=other)
    with pytest.raises(BrokerUnreachable, match="no TLS connection"):
        join(address, host="127.0.0.2")
    assert join(address, host="localhost").expect(Connected).first


def test_a_revoked_device_is_thrown_out_and_does_not_come_back(
    running: Running, join: Callable[..., Any]
) -> None:
    address, two = enrol(running, "pi-1"), enrol(running, "pi-2")
    first, second = join(address), join(two)
    first.expect(Connected)
    second.expect(Connected)
    register.revoke(running.opened, "pi-1", NOW)
    register.reload_mosquitto(running.opened)
    first.expect(Disconnected, 10.0)
    with pytest.raises(BrokerRefused, match="refused user 'pi-1'"):
        join(address, id="again")
    assert second.link.connected
    assert second.is_quiet()


def test_enrolled_again_the_old_password_is_void(running: Running, join: Callable[..., Any]) -> None:
    old = enrol(running, "pi-1")
    with pytest.raises(
        RegisterError, match="'pi-1' is enrolled already: `device revoke pi-1` first, or --again"
    ):
        register.add(running.opened, "pi-1", NOW)
    new = register.add(running.opened, "pi-1", NOW, again=True)
    running.reload()
    assert join(new).expect(Connected).first
    with pytest.raises(BrokerRefused):
        join(old, id="old")


def test_what_is_retained_survives_an_orderly_end(running: Running, join: Callable[..., Any]) -> None:
    aggregator = join()
    aggregator.link.publish("fl/v1/all/round", b"offer", retain=True)
    assert aggregator.expect(Received).payload == b"offer"
    aggregator.link.close()
    running.stop()
    running.start()
    assert join(id="another").expect(Received) == Received("fl/v1/all/round", b"offer", retain=True)


def test_a_renewed_certificate_is_served_after_the_signal_and_devices_notice_nothing(
    running: Running, join: Callable[..., Any]
) -> None:
    enrolment, port = enrol(running, "pi-1"), running.opened.site.port
    before = ssl.get_server_certificate(("127.0.0.1", port))
    production.renew(running.opened, NOW, 30)
    running.reload()
    after = ssl.get_server_certificate(("127.0.0.1", port))
    assert before != after == running.opened.read("server.pem")
    assert join(enrolment).expect(Connected).first


def test_whenever_renewing_ends_certificate_and_key_are_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, write = new_folder(tmp_path / "e"), production.write

    def matches() -> bool:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            opened.folder / "server.pem", opened.folder / "server.key"
        )
        return True

    before = opened.read("server.pem")
    for writes in (0, 1, 2):
        left = iter(range(writes))

        def ends(path: Path, text: str, mode: int = 0o600, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(path, text, mode)

        with monkeypatch.context() as ending:
            ending.setattr("device_runtime.broker.servers.broker_folder.write", ends)
            ending.setattr(production, "write", ends)
            with suppress(KeyboardInterrupt):
                production.renew(opened, NOW, 30)
        assert matches()
    assert opened.read("server.pem") != before


def test_the_list_tells_who_was_revoked_and_when(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e")
    for name in ("pi-2", "pi-1"):
        register.add(opened, name, NOW)
    register.revoke(opened, "pi-2", NOW + timedelta(hours=1))
    first, second = register.entries(opened)
    assert (first.name, first.state, second.name, second.state) == ("pi-1", "enrolled", "pi-2", "revoked")
    assert datetime.fromisoformat(second.revoked) - datetime.fromisoformat(second.enrolled) == timedelta(
        hours=1
    )
    with pytest.raises(RegisterError, match="'pi-2' is not enrolled in .* it was revoked at"):
        register.revoke(opened, "pi-2", NOW)
    register.add(opened, "pi-2", NOW)
    assert [entry.state for entry in register.entries(opened)] == ["enrolled", "enrolled"]


def test_the_aggregator_s_key_is_followed_by_one_that_it_has_signed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = new_folder(tmp_path / "e")
    first, offer, topic = opened.signer, offered(), "fl/v1/all/round/t"
    for now in (10, 20):
        rotate_key(opened, now)
    write = BrokerFolder.write
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):

        def ends(self: BrokerFolder, name: str, text: str) -> None:
            if name == "aggregator.key":
                raise KeyboardInterrupt
            write(self, name, text)

        killed.setattr(BrokerFolder, "write", ends)
        rotate_key(opened, 25)  # the statement is there, its key not
    rotate_key(opened, 30)
    assert [succession.made for succession in opened.successions] == [10, 20, 30]
    assert (opened.folder / "aggregator.key").stat().st_mode & 0o077 == 0
    for enrolled in (first.public, register.add(opened, "pi-1", NOW).key):
        verifier = Verifier(enrolled)
        assert verifier.open(topic, opened.signer.seal(topic, offer, 5, opened.successions))[0] == offer
        assert verifier.public == opened.signer.public
    for now in range(31, 60):
        rotate_key(opened, now)
    assert len(opened.successions) == 16  # a message has no more
    rotate_key(opened, 60 + 366 * 86400)
    assert len(opened.successions) == 1


def test_keys_that_are_changed_at_once_all_lead_to_the_last(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e")
    first = opened.signer.public
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda now: rotate_key(opened, now), range(8)))
    chain = {succession.old: succession.new for succession in opened.successions}
    for _ in range(8):
        first = chain[first]
    assert first == opened.signer.public


def offered() -> Offer:
    blob = Blob(bytes(32), 1)
    where = {"bundle": blob, "base": Base((blob,), bytes(32)), "kinds": ()}
    return Offer(task="t", run="r", round=1, seed=5, deadline_s=1.0, remaining_s=1.0, **where)


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e")
    before = opened.read("passwords")
    with pytest.raises(RegisterError, match="the aggregator's own name"):
        register.add(opened, "aggregator", NOW)
    for name in ("pi/1", "pi:1", "", "+", "pi\n"):
        with pytest.raises(TopicError):
            register.add(opened, name, NOW)
    assert opened.read("passwords") == before


def test_two_who_enrol_at_once_lose_nobody(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e")
    code = (
        "import sys\nfrom datetime import datetime, timezone\nfrom pathlib import Path\n"
        "from device_runtime.broker.servers import register\n"
        "from device_runtime.broker.servers.broker_folder import BrokerFolder\n"
        "for n in range(15): register.add(BrokerFolder(Path(sys.argv[1])), f'{sys.argv[2]}-{n}', "
        "datetime.now(timezone.utc))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(opened.folder), who]) for who in "ab"]
    assert [process.wait(600) for process in both] == [0, 0]
    assert len(register.entries(opened)) == 30
    assert len(opened.read("passwords").splitlines()) == 31


def test_without_a_mosquitto_here_it_says_what_to_do(tmp_path: Path) -> None:
    opened = new_folder(tmp_path / "e")
    assert "kill -HUP" in register.reload_mosquitto(opened).text
    (opened.folder / "data" / "mosquitto.pid").write_text(str(os.getpid()))
    before = signal.signal(signal.SIGHUP, lambda *_: pytest.fail("told another process"))
    try:
        assert (
            "kill -HUP" in register.reload_mosquitto(opened).text
        )  # a number that is somebody else's by now
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_commands_set_up_enrol_list_and_revoke(tmp_path: Path) -> None:
    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path)

    init = command("broker", "init", "enrolment", "--name", "broker.example.org", "--websockets", "8443")
    assert init.returncode == 0, init.stderr
    assert f"-c {tmp_path}/enrolment/mosquitto.conf" in init.stdout
    assert command("broker", "init", "enrolment").returncode == 2
    added = command("device", "add", "pi-1")
    [line] = added.stdout.splitlines()
    enrolment = Enrolment.of_token(line.removeprefix("device-runtime join --enrol "))
    opened = BrokerFolder(tmp_path / "enrolment")
    assert (enrolment.name, enrolment.url) == ("pi-1", "mqtts://broker.example.org:8883")
    assert (enrolment.key, enrolment.authority) == (opened.signer.public, opened.authority)
    assert enrolment.password not in added.stderr
    [entry] = register.entries(opened)
    assert entry.key == DeviceSigner(enrolment.secret).public.hex()
    web = command("device", "add", "pi-2", "--websockets", "--qr").stdout
    assert Enrolment.of_token(web.splitlines()[0].split()[-1]).url == "wss://broker.example.org:8443/mqtt"
    assert web.count("█") > 500
    revoked = command("device", "revoke", "pi-1")
    assert revoked.returncode == 2
    assert "Mosquitto was not told" in revoked.stderr
    assert "systemctl reload mosquitto" in revoked.stderr
    again = command("device", "add", "pi-2", "--again")
    assert again.returncode == 2
    assert again.stdout.startswith("device-runtime join --enrol ")
    assert "Mosquitto was not told" in again.stderr
    anew = Enrolment.of_token(again.stdout.split()[-1])
    assert register.entries(opened)[1].key == DeviceSigner(anew.secret).public.hex()
    listed = command("device", "list", "--format", "json")
    assert '"name": "pi-1"' in listed.stdout
    assert "revoked" in command("device", "list").stdout
    assert "protocol websockets" in opened.read("mosquitto.conf")
    assert "is not enrolled" in command("device", "revoke", "pi-1").stderr
    rotated = command("broker", "rotate-key", "enrolment")
    assert rotated.returncode == 0
    assert f"The aggregator's key is {opened.signer.public[:8].hex()}" in rotated.stdout
    assert opened.signer.public != enrolment.key
    assert command("broker", "renew", "enrolment").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts Mosquitto as somebody else")
@pytest.mark.parametrize(
    ("names", "user"), [(("mosquitto", "nobody"), "mosquitto"), (("nobody",), "nobody"), ((), None)]
)
def test_set_up_by_root_mosquitto_runs_as_a_user_without_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, names: tuple[str, ...], user: str | None
) -> None:
    real = pwd.getpwnam("nobody")

    def user_of(name: str) -> Any:
        if name not in names:
            raise KeyError(name)
        return real

    monkeypatch.setattr(pwd, "getpwnam", user_of)
    folder = tmp_path / "enrolment"
    assert main(["broker", "init", str(folder), "--name", "localhost"]) == (0 if user else 2)
    if user:
        assert f"\nuser {user}\n" in (folder / "mosquitto.conf").read_text()
        assert (folder / "server.key").stat().st_uid == real.pw_uid
        assert (folder / "ca.key").stat().st_uid == 0
        assert ("will run as nobody" in caplog.text) == (user == "nobody")
    else:
        assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts Mosquitto as somebody else")
def test_a_folder_that_mosquitto_may_not_enter_and_root_for_it_are_warned_of(
    tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "shut").mkdir(mode=0o700)
    assert main(["broker", "init", str(tmp_path / "shut" / "a"), "--name", "h", "--run-as", "nobody"]) == 0
    assert "nobody may not enter" in caplog.text
    assert main(["broker", "init", str(tmp_path / "b"), "--name", "h", "--run-as", "root"]) == 0
    assert "Mosquitto will run as root" in caplog.text


OLD_ACCESS = """user aggregator
topic readwrite fl/v1/#

pattern write fl/v1/d/%u/up/#
pattern read fl/v1/d/%u/dn/#
pattern read fl/v1/all/#
"""


def test_a_folder_of_an_older_version_is_upgraded_and_keeps_its_devices_and_secrets(
    running: Running, join: Callable[..., Any]
) -> None:
    folder = running.opened.folder
    new = (folder / "access").read_text()
    (folder / "access").write_text(OLD_ACCESS)
    device, aggregator = join(enrol(running, "pi-1")), join()
    for peer in (device, aggregator):
        peer.expect(Connected)
    device.link.publish("fl/v1/d/pi-1/up/anything/at/all", b"as before")
    assert aggregator.expect(Received).payload == b"as before"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with running.reloading():
        process = subprocess.run([COMMAND, "broker", "upgrade", str(folder)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "written in" in process.stdout
    device.link.publish("fl/v1/d/pi-1/up/anything/at/all", b"refused")
    device.link.publish("fl/v1/d/pi-1/up/contribution", b"mine")
    assert aggregator.expect(Received).payload == b"mine"
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after.pop("access") == new.encode()
    assert after.pop("access.old") == OLD_ACCESS.encode()
    assert b'"action":"upgrade"' in after.pop("audit.jsonl")
    assert {name for name in after if name != "log" and after[name] != before[name]} == set()
    assert production.upgrade(running.opened) == ()


def test_the_written_configuration_bounds_what_devices_make_the_broker_keep(tmp_path: Path) -> None:
    text = new_folder(tmp_path / "e", websockets=8443).read("mosquitto.conf")
    assert text.count("max_connections ") == 2
    for line in (*mosquitto.LIMITS, f"max_keepalive {production.KEEPALIVE_S}"):
        assert line in text.splitlines()
