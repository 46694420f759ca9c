"""Which kind of update does a device choose by default, by its speed, its link and its memory?

    .venv/bin/pip install -e '.[networks]'                                        # torch, for the export
    .venv/bin/python benchmarks/map_of_kinds.py --out docs/map-of-kinds.png       # minutes

Devices hold 180 samples in ten classes, or of the next token, and fetch the base. The upper two rows have
the memory of a Pi 4 in rounds of 60 s: left the link is ten times slower up than down, right as slow down as
up. The first task is of classes, the second of a value, with a bundle that has a part of half its width (both
the digits' network). The lower two rows have another memory, of the whole process: left with a link of 1 MB/s
up and ten times that down, right at one speed with a link as slow down as up. The last task is a language
model that predicts the next token with a loss of its own, for which there are no class means, in rounds of
ten minutes. What is printed is each kind's share of each map. Nothing is trained.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import device_runtime as dr
from device_runtime.aggregator.tasks.feasible import trained_parts, with_members, with_possible_head
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.engine.engine_guard import run_bytes
from device_runtime.device.selection.choose import MAIN, UpdateChoice, choose
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import targets_of
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Speed, Workload, shipped
from device_runtime.simulation.report import canvas
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

SAMPLES, STEPS = 180, 20
SPEEDS, LINKS, MEMORIES = (2e6, 1e9), (300.0, 1e5), (64.0, 4096.0)
"""The ends of axes: floating-point operations a second, bytes a second up, MB."""
VOCABULARY, LENGTH, WIDTH, DEPTH = 4000, 64, 256, 6
"""Of the language model: 27 MB."""
LANGUAGE_SPEEDS, LANGUAGE_LINKS = (1e8, 1e12), (1e4, 1e7)
BOARD = shipped("pi-4")


@dataclass(frozen=True)
class MappedTask:
    """A task, the seconds of its rounds, and what its models take, by member."""

    name: str
    task: Task
    deadline_s: float
    loads: Mapping[str, Workload]

    @classmethod
    def of(cls, name: str, deadline_s: float, manifests: Mapping[str, Manifest]) -> MappedTask:
        """The task that names no kinds, for a bundle with these manifests."""
        main = manifests[MAIN]
        parts = tuple(name for name in manifests if name != MAIN)
        task = with_possible_head(with_members(Task(bundle="any"), parts), main)
        each, more = divmod(SAMPLES, len(main.labels))
        counts = tuple(each + (label < more) for label in range(len(main.labels)))
        return cls(name, task, deadline_s, {key: workload(value, counts) for key, value in manifests.items()})

    def chosen(self, device: DeviceProfile) -> str:
        """The kind that this device chooses; "" for none."""
        chosen = self._choice(device).chosen
        return chosen.kind if chosen else ""

    def least_memory(self) -> str:
        """The least memory of the process by kind, in MB, as text."""
        device = with_memory(MEMORIES[0], SPEEDS[1], *LINKS)
        costs = [(each.kind, each.cost) for each in self._choice(device).candidates if each.cost]
        least = {
            kind: min(cost.peak_memory_bytes for name, cost in costs if name == kind)
            for kind in dict.fromkeys(name for name, _ in costs)
        }
        return ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in least.items())

    def _choice(self, device: DeviceProfile) -> UpdateChoice:
        return choose(device, self.task.preferred(2), self.loads, self.deadline_s)


@dataclass(frozen=True)
class KindMap:
    """A map: a task, what its two axes are, and the device at a place (horizontal, vertical)."""

    task: MappedTask
    title: str
    horizontal: tuple[str, NDArray[np.float64]]
    vertical: tuple[str, NDArray[np.float64]]
    device: Callable[[float, float], DeviceProfile]

    def kinds(self) -> NDArray[np.str_]:
        """The kind that is chosen at each place, (vertical, horizontal)."""
        rows = [[self.task.chosen(self.device(x, y)) for x in self.horizontal[1]] for y in self.vertical[1]]
        return np.array(rows)


def scale(label: str, ends: tuple[float, float]) -> tuple[str, NDArray[np.float64]]:
    """An axis: its label and its places."""
    return label, np.geomspace(*ends, STEPS)


def with_memory(megabytes: float, flops: float, up: float, down: float) -> DeviceProfile:
    """A Pi 4 whose process may have so much memory, at this speed and link."""
    memory = Memory(BOARD.memory.total_bytes, int(1e6 * megabytes), BOARD.memory.resident_bytes)
    run = run_bytes(memory.limit_bytes - memory.resident_bytes)
    speed = Speed(flops, run_bytes=run)
    return replace(BOARD, memory=memory, speed=speed, bandwidth=Bandwidth(up, down))


def by_speed_and_link(task: MappedTask, link: str, ratio: float) -> KindMap:
    """With the board's memory, and a link that is `ratio` times faster down than up."""
    return KindMap(
        task,
        f"{task.name}, link {link}",
        scale("FLOP a second", SPEEDS),
        scale("bytes a second up", LINKS),
        lambda flops, up: replace(BOARD, speed=Speed(flops), bandwidth=Bandwidth(up, ratio * up)),
    )


