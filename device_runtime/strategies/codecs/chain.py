"""Composes codecs from words, as in `codec_named("delta+int8+deflate")`, and encodes updates with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.names import RUNNING_STATISTICS
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.errors import TensorError

from . import codec
from .codec import MAIN, CodecError, Deflate, Half, Int8, Numbers, Parts

NUMBERS: Mapping[str, Numbers] = {"half": Half(), "int8": Int8()}
DEFLATE = Deflate()

HEADER_BYTES = 4096
TENSOR_HEADER_BYTES = 512
"""The most bytes of safetensors' header: in all, and for each tensor besides."""
NAME_BYTES = 72
"""Typical header bytes for one tensor."""

PACKED: Mapping[tuple[bool, str], float] = {
    (False, ""): 0.93,
    (True, ""): 0.77,
    (False, "half"): 0.93,
    (True, "half"): 0.90,
    (False, "int8"): 0.90,
    (True, "int8"): 0.87,
}
"""Share of an update's bytes that deflate leaves, by (delta, numbers) before it; for predictions.

The largest that was measured on first rounds (docs/wire.md, benchmarks/codecs.py).
"""


@dataclass(frozen=True)
class RoundedUpdate:
    """The update as the aggregator will read it, and what rounding left out of it, by tensor."""

    read: dict[str, NDArray[Any]] = field(default_factory=dict)
    left: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """An encoded update: `body` is sent; `left` is what rounding left out of each tensor.

    Once this update counts, the device keeps `left` for its next update, in place of what it kept before.
    None: the codec never leaves anything out.
    """

    body: bytes
    left: Tensors | None


