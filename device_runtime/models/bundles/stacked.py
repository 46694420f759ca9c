"""Tensors of one of many copies, which stay on the processor that trained them until they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .tensors import NO_TENSORS, Tensors


class Copies(Protocol):
    """The tensors of k copies of one set, each (k, *shape)."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each float32 tensor of one copy."""

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Whether all values of a copy are finite, (k,)."""

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""

    @property
    def room(self) -> int:
        """Bytes of copies that may wait on this processor."""

    def fetched(self, name: str) -> NDArray[Any]:
        """The tensor of all copies in main memory, (k, *shape), kept there."""

    def squares(self, starts: Tensors) -> Mapping[str, NDArray[np.float64]]:
        """The squared distance of each copy's tensor from each of `starts`, (k,).

        A start broadcasts to the tensor. They are computed once for the same array.
        """

    def sums(self, names: Iterable[str], weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """The sum of each tensor over the copies by weight, (k,), in float64; weight 0: it does not count."""


class StackedCopy(Mapping[str, NDArray[Any]]):
    """The tensors of copy `index` of `copies`, with others beside them.

    A tensor that is read comes to main memory, with that of all other copies.
    """

    def __init__(
        self, copies: Copies, index: int, names: tuple[str, ...] = (), beside: Tensors = NO_TENSORS
    ) -> None:
        """`names`: only these tensors of the copies; empty for all."""
        self.copies, self.index, self.beside = copies, index, beside
        self.names = names or tuple(copies.shapes)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self.beside:
            return self.beside[name]
        if name not in self.names:
            raise KeyError(name)
        value: NDArray[Any] = self.copies.fetched(name)[self.index]
        return value

    def __iter__(self) -> Iterator[str]:
        yield from self.names
        yield from self.beside

    def __len__(self) -> int:
        return len(self.names) + len(self.beside)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    @property
    def finite(self) -> bool:
        """Whether the values of the copy are; those beside it are not looked at."""
        return bool(self.copies.finite[self.index])

    def outline(self, name: str) -> NDArray[Any]:
        """A tensor's shape and dtype, without its values."""
        if name in self.beside:
            return self.beside[name]
        return np.broadcast_to(np.float32(0), self.copies.shapes[name])


def outline(tensors: Tensors) -> Tensors:
    """The tensors, of which those that would have to be fetched have only their shape and dtype."""
    if isinstance(tensors, StackedCopy):
        return {name: tensors.outline(name) for name in tensors}
    return tensors


def squares(tensors: Tensors, starts: Tensors) -> dict[str, float]:
    """By tensor, the squared distance of `tensors` from `starts`, which broadcast to them."""
    squared = {}
    if isinstance(tensors, StackedCopy):
        stacked = {name: start for name, start in starts.items() if name in tensors.names}
        of_all = tensors.copies.squares(stacked)
        squared = {name: float(of_each[tensors.index]) for name, of_each in of_all.items()}
    return {
        name: squared[name] if name in squared else _squared(tensors[name], starts[name]) for name in starts
    }


BLOCK = 1 << 14
"""Values that are compared at once: they stay in a processor's cache."""


def _squared(value: NDArray[Any], start: NDArray[Any]) -> float:
    """The squared distance of a tensor from `start`, which broadcasts to it: a float64 sum, as of copies."""
    flat, total = value.reshape(-1), 0.0
    begin = (
        start.reshape(-1)
        if start.size in (1, value.size)
        else np.broadcast_to(start, value.shape).reshape(-1)
    )
    for i in range(0, len(flat), BLOCK):
        part = slice(i, i + BLOCK)
        change = (flat[part] - (begin if len(begin) == 1 else begin[part])).astype(np.float64)
        total += float(change @ change)
    return total


def with_others(tensors: Tensors, others: Tensors) -> Tensors:
    """The tensors and others of different names."""
    if isinstance(tensors, StackedCopy):
        return StackedCopy(tensors.copies, tensors.index, tensors.names, {**tensors.beside, **others})
    return {**tensors, **others}


def only(tensors: Tensors, keep: Callable[[str], bool]) -> Tensors:
    """The tensors with names that `keep` accepts."""
    if not isinstance(tensors, StackedCopy):
        return {name: value for name, value in tensors.items() if keep(name)}
    names = tuple(filter(keep, tensors.names))
    beside = {name: value for name, value in tensors.beside.items() if keep(name)}
    return StackedCopy(tensors.copies, tensors.index, names, beside) if names else beside
