"""Offers are believed when the aggregator that the device knows has signed them, for this topic."""

import stat
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import topics
from broker.blobs import name
from broker.messages import Base, MessageError, Offer, Signed, State, decode, encode
from broker.signing import KeyFileError, NotTrusted, Signer, Verifier, fingerprint

BLOB = name(b"x")
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
    said = b"device-runtime offer/1\0fl/v1/all/round/t\0" + bytes(6) + b"\x01\x02" + encode(OFFER)
    assert VerifyKey(public).verify(said, sealed.signature) == said


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


def test_a_changed_moment_or_offer_is_refused() -> None:
    sealed = decode(SIGNER.seal(topics.offer("t"), OFFER, 5), Signed)
    changed = encode(msgspec.structs.replace(OFFER, round=4))
    for one in (
        msgspec.structs.replace(sealed, issued=6),
        msgspec.structs.replace(sealed, offer=changed),
    ):
        with pytest.raises(NotTrusted, match=fingerprint(SIGNER.public)):
            VERIFIER.open(topics.offer("t"), encode(one))


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
    made = Signer.kept(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.kept(path).public == made.public
    assert Signer.kept(tmp_path / "another.key").public != made.public
    assert [file.name for file in path.parent.iterdir()] == ["aggregator.key"]


def test_processes_that_need_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    keys: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: keys.append(Signer.kept(tmp_path / "aggregator.key").public))
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
        Signer.kept(path)
    assert path.read_text() == text


def test_a_key_of_another_length_is_none() -> None:
    with pytest.raises(NotTrusted, match="has 31 bytes, expected 32"):
        Verifier(bytes(31))
