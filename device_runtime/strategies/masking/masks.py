"""Adds masks to vectors: the keystream of a seed, modulo 2^32 and 2^64.

The keystream is ChaCha20 (RFC 8439), in chunks, each with its own nonce: the part of the vector, then the
number of the chunk. So no mask is ever held as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from nacl.bindings import crypto_aead_chacha20poly1305_ietf_encrypt
from numpy.typing import NDArray

from device_runtime.strategies.errors import MaskError

CHUNK = 1 << 16
"""Bytes of the keystream that are made at a time."""
_ZEROS = bytes(CHUNK)


@dataclass(frozen=True)
class MaskedVector:
    """Integers of an update or of a sum of updates, modulo 2^32 and modulo 2^64.

    values: uint32 (values,), changes of weights. sums: uint64 (sums,), numbers that need more digits.
    """

    values: NDArray[np.uint32]
    sums: NDArray[np.uint64]

    @classmethod
    def zeros(cls, values: int, sums: int) -> MaskedVector:
        """Zeros in one buffer, which `content` gives."""
        whole = np.zeros(4 * values + 8 * sums, np.uint8)
        return cls(whole[: 4 * values].view("<u4"), whole[4 * values :].view("<u8"))

    @classmethod
    def from_bytes(cls, content: bytes, values: int, sums: int) -> MaskedVector:
        """Reads what `to_bytes` wrote, as a copy. Raises MaskError for another length."""
        if len(content) != 4 * values + 8 * sums:
            expected = f"{4 * values + 8 * sums}, for {values} values and {sums} sums"
            raise MaskError(f"a masked update of {len(content)} bytes, expected {expected}")
        split = np.frombuffer(content, "<u4", values), np.frombuffer(content, "<u8", sums, 4 * values)
        return cls(split[0].astype(np.uint32), split[1].astype(np.uint64))

    def to_bytes(self) -> bytes:
        """All integers, little-endian: the values, then the sums."""
        return b"".join(
            (self.values.astype("<u4", copy=False).data, self.sums.astype("<u8", copy=False).data)
        )

    def content(self) -> memoryview:
        """As `to_bytes`; a vector that `zeros` made is not copied, so it must not be changed any more."""
        whole = self.values.base
        if whole is not None and whole is self.sums.base and whole.dtype == np.uint8:
            return whole.data
        return memoryview(self.to_bytes())

    def add(self, other: MaskedVector) -> None:
        """Adds another vector of the same shape, in place."""
        self.values[:] += other.values
        self.sums[:] += other.sums

    def subtract(self, other: MaskedVector) -> None:
        """Subtracts another vector of the same shape, in place."""
        self.values[:] -= other.values
        self.sums[:] -= other.sums

    def add_masks(self, seeds: Sequence[bytes]) -> None:
        """Adds the keystream of each seed (32 bytes), in place."""
        for seed in seeds:
            _add_keystream(self.values, seed, 0)
            _add_keystream(self.sums, seed, 1)


def keystream(seed: bytes, nonce: bytes, size: int) -> bytes:
    """`size` bytes of ChaCha20 keystream from block 1. seed: 32 bytes. nonce: 12 bytes, used once."""
    zeros = _ZEROS[:size] if size <= CHUNK else bytes(size)
    return crypto_aead_chacha20poly1305_ietf_encrypt(zeros, None, nonce, seed)[:size]


def _add_keystream(vector: NDArray[np.uint32] | NDArray[np.uint64], seed: bytes, part: int) -> None:
    step = CHUNK // vector.itemsize
    order = vector.dtype.newbyteorder("<")
    for number, start in enumerate(range(0, len(vector), step)):
        size = min(step, len(vector) - start)
        nonce = part.to_bytes(4, "little") + number.to_bytes(8, "little")
        stream = keystream(seed, nonce, size * vector.itemsize)
        vector[start : start + size] += np.frombuffer(stream, order, size)
