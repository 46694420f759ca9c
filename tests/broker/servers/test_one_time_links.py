"""One-time links: who gets in by one, how often, for how long, and what a kill on the way leaves."""

import argparse
import os
import pwd
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.signing import DeviceSigner
from device_runtime.broker.servers import one_time_links as link_book
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers import production, register
from device_runtime.broker.servers.broker_folder import PASSWORDS, BrokerFolder, BrokerSetup
from device_runtime.broker.servers.mosquitto import hash_passwords, matches_password
from device_runtime.broker.servers.one_time_links import LinkError, LinkRequest, NameTaken
from device_runtime.broker.servers.register import RegisterError
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.topics import TopicError
from device_runtime.cli.operator import device as device_command

NOW = 1_800_000_000
MINE, OTHER = "a" * 43, "b" * 43


@pytest.fixture
def opened(tmp_path: Path) -> BrokerFolder:
    site = BrokerSetup(names=("192.0.2.7",), websockets=8884, run_as=pwd.getpwuid(os.geteuid()).pw_name)
    return production.init_broker(tmp_path / "enrolment", site, datetime.fromtimestamp(NOW, timezone.utc))


def enrolled(opened: BrokerFolder) -> list[str]:
    """Who may connect, by the password file and by the list."""
    names = [line.partition(":")[0] for line in opened.read(PASSWORDS).splitlines()]
    listed = [entry.name for entry in register.entries(opened) if not entry.revoked]
    assert names == ["aggregator", *listed]
    return listed


def test_a_link_enrols_one_device_with_a_credential_of_its_own(opened: BrokerFolder) -> None:
    link, secret = links.make(opened, NOW, 900, "phone")
    assert (link.device, link.state(NOW), link.ends) == ("phone", "open", NOW + 900)
    assert enrolled(opened) == []
    enrolment = links.use(opened, LinkRequest(secret, MINE), NOW + 1)
    assert (enrolment.name, enrolment.url, enrolment.issued) == (
        "phone",
        "wss://192.0.2.7:8884/mqtt",
        NOW + 1,
    )
    assert Enrolment.of_token(enrolment.token) == enrolment
    assert enrolled(opened) == ["phone"]
    line = next(text for text in opened.read(PASSWORDS).splitlines() if text.startswith("phone:"))
    assert matches_password(line, enrolment.password)
    [entry] = register.entries(opened)
    assert entry.key == DeviceSigner(enrolment.secret).public.hex()
    assert enrolment.secret not in (bytes(32), enrolment.password.encode())
    assert link_book.read_links(opened).links[0].state(NOW + 2) == "used"


def test_a_device_that_a_link_of_an_earlier_version_enrolled_has_a_key_when_it_asks_again(
    opened: BrokerFolder,
) -> None:
    _, secret = links.make(opened, NOW, 900, "phone")
    first = links.use(opened, LinkRequest(secret, MINE), NOW)
    path = opened.folder / "devices.json"
    [entry] = register.entries(opened)
    path.write_bytes(msgspec.json.encode([msgspec.structs.replace(entry, key="")]))
    assert links.use(opened, LinkRequest(secret, MINE), NOW + 5) == first
    assert register.entries(opened) == [entry]


def test_neither_secret_nor_claim_nor_password_is_in_a_file(opened: BrokerFolder) -> None:
    _, secret = links.make(opened, NOW, 900)
    enrolment = links.use(opened, LinkRequest(secret, MINE), NOW)
    files = [path for path in opened.folder.iterdir() if path.is_file()]
    content = "".join(path.read_text() for path in files)
    assert all(word not in content for word in (secret, MINE, enrolment.password, enrolment.secret.hex()))
    assert (opened.folder / "links.json").stat().st_mode & 0o077 == 0


def test_the_same_claim_may_ask_again_and_gets_the_same_and_another_nothing(opened: BrokerFolder) -> None:
    _, secret = links.make(opened, NOW, 900)
    first = links.use(opened, LinkRequest(secret, MINE), NOW)
    passwords = opened.read(PASSWORDS)
    assert links.use(opened, LinkRequest(secret, MINE), NOW + 60) == first
    assert opened.read(PASSWORDS) == passwords
    with pytest.raises(LinkError, match="used by another browser already") as caught:
        links.use(opened, LinkRequest(secret, OTHER), NOW + 60)
    assert caught.value.over
    assert len(enrolled(opened)) == 1


