"""How jobs, base models and results lie in bytes: MessagePack and aligned tensors, nothing pickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Kind
from device_runtime.models.bundles.tensors import ALIGNMENT, Tensors, TensorSpec
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies import registry
from device_runtime.strategies.kind import AnyStrategy

from .job import Job

Layout = tuple[TensorSpec, ...]
"""Tensors as they lie one after another; see `places`."""


class PackedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `Job` whose strategy is number `strategy` among the kinds that are packed beside it.

    Its memory lies elsewhere, as number `memory` of the layouts says; -1: there is none.
    """

    device: int
    name: str
    strategy: int
    seed: int
    base: str
    memory: int = -1
    aside: str = ""
    rare: tuple[int, ...] = ()


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Jobs; each different strategy once, as it stands in an offer, and each different layout of memory."""

    jobs: tuple[PackedJob, ...]
    kinds: tuple[Kind, ...]
    layouts: tuple[Layout, ...]

    def layout(self, job: PackedJob) -> Layout:
        """Of its memory."""
        return self.layouts[job.memory] if job.memory >= 0 else ()


pack = msgspec.msgpack.Encoder().encode


def pack_jobs(jobs: Sequence[Job]) -> Packed:
    """The jobs without their memory, and what they point to.

    Raises ExecutorError for a strategy that another process would not read as the same.
    """
    numbers: dict[int, int] = {}  # by identity of the strategy, which the jobs keep alive
    kinds: dict[tuple[str, bytes], int] = {}
    layouts: dict[Layout, int] = {}
    packed = []
    for job in jobs:
        if id(job.strategy) not in numbers:
            kind = _written(job.strategy)
            numbers[id(job.strategy)] = kinds.setdefault((kind.name, bytes(kind.settings)), len(kinds))
        memory = layouts.setdefault(specs_of(job.memory), len(layouts)) if job.memory else -1
        number = numbers[id(job.strategy)]
        packed.append(
            PackedJob(job.device, job.name, number, job.seed, job.base, memory, job.aside, job.rare)
        )
    written = (Kind(name, msgspec.Raw(settings)) for name, settings in kinds)
    return Packed(tuple(packed), tuple(written), tuple(layouts))


def unpack_job(packed: PackedJob, strategy: AnyStrategy, memory: Tensors) -> Job:
    """With the strategy of the kind that it points to, and its memory."""
    return Job(
        packed.device, packed.name, strategy, packed.seed, packed.base, memory, packed.aside, packed.rare
    )


def size_of(specs: Iterable[TensorSpec]) -> int:
    """Bytes of these tensors, each of which begins at a multiple of 64 bytes."""
    return sum(_padded(spec) for spec in specs)


def places(specs: Iterable[TensorSpec]) -> Iterator[tuple[TensorSpec, int]]:
    """Each tensor with the byte that it begins at."""
    start = 0
    for spec in specs:
        yield spec, start
        start += _padded(spec)


def views(buffer: Any, specs: Iterable[TensorSpec], start: int = 0) -> dict[str, NDArray[Any]]:
    """The tensors that lie in `buffer` from byte `start` on; they share its memory."""
    return {
        spec.name: np.frombuffer(buffer, spec.dtype, spec.size, start + place).reshape(spec.shape)
        if spec.size
        else np.empty(spec.shape, spec.dtype)
        for spec, place in places(specs)
    }


def specs_of(tensors: Tensors) -> Layout:
    """As they are, in their order."""
    return tuple(TensorSpec(name, value.shape, value.dtype.name) for name, value in tensors.items())


def joined(tensors: Tensors) -> NDArray[np.uint8]:
    """All tensors one after another, as `places` says, in one new array of bytes."""
    specs = specs_of(tensors)
    whole = np.zeros(size_of(specs), np.uint8)
    for spec, start in places(specs):
        flat = np.ascontiguousarray(tensors[spec.name]).reshape(-1).view(np.uint8)
        whole[start : start + flat.size] = flat
    return whole


def _written(strategy: AnyStrategy) -> Kind:
    kind = registry.write(strategy)
    try:
        same = registry.read(kind) == strategy
    except registry.KindError:
        same = False
    if not same:
        raise ExecutorError(f"other processes do not know {strategy}; only executor plain can train it")
    return kind


def _padded(spec: TensorSpec) -> int:
    size = np.dtype(spec.dtype).itemsize * prod(spec.shape)
    return size + -size % ALIGNMENT