@dataclass(frozen=True)
class Chain:
    """A codec: shortens float32 parameters that the base has in the same shape; see `codec_named`.

    Other tensors are not changed: integers, counts, feature maps, running statistics of a normalisation. A
    parameter that cannot be shortened, because a number would overflow, or that is too small to gain
    anything, is sent as it is, plus what was left out of it before.
    """

    word: str
    delta: bool = False
    numbers: Numbers | None = None
    packing: Deflate | None = None

    @property
    def lossy(self) -> bool:
        """Whether encoding rounds, so that a device must keep what is left out."""
        return self.numbers is not None

    def encode(self, update: Tensors, base: Tensors, left: Tensors) -> Encoded:
        """On the device: encode an update that was trained from `base`; `left`: left out of the last one.

        Error feedback (Seide et al. 2014; Karimireddy et al. 2019, algorithm 1): what rounding leaves out of
        one update is added to the next. Raises TensorError for dtypes that safetensors has no name for.
        """
        wire, written = self.write(update, base, left)
        body = tensors.encode(wire)
        left_now = written.left if self.lossy else None
        return Encoded(self.packing.pack(body) if self.packing else body, left_now)

    def rounded(self, update: Tensors, base: Tensors, left: Tensors) -> RoundedUpdate:
        """As `encode` without sending: what the aggregator would read, and what is left out."""
        return self.write(update, base, left)[1]

    def write(
        self, update: Tensors, base: Tensors, left: Tensors
    ) -> tuple[dict[str, NDArray[Any]], RoundedUpdate]:
        """The tensors of the wire, and what the aggregator will read from them.

        What was left out of tensors that are not in this update stays in `left`.
        """
        wire: dict[str, NDArray[Any]] = {}
        written = RoundedUpdate(left={name: rest for name, rest in left.items() if name not in update})
        for name, value in update.items():
            old = self._base_of(name, value, base)
            parts, read, rest = (
                (None, value, None) if old is None else self._shorten(value, old, left.get(name))
            )
            wire |= {name: read} if parts is None else {_path(name, part): v for part, v in parts.items()}
            written.read[name] = read
            if rest is not None:
                written.left[name] = rest
        return wire, written

    def decode(self, body: bytes, base: Tensors, expected: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
        """On the aggregator: the tensors of a body; the caller checks that they are as `expected`.

        A body that is larger than `expected` allows is not unpacked. `base` is that of the round that the
        update was made for. Raises TensorError, and nothing else.
        """
        if self.packing is not None:
            body = self.packing.unpack(body, self._most_plain(expected))
        wire = tensors.decode(body)
        for spec in expected:
            old = self._parameter(spec.name, base)
            if old is not None and spec.name in wire and wire[spec.name].dtype != np.float32:
                wire[spec.name] = self._restore(wire, spec.name, old)
        return wire

    def most_bytes(self, expected: Sequence[TensorSpec]) -> int:
        """The most bytes of a body with these tensors."""
        plain = self._most_plain(expected)
        return self.packing.most(plain) if self.packing else plain

    def payload_bytes(self, values: int, count: int, exact: int = 0) -> int:
        """Predicted bytes of `count` tensors: `values` float32 parameters, `exact` other 32-bit values."""
        numbers = 4.0 * values if self.numbers is None else self.numbers.size(values)
        size = numbers + 4 * exact + NAME_BYTES * self._arrays(count)
        if self.packing is not None:
            size *= PACKED[self.delta, self.numbers.name if self.numbers else ""]
        return ceil(size)

    def _most_plain(self, expected: Sequence[TensorSpec]) -> int:
        """The most bytes before packing: every tensor is at most as long as unencoded."""
        values = sum(spec.size * np.dtype(spec.dtype).itemsize for spec in expected)
        return values + HEADER_BYTES + TENSOR_HEADER_BYTES * self._arrays(len(expected))

    def _arrays(self, count: int) -> int:
        """The most arrays on the wire for `count` tensors."""
        return count * (1 + (len(self.numbers.beside) if self.numbers else 0))

    def _base_of(self, name: str, value: NDArray[Any], base: Tensors) -> NDArray[np.float32] | None:
        """The base's tensor, if this one is to be shortened; None otherwise."""
        old = self._parameter(name, base)
        alike = old is not None and old.shape == value.shape and value.dtype == np.float32
        return old if alike and value.size else None

    def _parameter(self, name: str, base: Tensors) -> NDArray[np.float32] | None:
        """The base's tensor of this name, if such a tensor may be shortened; None otherwise."""
        old = base.get(name)
        if not (self.delta or self.numbers) or name.endswith(RUNNING_STATISTICS) or old is None:
            return None
        return old if old.dtype == np.float32 else None

    def _shorten(
        self, value: NDArray[np.float32], base: NDArray[np.float32], left: NDArray[Any] | None
    ) -> tuple[Parts | None, NDArray[np.float32], NDArray[np.float32] | None]:
        """(parts, their values as read, what is left out); without parts, the values are sent unshortened."""
        if self.numbers is None:
            return codec.write_delta(value, base), value, None
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
        """The values of parts. Raises TensorError for other parts than `_shorten` makes."""
        if self.numbers is None:
            return codec.read_delta(parts, base)
        with np.errstate(over="ignore", invalid="ignore"):
            change = self.numbers.read(parts, base.shape)
            return base + change if self.delta else change

    def _restore(self, wire: dict[str, NDArray[Any]], name: str, base: NDArray[np.float32]) -> NDArray[Any]:
        """The tensor of this name; removes its parts but the main one from `wire`. Raises TensorError."""
        beside = self.numbers.beside if self.numbers else ()
        others = {part: wire.pop(_path(name, part)) for part in beside if _path(name, part) in wire}
        parts = {MAIN: wire[name], **others}
        try:
            return self._value(parts, base)
        except TensorError as error:
            raise TensorError(f"{name} {error}") from None


@lru_cache(maxsize=64)
def codec_named(word: str) -> Chain:
    """The codec of a word: any of "delta", then "half" or "int8", then "deflate", joined by "+".

    With the empty word, tensors are not changed. Raises CodecError.
    """
    words = word.split("+") if word else []
    rest = list(words)
    change = rest[:1] == [codec.DELTA] and bool(rest.pop(0))
    numbers = NUMBERS.get(rest[0]) if rest else None
    rest = rest[1:] if numbers else rest
    packing = DEFLATE if rest[:1] == [DEFLATE.name] else None
    if rest[1 if packing else 0 :]:
        raise CodecError(
            f"no codec is called {word!r}: expected some of {codec.DELTA}, then {' or '.join(NUMBERS)}, then "
            f'{DEFLATE.name}, as in "delta+int8+deflate"'
        )
    return Chain(word, change, numbers, packing)


def memory_of(kind: str, member: str) -> str:
    """The name under which a device keeps what was left out of its updates of a kind.

    `member` is of the task's family; "" is the main model.
    """
    return f"{kind}.left.{member}" if member else f"{kind}.left"


def _path(name: str, part: str) -> str:
    """The name of a part of a tensor on the wire."""
    return f"{name}/{part}" if part else name