def test_a_wrong_secret_is_of_no_link_and_a_claim_that_is_none_is_refused(opened: BrokerFolder) -> None:
    _, secret = links.make(opened, NOW, 900)
    for wrong in ("", secret[:-1], secret + "x", secret.swapcase(), "é"):
        with pytest.raises(LinkError, match="there is no such link") as caught:
            links.use(opened, LinkRequest(wrong, MINE), NOW)
        assert not caught.value.over
    for claim in ("", "short", "x" * 87, "é" * 43):
        with pytest.raises(LinkError, match="a claim has 22 to 86 letters"):
            links.use(opened, LinkRequest(secret, claim), NOW)
    assert enrolled(opened) == []


def test_a_link_expires(opened: BrokerFolder) -> None:
    link, secret = links.make(opened, NOW, 900)
    with pytest.raises(LinkError, match="expired"):
        links.use(opened, LinkRequest(secret, MINE), NOW + 900)
    assert link.state(NOW + 899) == "open"
    assert link.state(NOW + 900) == "expired"
    assert enrolled(opened) == []


def test_a_revoked_link_is_void_and_so_is_the_device_that_used_one(opened: BrokerFolder) -> None:
    unused, secret = links.make(opened, NOW, 900, "one")
    assert links.revoke(opened, unused.id, NOW).state(NOW) == "revoked"
    with pytest.raises(LinkError, match="this link was revoked"):
        links.use(opened, LinkRequest(secret, MINE), NOW)
    used, secret = links.make(opened, NOW, 900, "two")
    links.use(opened, LinkRequest(secret, MINE), NOW)
    links.revoke(opened, used.id, NOW + 1)
    links.revoke(opened, used.id, NOW + 2)  # which was done, and changes nothing
    assert enrolled(opened) == []
    with pytest.raises(LinkError, match="revoked"):
        links.use(opened, LinkRequest(secret, MINE), NOW + 2)
    with pytest.raises(LinkError, match="no link is called"):
        links.revoke(opened, "nothing", NOW)


def test_a_device_that_was_revoked_otherwise_is_not_let_in_again_by_its_old_link(
    opened: BrokerFolder,
) -> None:
    _, secret = links.make(opened, NOW, 900, "phone")
    links.use(opened, LinkRequest(secret, MINE), NOW + 1)
    register.revoke(opened, "phone", datetime.fromtimestamp(NOW + 2, timezone.utc))
    with pytest.raises(LinkError, match="was revoked"):
        links.use(opened, LinkRequest(secret, MINE), NOW + 3)
    _, again = links.make(opened, NOW + 4, 900, "phone")  # the operator means it
    assert links.use(opened, LinkRequest(again, OTHER), NOW + 5).name == "phone"
    assert enrolled(opened) == ["phone"]


def test_the_same_claim_gets_the_same_answer_as_long_as_its_device_is_enrolled(opened: BrokerFolder) -> None:
    """An answer that was lost may be missed long after the link's end."""
    _, secret = links.make(opened, NOW, 900, "phone")
    first = links.use(opened, LinkRequest(secret, MINE), NOW + 899)
    year = NOW + 365 * 86400
    links.make(opened, year, 900)  # which forgets what is long over
    assert links.use(opened, LinkRequest(secret, MINE), year) == first
    with pytest.raises(LinkError, match="used by another browser already"):
        links.use(opened, LinkRequest(secret, OTHER), year)
    assert [link.device for link in link_book.read_links(opened).recent(year)] == [""]
    register.revoke(opened, "phone", datetime.fromtimestamp(year, timezone.utc))
    with pytest.raises(LinkError, match="was revoked"):
        links.use(opened, LinkRequest(secret, MINE), year)
    links.make(opened, year, 900)
    assert len(link_book.read_links(opened).links) == 2