def by_memory(
    task: MappedTask, speeds: tuple[float, float], links: tuple[float, float]
) -> tuple[KindMap, KindMap]:
    """By speed and memory with a wide link, and by link and memory at the highest of these speeds."""
    memory = scale("memory, MB", MEMORIES)
    return (
        KindMap(
            task,
            f"{task.name}, link of 1 MB/s",
            scale("FLOP a second", speeds),
            memory,
            lambda flops, megabytes: with_memory(megabytes, flops, 1e6, 1e7),
        ),
        KindMap(
            task,
            f"{task.name}, {speeds[1]:.0e} FLOP/s".replace("e+0", "e").replace("e+", "e"),
            scale("bytes a second, up and down", links),
            memory,
            lambda link, megabytes: with_memory(megabytes, speeds[1], link, link),
        ),
    )


def language_model() -> Manifest:
    """The manifest of an OPT that predicts the next token, by a loss of its own; random weights."""
    import torch

    from device_runtime.models.networks.transformers import opt

    def next_token(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    torch.manual_seed(0)
    network = opt(VOCABULARY, VOCABULARY, LENGTH, WIDTH, DEPTH, heads=4)
    tokens = InputSpec((LENGTH,), dtype="int64", vocabulary=VOCABULARY)
    labels = [f"token {number}" for number in range(VOCABULARY)]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "next-token"
        bundle = dr.export(network, target, input=tokens, labels=labels, loss=next_token, targets="classes")
        return bundle.manifest


def maps() -> list[KindMap]:
    """All maps, from left to right and from above."""
    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    parts = {name: part.manifest for name, part in bundle.parts().items()}
    loss = targets_of("mse", bundle.manifest.labels)
    value = {
        name: msgspec.structs.replace(manifest, loss=loss)
        for name, manifest in {MAIN: bundle.manifest, **parts}.items()
    }
    trained = {name: parts[name] for name in trained_parts(Task(bundle="any"), bundle)}
    classes = MappedTask.of("a task of classes", 60.0, {MAIN: bundle.manifest, **trained})
    values = MappedTask.of("a task of a value", 60.0, value)
    language = MappedTask.of("a language model", 600.0, {MAIN: language_model()})
    links = {"ten times faster down": 10.0, "as fast down": 1.0}
    return [
        *(
            by_speed_and_link(task, link, ratio)
            for task in (classes, values)
            for link, ratio in links.items()
        ),
        *by_memory(classes, SPEEDS, LINKS),
        *by_memory(language, LANGUAGE_SPEEDS, LANGUAGE_LINKS),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names, every = ("", *registry.OFFERED_KINDS), maps()
    with canvas.look():
        figure, axes = canvas.panels(len(every) // 2, 2, 1.5 * len(every))
        for panel, kind_map in zip(np.ravel(axes), every, strict=True):
            kinds, (below, across), (beside, up) = kind_map.kinds(), kind_map.horizontal, kind_map.vertical
            for kind in names:
                rows, columns = np.nonzero(kinds == kind)
                panel.scatter(
                    across[columns], up[rows], s=30, marker="s", linewidths=0, label=kind or "sits out",
                    color=canvas.kind_colour(kind or "sat out"),
                )  # fmt: skip
            panel.set(xscale="log", yscale="log", xlabel=below, ylabel=beside, title=kind_map.title)
            counts = Counter(kinds.ravel().tolist())
            shares = ", ".join(f"{kind or 'sits out'} {counts[kind] / kinds.size:.0%}" for kind in names)
            print(f"{kind_map.title} ({below}; {beside}): {shares}")
        for task in {kind_map.task.name: kind_map.task for kind_map in every}.values():
            print(f"{task.name} takes at least: {task.least_memory()}")
        figure.legend(*np.ravel(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(options.out, dpi=canvas.DPI)


if __name__ == "__main__":
    main()
