"""Base models in shared memory: one copy of each for all workers, and only what is new is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from device_runtime.models.bundles.tensors import Tensors, check

from . import packing
from .packing import Layout
from .processes_memory import Shared
from .processes_worker import BasePlace


@dataclass(frozen=True)
class Content:
    """A base model, or what is sent beside one, and what it must consist of."""

    tensors: Tensors
    layout: Layout


@dataclass(frozen=True, eq=False)
class _Slot:
    """`room` bytes of shared memory from `start` on; what lies there, and the version of each tensor."""

    start: int
    room: int
    content: Content
    versions: tuple[int, ...]

    @property
    def place(self) -> BasePlace:
        return BasePlace(self.start, self.versions, self.content.layout)


class BasesInMemory:
    """Where base models lie in shared memory. What is there already is not written again."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._slots: list[_Slot] = []
        self._versions = 0

    def places(self, contents: Mapping[str, Content]) -> dict[str, BasePlace]:
        """Of each, by the same keys. Raises TensorError for one that is not whole."""
        held = {id(slot.content.tensors): slot for slot in self._slots}
        found = {key: held[id(new.tensors)] for key, new in contents.items() if id(new.tensors) in held}
        for key in sorted(contents.keys() - found.keys()):
            found[key] = self._put(contents[key], found.values())
        return {key: slot.place for key, slot in found.items()}

    def _put(self, new: Content, taken: Iterable[_Slot]) -> _Slot:
        """Where a tensor is the same array as in another slot, its version is the same."""
        check(new.tensors, new.layout)
        names = [spec.name for spec in new.layout]
        known = {
            id(slot.content.tensors[spec.name]): version
            for slot in self._slots
            for spec, version in zip(slot.content.layout, slot.versions, strict=True)
        }
        fresh = iter(range(self._versions + 1, self._versions + 1 + len(names)))
        versions = tuple(known.get(id(new.tensors[name])) or next(fresh) for name in names)
        self._versions += len(names)
        old = self._spare(new.layout, {id(slot) for slot in taken})
        slot = _Slot(old.start, old.room, new, versions) if old else self._beyond(new, versions)
        kept = old is not None and old.content.layout == new.layout
        before = old.versions if old is not None and kept else (0,) * len(names)
        for (spec, place), was, version in zip(packing.places(new.layout), before, versions, strict=True):
            if was != version:
                self._shared.write(new.tensors[spec.name], slot.start + place)
        self._slots = [*(one for one in self._slots if one is not old), slot]
        return slot

    def _spare(self, layout: Layout, taken: set[int]) -> _Slot | None:
        """A slot that is not needed now: best with tensors of the same shapes, else a small one."""
        free = [slot for slot in self._slots if id(slot) not in taken]
        alike = next((slot for slot in free if slot.content.layout == layout), None)
        size = packing.size_of(layout)
        return alike or min((slot for slot in free if slot.room >= size), key=lambda s: s.room, default=None)

    def _beyond(self, new: Content, versions: tuple[int, ...]) -> _Slot:
        """In new memory, after all others."""
        start = max((slot.start + slot.room for slot in self._slots), default=0)
        room = packing.size_of(new.layout)
        self._shared.grow(start + room)
        return _Slot(start, room, new, versions)