def test_a_claim_that_came_in_time_may_be_ended_after_it(
    opened: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = links.make(opened, NOW, 900, "phone")
    with monkeypatch.context() as patched:
        patched.setattr(register, "enrol_agreed", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            links.use(opened, LinkRequest(secret, MINE), NOW + 899)
    assert links.use(opened, LinkRequest(secret, MINE), NOW + 901).issued == NOW + 899
    assert enrolled(opened) == ["phone"]


def test_links_and_revocations_of_one_second_are_in_order(opened: BrokerFolder) -> None:
    moment = datetime.fromtimestamp(NOW, timezone.utc)
    register.add(opened, "phone", moment)
    register.revoke(opened, "phone", moment)
    _, before = links.make(opened, NOW, 900, "phone")
    first = links.use(opened, LinkRequest(before, MINE), NOW)
    assert first.name == "phone"
    register.revoke(opened, "phone", moment)
    for _ in range(2):
        with pytest.raises(LinkError, match="'phone' was revoked since: ask for a new link") as caught:
            links.use(opened, LinkRequest(before, MINE), NOW)
        assert caught.value.over
        assert enrolled(opened) == []
        links.make(opened, NOW, 900)
    _, after = links.make(opened, NOW, 900, "phone")
    assert links.use(opened, LinkRequest(after, MINE), NOW).password != first.password
    with pytest.raises(LinkError, match="was revoked since"):
        links.use(opened, LinkRequest(before, MINE), NOW)
    assert enrolled(opened) == ["phone"]


def test_revoking_a_link_leaves_a_later_device_of_that_name(opened: BrokerFolder) -> None:
    used, secret = links.make(opened, NOW, 900, "phone")
    links.use(opened, LinkRequest(secret, MINE), NOW)
    register.revoke(opened, "phone", datetime.fromtimestamp(NOW, timezone.utc))
    _, another = links.make(opened, NOW, 900, "phone")
    links.use(opened, LinkRequest(another, OTHER), NOW)
    links.revoke(opened, used.id, NOW)
    assert enrolled(opened) == ["phone"]


def test_a_kill_while_a_link_is_revoked_is_mended_by_revoking_it_again(
    opened: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, secret = links.make(opened, NOW, 900, "phone")
    links.use(opened, LinkRequest(secret, MINE), NOW)
    with monkeypatch.context() as patched:
        patched.setattr(register, "revoke", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            links.revoke(opened, link.id, NOW)
    assert enrolled(opened) == ["phone"]
    links.revoke(opened, link.id, NOW)
    assert enrolled(opened) == []


@pytest.mark.parametrize("used", [True, False])
def test_a_device_that_was_given_a_token_by_hand_keeps_it_and_its_link_says_so(
    opened: BrokerFolder, used: bool
) -> None:
    _, secret = links.make(opened, NOW, 900, "phone")
    if used:
        links.use(opened, LinkRequest(secret, MINE), NOW)
    register.add(opened, "phone", datetime.fromtimestamp(NOW, timezone.utc), again=used)
    passwords = opened.read(PASSWORDS)
    with pytest.raises(LinkError, match="'phone' was given another token meanwhile") as caught:
        links.use(opened, LinkRequest(secret, MINE), NOW + 1)
    assert caught.value.over
    assert opened.read(PASSWORDS) == passwords


class Killed(BaseException):
    """As `kill -9` would: nothing is cleaned up after it."""


@pytest.mark.parametrize("left", range(3))
def test_a_kill_between_any_two_files_leaves_one_device_and_the_same_claim_may_go_on(
    opened: BrokerFolder, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Three files are written: whose the link is, the password, the list."""
    _, secret = links.make(opened, NOW, 900, "phone")
    written: list[str] = []
    write = BrokerFolder.write

    def writing(self: BrokerFolder, name: str, text: str) -> None:
        if len(written) == left:
            raise Killed
        written.append(name)
        write(self, name, text)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerFolder, "write", writing)
        with pytest.raises(Killed):
            links.use(opened, LinkRequest(secret, MINE), NOW + 1)
    assert written == ["links.json", "passwords", "devices.json"][:left]
    if left:
        with pytest.raises(LinkError, match="used by another browser"):
            links.use(opened, LinkRequest(secret, OTHER), NOW + 2)
    enrolment = links.use(BrokerFolder(opened.folder), LinkRequest(secret, MINE), NOW + 3)
    assert enrolment.issued == (NOW + 1 if left else NOW + 3)
    assert enrolled(opened) == ["phone"]
    assert links.use(opened, LinkRequest(secret, MINE), NOW + 4) == enrolment


def test_of_many_that_use_a_link_at_once_one_gets_in(opened: BrokerFolder) -> None:
    _, secret = links.make(opened, NOW, 900, "phone")
    got: list[Enrolment] = []
    refused: list[LinkError] = []
    start = threading.Barrier(8)

    def use(claim: str) -> None:
        start.wait()
        try:
            got.append(links.use(opened, LinkRequest(secret, claim), NOW))
        except LinkError as error:
            refused.append(error)

    threads = [threading.Thread(target=use, args=(letter * 43,)) for letter in "aabbccdd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(set(got)), len(refused)) == (2, 1, 6)
    assert enrolled(opened) == ["phone"]


def test_a_name_is_given_with_the_link_or_chosen_by_who_opens_it_and_never_twice(
    opened: BrokerFolder,
) -> None:
    register.add(opened, "pi", datetime.fromtimestamp(NOW, timezone.utc))
    links.make(opened, NOW, 900, "given")
    for name in ("pi", "given", "aggregator"):
        with pytest.raises(NameTaken, match="give another name"):
            links.make(opened, NOW, 900, name)
    with pytest.raises(TopicError):
        links.make(opened, NOW, 900, "a/b")
    link, secret = links.make(opened, NOW, 900)
    assert link.device == ""
    for name in ("pi", "given", "aggregator"):
        with pytest.raises(NameTaken, match="give another name"):
            links.use(opened, LinkRequest(secret, MINE, name), NOW)
    with pytest.raises(TopicError):
        links.use(opened, LinkRequest(secret, MINE, "a/b"), NOW)
    assert links.use(opened, LinkRequest(secret, MINE, "chosen"), NOW).name == "chosen"
    assert links.use(opened, LinkRequest(secret, MINE, "otherwise"), NOW + 1).name == "chosen"
    _, secret = links.make(opened, NOW, 900)
    assert links.use(opened, LinkRequest(secret, MINE), NOW).name.startswith("browser-")
    _, secret = links.make(opened, NOW, 900, "fixed")
    assert links.use(opened, LinkRequest(secret, MINE, "otherwise"), NOW).name == "fixed"


def test_only_so_many_links_are_open_and_those_that_are_long_over_are_forgotten(
    opened: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MOST_OPEN_LINKS", 2)
    for _ in range(2):
        links.make(opened, NOW, 900)
    with pytest.raises(LinkError, match="2 links are open"):
        links.make(opened, NOW + 899, 900)
    links.make(opened, NOW + 900, 900)
    assert len(link_book.read_links(opened).links) == 3
    links.make(opened, NOW + 900 + link_book.KEPT_S, 900)
    assert len(link_book.read_links(opened).links) == 2


def test_a_link_leads_to_where_the_page_was_offered(opened: BrokerFolder) -> None:
    links.store_addresses(opened, "https://fl.example.org/join/", "wss://fl.example.org/mqtt")
    _, secret = links.make(opened, NOW, 900)
    assert link_book.read_links(opened).page == "https://fl.example.org/join/"
    assert links.use(opened, LinkRequest(secret, MINE), NOW).url == "wss://fl.example.org/mqtt"


def test_a_line_of_passwords_is_of_its_password_alone() -> None:
    line = hash_passwords(BrokerOptions(users={"pi": "secret"})).strip()
    assert matches_password(line, "secret")
    assert not matches_password(line, "Secret")
    for damaged in ("", "pi", "pi:$7$101$", "pi:$7$101$?$x"):
        assert not matches_password(damaged, "secret")


@pytest.fixture
def command(opened: BrokerFolder, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """`device-runtime device`, of that folder: what it says, and to whom."""

    def run(*words: str) -> tuple[str, str]:
        parser = argparse.ArgumentParser()
        device_command.add_arguments(parser)
        assert device_command.run(parser.parse_args([*words, "--dir", str(opened.folder)])) == 0
        return capsys.readouterr()

    return run


def test_a_link_is_made_listed_and_revoked_on_the_command_line(
    opened: BrokerFolder, command: Callable[..., tuple[str, str]]
) -> None:
    with pytest.raises(LinkError, match="where is the page"):
        command("link")
    links.store_addresses(opened, "https://192.0.2.7:8443/join/", "wss://192.0.2.7:8884/mqtt")
    with pytest.raises(LinkError, match="--minutes 0"):
        command("link", "--minutes", "0")
    out, err = command("link", "phone", "--minutes", "5", "--qr")
    address, *code = out.splitlines()
    assert address.startswith("https://192.0.2.7:8443/join/#link=")
    assert len(code) > 15
    assert "for 5 minutes" in err
    [link] = link_book.read_links(opened).links
    assert (link.device, link.ends - link.made) == ("phone", 300)
    listed, _ = command("list")
    assert f"{link.id}  open     phone" in listed
    assert address.partition("#link=")[2] not in listed
    other, _ = command("link", "--page", "https://other.example/join/")
    assert other.startswith("https://other.example/join/#link=")
    assert len(other.splitlines()) == 1  # no terminal, no code
    links.use(opened, LinkRequest(address.partition("#link=")[2], MINE), link.made + 1)
    assert enrolled(opened) == ["phone"]
    with pytest.raises(RegisterError, match="Mosquitto was not told that the password of 'phone' is void"):
        command("revoke", link.id)
    assert enrolled(opened) == []
