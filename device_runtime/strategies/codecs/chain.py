"""Codecs by their words, composed: `named("delta+int8+deflate")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.errors import TensorError
from device_runtime.strategies.merging.server_optimizer import STATISTICS

from . import codec
from .codec import MAIN, CodecError, Deflate, Half, Int8, Numbers, Packing, Parts

NUMBERS: Mapping[str, Numbers] = {"half": Half(), "int8": Int8()}
PACKINGS: Mapping[str, Packing] = {"deflate": Deflate()}

HEADER_BYTES = 4096
TENSOR_HEADER_BYTES = 512
"""Bytes that safetensors' header may take, in all and for each tensor beside its values."""
NAME_BYTES = 72
"""What it takes for a tensor, usually."""

PACKED: Mapping[tuple[bool, str], float] = {
    (False, ""): 0.93,
    (True, ""): 0.77,
    (False, "half"): 0.93,
    (True, "half"): 0.90,
    (False, "int8"): 0.90,
    (True, "int8"): 0.87,
}
"""What deflate leaves of an update's bytes, by what is written before, (delta, numbers): for predictions
(measured on first rounds, the largest; see docs/wire.md and benchmarks/codecs.py)."""


@dataclass(frozen=True)
class EncodedUpdate:
    """What the other end makes of an update, and what rounding left out of it, by tensor."""

    read: dict[str, NDArray[Any]] = field(default_factory=dict)
    left: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """`body` is sent. `left` is what rounding left out of each tensor: the device keeps it for its next
    update, in place of what it kept before, once this one counts. None: nothing is ever left out.
    """

    body: bytes
    left: Tensors | None


