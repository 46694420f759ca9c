"""The MAC of 8 bytes, worked out beside it from RFC 7748, section 6.1, and the standard library."""

import hmac
from hashlib import sha256

import pytest

from device_runtime.broker.security import signing
from device_runtime.broker.security.signing import NotTrusted, Signer, Verifier
from device_runtime.broker.wire.messages import MessageError

AGGREGATOR = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ITS_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
DEVICE = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
ITS_KEY = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
SAID = ("fl/v1/d/a/dn/n", "r", b"\x04\x03abcd")


def test_both_ends_make_the_word_that_the_protocol_says():
    secret = hmac.new(SHARED, b"device-runtime pact/1\0" + ITS_KEY + ITS_PUBLIC, sha256).digest()
    expected = hmac.new(secret, b"fl/v1/d/a/dn/n\0r\0\x04\x03abcd", sha256).digest()[:8]
    assert signing.public_key(DEVICE) == ITS_KEY
    assert signing.aggregator_session(AGGREGATOR, ITS_KEY).mac(*SAID) == expected
    assert signing.device_session(DEVICE, ITS_PUBLIC).mac(*SAID) == expected


def test_the_half_of_the_aggregator_is_its_key_of_signatures():
    """The map of RFC 7748, section 4.1: u = (1 + y) / (1 - y)."""
    signer, p = Signer(bytes(range(32))), 2**255 - 19
    y = int.from_bytes(signer.public, "little") & (2**255 - 1)
    half = ((1 + y) * pow(1 - y, -1, p) % p).to_bytes(32, "little")
    mac = signing.device_session(DEVICE, half).mac(*SAID)
    assert signer.agree(ITS_KEY).mac(*SAID) == mac
    assert Verifier(signer.public).agree(DEVICE).mac(*SAID) == mac


@pytest.mark.parametrize(
    "words",
    [
        ("fl/v1/d/b/dn/n", "r", SAID[2]),
        (SAID[0], "another", SAID[2]),
        (SAID[0], "r", b"\x24\x03abcd"),
        (SAID[0], "r", SAID[2] + b"\0"),
        ("fl/v1/d/a/dn/n\0r", "", SAID[2][1:]),
    ],
)
def test_a_word_is_good_for_nothing_else(words):
    session = signing.device_session(DEVICE, ITS_PUBLIC)
    mac = session.mac(*SAID)
    assert session.verifies(mac, *SAID)
    assert not session.verifies(mac, *words)


def test_a_word_of_another_or_of_another_life_or_cut_short_does_not_hold():
    verifier = Verifier(Signer(bytes(32)).public).agree(DEVICE)
    mac = Signer(bytes(32)).agree(ITS_KEY).mac(*SAID)
    assert verifier.verifies(mac, *SAID)
    others = (Signer(bytes([1]) * 32).agree(ITS_KEY), Signer(bytes(32)).agree(ITS_PUBLIC))
    for wrong in (*(session.mac(*SAID) for session in others), mac[:7], b""):
        assert not verifier.verifies(wrong, *SAID)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytes(32), bytes([1]) + bytes(31)])
def test_what_is_no_key_or_makes_a_secret_that_all_know_is_refused(key):
    with pytest.raises(MessageError, match="not a valid key for key agreement"):
        Signer(bytes(32)).agree(key)


def test_a_device_cannot_agree_with_what_is_no_point():
    with pytest.raises(NotTrusted, match="key 0100000000000000 is not valid for key agreement"):
        Verifier(bytes([1]) + bytes(31)).agree(DEVICE)
