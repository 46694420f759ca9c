"""Derives mask seeds that a device and a mask helper share, and the aggregator does not know.

A device draws a key pair (X25519) for each contribution, and sends its public key with it. From that key each
helper derives the same shared secret as the device (as DHKEM of RFC 9180, with HMAC-SHA256 as its key
derivation). The purpose of a seed is part of the derivation, so that a seed of another task, round, kind or
device is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import HelperKey, Mask
from device_runtime.broker.wire.sum_messages import SumRequest, SumSeed
from device_runtime.strategies.errors import MaskError

KEY_BYTES = 32
"""Bytes of a secret or public key, and of a seed."""
TAG_BYTES = 16

_SEED = b"device-runtime mask seed/1\0"
_TAG = b"device-runtime mask tag/1\0"


@dataclass(frozen=True)
class MaskPurpose:
    """The purpose of a seed. A helper opens it for this purpose only.

    min_group: the fewest devices of a sum, as the round's offer promised. noise_milli, clip_milli: noise
    multiplier and clipping norm of central differential privacy in thousandths, as promised; 0: none.
    exponents: with noise, those of the update's layout (`SumLayout.exponents`), which scale it; else ().
    """

    task: str
    run: str
    round: int
    kind: str
    form: str
    device: str
    min_group: int
    noise_milli: int = 0
    clip_milli: int = 0
    exponents: tuple[tuple[int, int], ...] = ()
    helpers: int = 0
    """With noise, the number of the round's helpers, who share it; set by `seal` and `unseal`, else 0."""

    @classmethod
    def of_request(cls, request: SumRequest, seed: SumSeed) -> MaskPurpose:
        """The purpose for which a request asks a helper to open the seed of one device."""
        return cls(
            request.task,
            request.run,
            request.round,
            request.kind,
            seed.form,
            seed.device,
            request.min_group,
            request.noise_milli,
            request.clip_milli,
            request.exponents,
        )

    def encoded(self) -> bytes:
        """The purpose as bytes; two purposes never have the same."""
        texts = [text.encode() for text in (self.task, self.run, self.kind, self.form, self.device)]
        numbers = (self.round, self.min_group, self.noise_milli, self.clip_milli)
        sized = [len(text).to_bytes(4, "big") + text for text in texts]
        shares = (self.helpers,) if self.helpers else ()
        scales = (*shares, *(number for run in self.exponents for number in run))
        return b"".join((*sized, *(number.to_bytes(8, "big", signed=True) for number in (*numbers, *scales))))


def helper_key(text: str) -> HelperKey:
    """A mask helper, written as NAME=KEY with the key in hexadecimal digits. Raises ValueError."""
    name, _, digits = text.partition("=")
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"mask helper {text!r}: expected NAME=KEY, with a key of {2 * KEY_BYTES} hex digits")
    return HelperKey(topics.check_device(name), key)


def seal(secret: bytes, helpers: Sequence[bytes], purpose: MaskPurpose) -> tuple[Mask, tuple[bytes, ...]]:
    """The mask that a device sends with its contribution, and one seed (KEY_BYTES) for each helper.

    secret: KEY_BYTES random bytes, used for this contribution only. helpers: their public keys. Raises
    MaskError for an invalid key.
    """
    public = crypto_scalarmult_base(secret)
    purpose = _among(len(helpers), purpose)
    pairs = [_derived(secret, helper, public, helper, purpose) for helper in helpers]
    return Mask(key=public, tags=tuple(tag for _, tag in pairs)), tuple(seed for seed, _ in pairs)


def unseal(secret: bytes, mask: Mask, at: int, purpose: MaskPurpose) -> bytes:
    """The seed (KEY_BYTES) of a device's mask, at the helper whose key is the `at`-th of the offer.

    Raises MaskError for a mask that was made for another helper or purpose.
    """
    purpose = _among(len(mask.tags), purpose)
    seed, tag = _derived(secret, mask.key, mask.key, crypto_scalarmult_base(secret), purpose)
    if not hmac.compare_digest(tag, mask.tags[at] if at < len(mask.tags) else b""):
        raise MaskError(
            f"the mask of {purpose.device} is not for this helper, or not for {purpose.kind} in round "
            f"{purpose.round} of task {purpose.task!r} with sums of {purpose.min_group} devices or more"
        )
    return seed


def _among(helpers: int, purpose: MaskPurpose) -> MaskPurpose:
    """The purpose with the number of helpers: with more, each adds less noise."""
    return replace(purpose, helpers=helpers) if purpose.noise_milli else purpose


def _derived(
    own: bytes, other: bytes, device: bytes, helper: bytes, purpose: MaskPurpose
) -> tuple[bytes, bytes]:
    """The seed and the tag; `device` and `helper` are the two public keys."""
    try:
        shared = crypto_scalarmult(own, other)
    except (CryptoError, ValueError) as error:
        raise MaskError(f"not a valid key for a mask: {error}") from None
    message = b"".join((device, helper, purpose.encoded()))
    seed = hmac.digest(shared, _SEED + message, hashlib.sha256)
    return seed, hmac.digest(shared, _TAG + message, hashlib.sha256)[:TAG_BYTES]