@dataclass(frozen=True)
class Chain:
    """The float32 parameters that the base has in the same shape are written short; all else is as it is.

    All else: integers, counts, feature maps, running statistics of a normalisation. A tensor that cannot be
    written short, because a number of it would overflow, or is too small for it to pay, is as it is too, with
    what was left out before. See `named`.
    """

    word: str
    delta: bool = False
    numbers: Numbers | None = None
    packing: Packing | None = None

    @property
    def lossy(self) -> bool:
        """Whether a device must keep what rounding leaves out."""
        return self.numbers is not None

    def encode(self, update: Tensors, base: Tensors, left: Tensors) -> Encoded:
        """On the device. `base` is what was trained from, `left` what the last encoding left out.

        Error feedback (Seide et al. 2014; Karimireddy et al. 2019, algorithm 1): what rounding leaves out of
        one update is added to the next. Raises TensorError for dtypes that safetensors has no name for.
        """
        wire, written = self.write(update, base, left)
        body = tensors.encode(wire)
        left_now = written.left if self.lossy else None
        return Encoded(self.packing.pack(body) if self.packing else body, left_now)

    def rounded(self, update: Tensors, base: Tensors, left: Tensors) -> EncodedUpdate:
        """The same, where nothing is sent: what the other end would read, and what is left out."""
        return self.write(update, base, left)[1]

    def write(
        self, update: Tensors, base: Tensors, left: Tensors
    ) -> tuple[dict[str, NDArray[Any]], EncodedUpdate]:
        """The tensors of the wire, and what they are worth. What was left out of tensors that are not in this
        update is left out still.
        """
        wire: dict[str, NDArray[Any]] = {}
        written = EncodedUpdate(left={name: rest for name, rest in left.items() if name not in update})
        for name, value in update.items():
            old = self._base_of(name, value, base)
            parts, read, rest = (
                (None, value, None) if old is None else self._short(value, old, left.get(name))
            )
            wire |= {name: read} if parts is None else {_path(name, part): v for part, v in parts.items()}
            written.read[name] = read
            if rest is not None:
                written.left[name] = rest
        return wire, written

    def decode(self, body: bytes, base: Tensors, expected: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
        """On the aggregator: the tensors, to be checked as `expected`; a body of more bytes is not unpacked.

        `base` is that of the round that the update was made for. Raises TensorError, and nothing else.
        """
        if self.packing is not None:
            body = self.packing.unpack(body, self._most_plain(expected))
        wire = tensors.decode(body)
        for spec in expected:
            old = self._parameter(spec.name, base)
            if old is not None and spec.name in wire and wire[spec.name].dtype != np.float32:
                wire[spec.name] = self._long(wire, spec.name, old)
        return wire

    def most_bytes(self, expected: Sequence[TensorSpec]) -> int:
        """The most that a body of these tensors may have."""
        plain = self._most_plain(expected)
        return self.packing.most(plain) if self.packing else plain

    def payload_bytes(self, values: int, count: int, exact: int = 0) -> int:
        """Predicted: of float32 parameters, and `exact` values of 32 bits besides, in `count` tensors."""
        numbers = 4.0 * values if self.numbers is None else self.numbers.size(values)
        size = numbers + 4 * exact + NAME_BYTES * self._arrays(count)
        if self.packing is not None:
            size *= PACKED[self.delta, self.numbers.name if self.numbers else ""]
        return ceil(size)

    def _most_plain(self, expected: Sequence[TensorSpec]) -> int:
        """Before it is packed; a tensor is as it is, or shorter."""
        values = sum(spec.size * np.dtype(spec.dtype).itemsize for spec in expected)
        return values + HEADER_BYTES + TENSOR_HEADER_BYTES * self._arrays(len(expected))

    def _arrays(self, count: int) -> int:
        """That so many tensors are on the wire, at most."""
        return count * (1 + (len(self.numbers.beside) if self.numbers else 0))

    def _base_of(self, name: str, value: NDArray[Any], base: Tensors) -> NDArray[np.float32] | None:
        """What a tensor is written against, if it is to be written short."""
        old = self._parameter(name, base)
        alike = old is not None and old.shape == value.shape and value.dtype == np.float32
        return old if alike and value.size else None

    def _parameter(self, name: str, base: Tensors) -> NDArray[np.float32] | None:
        """The base's, if one of this name may be written short at all."""
        old = base.get(name)
        if not (self.delta or self.numbers) or name.endswith(STATISTICS) or old is None:
            return None
        return old if old.dtype == np.float32 else None

    def _short(
        self, value: NDArray[np.float32], base: NDArray[np.float32], left: NDArray[Any] | None
    ) -> tuple[Parts | None, NDArray[np.float32], NDArray[np.float32] | None]:
        """(its parts, what they are read as, what is left out of them); no parts: it is as it is."""
        if self.numbers is None:
            return codec.write(value, base), value, None
        before = left if left is not None and left.shape == value.shape else None
        with np.errstate(over="ignore", invalid="ignore"):
            whole = value if before is None else value + before
            if not np.isfinite(whole).all():
                return None, value, before
            change = whole - base if self.delta else whole
            parts = self.numbers.write(change) if np.isfinite(change).all() else None
            read = whole if parts is None else self._value(parts, base)
            if np.isfinite(read).all() and parts is not None:
                return parts, read, whole - read
        return None, whole, None if before is None else np.zeros_like(whole)

    def _value(self, parts: Parts, base: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raises TensorError for other parts than `_short` makes."""
        if self.numbers is None:
            return codec.read(parts, base)
        with np.errstate(over="ignore", invalid="ignore"):
            change = self.numbers.read(parts, base.shape)
            return base + change if self.delta else change

    def _long(self, wire: dict[str, NDArray[Any]], name: str, base: NDArray[np.float32]) -> NDArray[Any]:
        """The tensor of this name; the parts beside its main one are taken out. Raises TensorError."""
        beside = self.numbers.beside if self.numbers else ()
        there = {part: wire.pop(_path(name, part)) for part in beside if _path(name, part) in wire}
        parts = {MAIN: wire[name], **there}
        try:
            return self._value(parts, base)
        except TensorError as error:
            raise TensorError(f"{name} {error}") from None


@lru_cache(maxsize=64)
def named(word: str) -> Chain:
    """Of the words "delta", then "half" or "int8", then "deflate", any of them, joined by "+".

    The empty word: tensors as they are. Raises CodecError.
    """
    words = word.split("+") if word else []
    rest = list(words)
    change = rest[:1] == [codec.NAME] and bool(rest.pop(0))
    numbers = NUMBERS.get(rest[0]) if rest else None
    rest = rest[1:] if numbers else rest
    packing = PACKINGS.get(rest[0]) if rest else None
    if rest[1 if packing else 0 :]:
        raise CodecError(
            f"no codec is called {word!r}: expected some of {codec.NAME}, then {' or '.join(NUMBERS)}, then "
            f'{" or ".join(PACKINGS)}, as in "delta+int8+deflate"'
        )
    return Chain(word, change, numbers, packing)


def memory_of(kind: str, member: str) -> str:
    """Under which name a device keeps what was left out of its updates of this kind, of a member of the
    family or of the main model, "".
    """
    return f"{kind}.left.{member}" if member else f"{kind}.left"


def _path(name: str, part: str) -> str:
    """Where a part of a tensor stands on the wire."""
    return f"{name}/{part}" if part else name
