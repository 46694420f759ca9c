"""Offers are believed when the aggregator that the device knows has signed them, for this topic."""

import errno
import os
import stat
import threading
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.broker.security.signing import (
    DeviceSigner,
    KeyFileError,
    NotTrusted,
    Signer,
    Verifier,
    fingerprint,
    verify_message,
)
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import (
    Base,
    FromDevice,
    MessageError,
    Offer,
    Signed,
    State,
    Succession,
    decode,
    encode,
)

BLOB = blob_of(b"x")
OFFER = Offer(
    task="t",
    run="r",
    round=3,
    seed=5,
    deadline_s=20.0,
    remaining_s=20.0,
    bundle=BLOB,
    base=Base(checkpoint=(BLOB,), sha=BLOB.sha),
    kinds=(),
)
SIGNER, OTHER = Signer(bytes(range(32))), Signer(bytes(32))
VERIFIER = Verifier(SIGNER.public)


def test_what_the_aggregator_signed_is_read() -> None:
    payload = SIGNER.seal(topics.offer("t"), OFFER, 1_800_000_000)
    assert VERIFIER.open(topics.offer("t"), payload) == (OFFER, 1_800_000_000)
    assert len(payload) < len(encode(OFFER)) + 80


def test_the_signature_is_ed25519_over_purpose_topic_moment_and_offer() -> None:
    """RFC 8032, section 7.1, test 1: the key pair; what is signed, as PROTOCOL.md says it."""
    from nacl.signing import VerifyKey

    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signer = Signer(seed)
    assert signer.public == public
    sealed = decode(signer.seal("fl/v1/all/round/t", OFFER, 258), Signed)
    message = b"device-runtime offer/1\0fl/v1/all/round/t\0" + bytes(6) + b"\x01\x02" + encode(OFFER)
    assert VerifyKey(public).verify(message, sealed.signature) == message


@pytest.mark.parametrize(
    "topic, payload",
    [
        (topics.offer("t"), encode(OFFER)),
        (topics.offer("t"), OTHER.seal(topics.offer("t"), OFFER, 1)),
        (topics.down("b", "task"), SIGNER.seal(topics.down("a", "task"), OFFER, 1)),
        (topics.offer("t"), encode(Signed(issued=1, signature=b"", offer=encode(OFFER)))),
        (topics.offer("t"), encode(Signed(issued=1, signature=bytes(64), offer=encode(OFFER)))),
        (topics.offer("t"), encode(State(boot=1, online=True))),
        (topics.offer("t"), b""),
    ],
    ids=["unsigned", "another's key", "another topic", "no signature", "zeros", "no offer", "empty"],
)
def test_anything_else_is_refused(topic: str, payload: bytes) -> None:
    with pytest.raises(NotTrusted, match=f"offer on {topic} refused: it is not signed"):
        VERIFIER.open(topic, payload)


def test_what_a_device_signs_is_ed25519_over_purpose_topic_and_message() -> None:
    from nacl.signing import VerifyKey

    device, topic = DeviceSigner(bytes(range(32))), topics.up("a", "hello")
    sealed = device.seal(topic, b"hello")
    signature = decode(sealed, FromDevice).signature
    message = b"device-runtime device/1\0fl/v1/d/a/up/hello\0hello"
    assert VerifyKey(device.public).verify(message, signature) == message
    assert verify_message(device.public, topic, sealed) == b"hello"
    assert len(sealed) == len(b"hello") + 70
    other = DeviceSigner(bytes(32))
    for key, where, payload in (
        (device.public, topic, b"hello"),
        (device.public, topic, other.seal(topic, b"hello")),
        (device.public, topics.up("b", "hello"), sealed),
        (device.public, topics.up("a", "plan"), sealed),
        (device.public, topic, encode(FromDevice(signature=b"", message=b"hello"))),
        (device.public, topic, encode(FromDevice(signature=signature, message=b"hullo"))),
        (device.public[:31], topic, sealed),
        (b"", topic, sealed),
    ):
        with pytest.raises(NotTrusted, match=f"message on {where} refused: it is not signed"):
            verify_message(key, where, payload)


def test_the_same_secret_signs_no_offer_as_a_device() -> None:
    secret, topic = bytes(range(32)), topics.offer("t")
    as_device = decode(DeviceSigner(secret).seal(topic, encode(OFFER)), FromDevice).signature
    with pytest.raises(NotTrusted):
        VERIFIER.open(topic, encode(Signed(issued=0, signature=as_device, offer=encode(OFFER))))


def chain(*signers: Signer) -> tuple[Succession, ...]:
    """From each to the next."""
    return tuple(old.succeeded(new.public, 7) for old, new in pairwise(signers))


