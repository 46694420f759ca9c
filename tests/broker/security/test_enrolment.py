"""What a device is given, as one word and as a file."""

import base64
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.broker.errors import UrlError
from device_runtime.broker.security.enrolment import FILE, PREFIX, Enrolment, EnrolmentError, _check
from device_runtime.broker.servers.production import make_authority
from device_runtime.broker.wire.url import BrokerUrl

DER = bytes(range(200))
GIVEN = Enrolment(
    "mqtts://broker.example:8884", "pi-1", "pass/word", DER, bytes(32), 1_800_000_000, bytes(range(32))
)


def token_of(values: object) -> str:
    data = msgspec.msgpack.encode(values)
    return PREFIX + base64.urlsafe_b64encode(data + _check(data)).decode().rstrip("=")


def test_a_token_is_one_word_that_holds_all() -> None:
    assert Enrolment.of_token(GIVEN.token) == GIVEN
    assert Enrolment.of_token(f"  {GIVEN.token}\n") == GIVEN
    assert (
        Enrolment.of_token(f"device-runtime join --enrol {GIVEN.token}\n") == GIVEN
    )  # as `device add` prints it
    assert not set(GIVEN.token) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_a_token_of_an_earlier_version_has_no_key_of_the_device() -> None:
    fields = list(msgspec.structs.astuple(GIVEN))
    assert Enrolment.of_token(token_of(fields[:6])) == msgspec.structs.replace(GIVEN, secret=b"")


def test_a_token_fits_into_a_qr_code_of_a_terminal() -> None:
    """Version 20 at level L holds 858 bytes (ISO 18004, table 7) and is 97 modules wide."""
    import ssl
    from datetime import datetime, timezone

    pem = make_authority("device-runtime", datetime.now(timezone.utc), 3650).certificate
    authority, key = ssl.PEM_cert_to_DER_cert(pem), bytes(32)
    enrolment = Enrolment(
        "mqtts://broker.example.org:8883", "kitchen-pi", "p" * 32, authority, key, 1, bytes(32)
    )
    assert len(f"device-runtime join --enrol {enrolment.token}") <= 858


@given(st.integers(0, len(GIVEN.token) - 1), st.sampled_from("ABCabc012-_."))
def test_one_letter_that_is_wrong_is_found(at: int, letter: str) -> None:
    changed = GIVEN.token[:at] + letter + GIVEN.token[at + 1 :]
    if changed == GIVEN.token:
        return
    try:
        assert Enrolment.of_token(changed) == GIVEN  # the last letter has bits that say nothing
    except EnrolmentError as error:
        assert GIVEN.password not in str(error)


def test_a_token_that_is_cut_is_said_to_be() -> None:
    for cut in (1, 5, 100):
        with pytest.raises(EnrolmentError, match="cut or mistyped: paste it whole"):
            Enrolment.of_token(GIVEN.token[:-cut])
    for other in ("", "hello", "mqtts://broker", "fl2.abc", PREFIX + "A" * 20_000):
        with pytest.raises(EnrolmentError, match="not a token"):
            Enrolment.of_token(other)


@given(st.text(max_size=200), st.binary(max_size=100))
def test_rubbish_is_refused_and_nothing_else(text: str, data: bytes) -> None:
    for token in (text, PREFIX + text, PREFIX + base64.urlsafe_b64encode(data + _check(data)).decode()):
        with pytest.raises(EnrolmentError):
            Enrolment.of_token(token)


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"url": "mqtt://127.0.0.1"}, "is not encrypted: expected mqtts"),
        ({"url": "http://a"}, "not a broker URL"),
        ({"name": "../pi"}, "device name '../pi'"),
        ({"key": bytes(31)}, "has 31 bytes, expected 32"),
        ({"secret": bytes(31)}, "the device's own key has 31 bytes, expected 32"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(changed: dict[str, object], why: str) -> None:
    fields = {field: getattr(GIVEN, field) for field in GIVEN.__struct_fields__}
    with pytest.raises(EnrolmentError, match=why):
        Enrolment.of_token(token_of(list({**fields, **changed}.values())))


def test_it_is_kept_for_its_owner_only_and_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "pi-1"
    assert Enrolment.load(folder) is None
    GIVEN.save(folder)
    GIVEN.save(folder)
    assert Enrolment.load(folder) == GIVEN
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for content in (b"", b"[]", b'["mqtts://a"', b"\xff"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(EnrolmentError, match=r"enrolment .*enrolment\.json cannot be used"):
            Enrolment.load(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(EnrolmentError, match="cannot read"):
        Enrolment.load(tmp_path)


def test_its_address_brings_user_password_and_authority() -> None:
    url = GIVEN.address
    assert (url.host, url.port, url.user, url.password) == ("broker.example", 8884, "pi-1", "pass/word")
    assert url.tls.authority.startswith("-----BEGIN CERTIFICATE-----")
    assert "pass/word" not in f"{url} {url!r} {GIVEN!r}"


def test_another_address_of_the_broker_must_be_encrypted_too() -> None:
    moved = GIVEN.at(BrokerUrl.parse("wss://other.example/x"))
    assert (moved.user, moved.path, moved.host) == ("pi-1", "/x", "other.example")
    assert moved == replace(GIVEN.address, host="other.example", port=443, path="/x")
    with pytest.raises(UrlError, match="over TLS only"):
        GIVEN.at(BrokerUrl.parse("mqtt://127.0.0.1"))


def test_its_client_id_cannot_be_guessed_from_the_name() -> None:
    assert GIVEN.client_id.startswith("pi-1-")
    assert GIVEN.client_id != msgspec.structs.replace(GIVEN, password="another").client_id
