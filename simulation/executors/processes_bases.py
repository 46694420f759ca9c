"""Base models in shared memory: one copy of each for all workers, and only what is new is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.manifest import Manifest
from models.tensors import Tensors, check

from . import packing
from .processes_memory import Shared
from .processes_worker import BasePlace


@dataclass(frozen=True)
class _Slot:
    """A base model in shared memory, and the version of each of its tensors."""

    base: Tensors
    versions: tuple[int, ...]


class BasesInMemory:
    """Where base models lie in shared memory. What is there already is not written again."""

    def __init__(self, manifest: Manifest, shared: Shared) -> None:
        self._stored = manifest.stored()
        self._size = packing.size_of(self._stored)
        self._shared = shared
        self._slots: list[_Slot] = []
        self._versions = 0

    def places(self, bases: Mapping[int, Tensors]) -> dict[int, BasePlace]:
        """Of each base model. Raises TensorError for one that is not whole."""
        held = {id(slot.base): number for number, slot in enumerate(self._slots)}
        found = {number: held[id(base)] for number, base in bases.items() if id(base) in held}
        free = [slot for slot in range(len(held) + len(bases)) if slot not in found.values()]
        for number in sorted(bases.keys() - found.keys()):
            found[number] = free.pop(0)
            self._put(found[number], bases[number])
        return {n: BasePlace(slot * self._size, self._slots[slot].versions) for n, slot in found.items()}

    def _put(self, number: int, base: Tensors) -> None:
        """Where a tensor is the same array as in another base model, its version is the same."""
        check(base, self._stored)
        names = [spec.name for spec in self._stored]
        known = {
            id(slot.base[name]): version
            for slot in self._slots
            for name, version in zip(names, slot.versions, strict=True)
        }
        fresh = iter(range(self._versions + 1, self._versions + 1 + len(names)))
        versions = tuple(known.get(id(base[name])) or next(fresh) for name in names)
        self._versions += len(names)
        before = self._slots[number].versions if number < len(self._slots) else (0,) * len(names)
        self._shared.grow((number + 1) * self._size)
        for (spec, place), old, new in zip(packing.places(self._stored), before, versions, strict=True):
            if old != new:
                self._shared.write(base[spec.name], number * self._size + place)
        self._slots[number : number + 1] = [_Slot(base, versions)]