def test_a_key_that_the_one_before_has_signed_takes_its_place_and_the_one_before_counts_no_more() -> None:
    topic, third = topics.offer("t"), Signer(bytes([3]) * 32)
    verifier = Verifier(SIGNER.public)
    sealed = third.seal(topic, OFFER, 5, chain(SIGNER, OTHER, third))
    assert verifier.open(topic, sealed) == (OFFER, 5)
    assert verifier.public == third.public
    assert verifier.open(topic, sealed) == (OFFER, 5)
    for before in (SIGNER, OTHER):
        with pytest.raises(NotTrusted, match=fingerprint(third.public)):
            verifier.open(topic, before.seal(topic, OFFER, 9))
    assert Verifier(OTHER.public).open(topic, sealed) == (OFFER, 5)  # which took part of the way


def test_a_chain_that_is_not_signed_at_each_step_leads_nowhere() -> None:
    topic, thief = topics.offer("t"), Signer(bytes([3]) * 32)
    right = SIGNER.succeeded(OTHER.public, 7)
    for links in (
        (),
        chain(OTHER, thief),
        chain(thief, thief),
        (msgspec.structs.replace(right, new=thief.public),),
        (msgspec.structs.replace(right, made=8), *chain(OTHER, thief)),
        (right, msgspec.structs.replace(right, old=OTHER.public, new=thief.public)),
        (msgspec.structs.replace(SIGNER.succeeded(bytes(31), 7), new=thief.public),),
        (SIGNER.succeeded(b"", 7),),
    ):
        verifier = Verifier(SIGNER.public)
        with pytest.raises(NotTrusted, match=fingerprint(SIGNER.public)):
            verifier.open(topic, thief.seal(topic, OFFER, 5, links))
        assert verifier.public == SIGNER.public
        assert verifier.open(topic, SIGNER.seal(topic, OFFER, 5)) == (OFFER, 5)


def test_a_chain_without_an_offer_of_its_last_key_changes_nothing() -> None:
    topic, verifier = topics.offer("t"), Verifier(SIGNER.public)
    sealed = decode(OTHER.seal(topic, OFFER, 5, chain(SIGNER, OTHER)), Signed)
    with pytest.raises(NotTrusted):
        verifier.open(topic, encode(msgspec.structs.replace(sealed, issued=6)))
    assert verifier.public == SIGNER.public


def test_a_changed_moment_or_offer_is_refused() -> None:
    sealed = decode(SIGNER.seal(topics.offer("t"), OFFER, 5), Signed)
    changed = encode(msgspec.structs.replace(OFFER, round=4))
    for variant in (
        msgspec.structs.replace(sealed, issued=6),
        msgspec.structs.replace(sealed, offer=changed),
    ):
        with pytest.raises(NotTrusted, match=fingerprint(SIGNER.public)):
            VERIFIER.open(topics.offer("t"), encode(variant))


@given(st.binary(max_size=300), st.integers(0, 2**40 - 1), st.binary(max_size=80))
def test_rubbish_never_passes_and_never_crashes(offer: bytes, issued: int, signature: bytes) -> None:
    for payload in (offer, encode(Signed(issued=issued, signature=signature, offer=offer))):
        with pytest.raises(MessageError):
            VERIFIER.open(topics.offer("t"), payload)


def test_a_moment_that_is_impossible_is_no_message() -> None:
    for issued in (-1, 2**63):
        with pytest.raises(MessageError):
            decode(msgspec.msgpack.encode([3, issued, b"", b""]), Signed)


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "aggregator.key"
    signer = Signer.of_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.of_file(path).public == signer.public
    assert Signer.of_file(tmp_path / "another.key").public != signer.public
    assert [file.name for file in path.parent.iterdir()] == ["aggregator.key"]


def test_processes_that_need_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    keys: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: keys.append(Signer.of_file(tmp_path / "aggregator.key").public))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.parametrize("text", ["", "abcd", "z" * 64, "00" * 33, "ü"])
def test_a_damaged_key_is_said_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "aggregator.key"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=r"aggregator's key .*aggregator\.key"):
        Signer.of_file(path)
    assert path.read_text() == text


def test_a_key_of_another_length_is_none() -> None:
    with pytest.raises(NotTrusted, match="has 31 bytes, expected 32"):
        Verifier(bytes(31))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EACCES])
def test_a_key_is_kept_where_there_are_no_hard_links(tmp_path, monkeypatch, number):
    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", none)
    signer = Signer.of_file(tmp_path / "keys" / "aggregator.key")
    assert Signer.of_file(tmp_path / "keys" / "aggregator.key").public == signer.public
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["aggregator.key"]
