"""One wave of jobs as its parent sees it: how it is laid out, and what was heard of it."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from device_runtime.models.bundles.tensors import Tensors

from . import packing
from .job import Job, World
from .packing import Packed
from .processes_bases import Content
from .processes_crew import Heard
from .processes_memory import Shared
from .replies import Expected

RESULTS_BYTES = 32 << 20
"""Of results that wait for their turn, about; at least two of each worker may wait."""
MOST_SLOTS = 1024


@dataclass(frozen=True)
class Running:
    """A wave: its jobs, what results consist of, what was heard of them, and who died over which.

    Result i lies in slot i % slots, of `slot_bytes`; what the device of job i kept, in one of `memory_bytes`.
    """

    jobs: Sequence[Job]
    packed: Packed
    expected: Expected
    slots: int
    slot_bytes: int
    memory_bytes: int
    heard: dict[int, Heard] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def remember(self, number: int, memories: Shared) -> None:
        """Puts what the device of a job kept where its worker looks for it."""
        start = number % self.slots * self.memory_bytes
        for spec, place in packing.places(self.packed.layout(self.packed.jobs[number])):
            memories.write(self.jobs[number].memory[spec.name], start + place)


def planned(world: World, jobs: Sequence[Job], workers: int) -> Running:
    """With room for results as they come. Raises ExecutorError, ModelError."""
    expected, packed = Expected(world), packing.pack_jobs(jobs)
    size = max(expected.size(job.strategy) for job in jobs)
    slot = size + -size % mmap.PAGESIZE
    memory = max((packing.size_of(layout) for layout in packed.layouts), default=0)
    room = RESULTS_BYTES // max(slot + memory, 1)
    slots = min(max(2 * workers + 1, min(MOST_SLOTS, room)), len(jobs))
    return Running(jobs, packed, expected, slots, slot, memory)


def contents(world: World, bases: Mapping[str, Tensors], jobs: Sequence[Job]) -> dict[str, Content]:
    """What the jobs name of `bases`."""
    members = {job.base: job.strategy.member for job in jobs}
    models = {key: Content(bases[key], world.of(member).manifest.stored()) for key, member in members.items()}
    asides = {job.aside for job in jobs if job.aside}
    return models | {key: Content(bases[key], packing.specs_of(bases[key])) for key in asides}
