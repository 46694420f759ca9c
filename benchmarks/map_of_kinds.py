"""Which kind of update does a device choose by default, by its speed and its link?

    .venv/bin/python benchmarks/map_of_kinds.py --out docs/map-of-kinds.png       # a minute

A device with the memory of a Pi 4 and 180 digits in ten classes, in rounds of 60 s of the digits task, whose
base it fetches. Left the link is ten times slower up than down, right it is as slow down as up. Above, the
task is of classes; below, of a value, with a bundle that has a part of half its width. What is printed is
each kind's share of all speeds and links. Nothing is trained.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.aggregator.tasks.feasible import with_members
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.selection.choose import MAIN, choose
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import targets_of
from device_runtime.profiles import Bandwidth, Speed, shipped
from device_runtime.simulation.report import canvas
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

COUNTS = (18,) * 10
DEADLINE_S = 60.0
SPEEDS = np.geomspace(2e6, 1e9, 20)
"""Floating-point operations a second."""
LINKS = np.geomspace(300.0, 1e5, 20)
"""Bytes a second, up."""
LINK_RATIOS = {"ten times faster down": 10.0, "as fast down": 1.0}


def chosen(task: Task, manifests: dict[str, Manifest], ratio: float) -> np.ndarray:
    """The kind that is chosen for each speed and link, "" for none, (links, speeds)."""
    loads = {member: workload(manifest, COUNTS) for member, manifest in manifests.items()}
    board, kinds = shipped("pi-4"), task.preferred(2)
    kinds_at = []
    for up in LINKS:
        for flops in SPEEDS:
            device = replace(board, speed=Speed(flops), bandwidth=Bandwidth(up, ratio * up))
            plan = choose(device, kinds, loads, DEADLINE_S)
            kinds_at.append(plan.chosen.kind if plan.chosen else "")
    return np.array(kinds_at).reshape(len(LINKS), len(SPEEDS))


def tasks() -> dict[str, tuple[Task, dict[str, Manifest]]]:
    """Default tasks by name, each with its manifests by member."""
    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    task = Task(bundle="digits-wrn-10-1")
    parts = {name: part.manifest for name, part in bundle.parts().items()}
    loss = targets_of("mse", bundle.manifest.labels)
    manifests = {MAIN: bundle.manifest, **parts}
    value = {name: msgspec.structs.replace(manifest, loss=loss) for name, manifest in manifests.items()}
    of_value = with_members(task, tuple(parts))
    return {
        "a task of classes": (with_members(task, ()), {MAIN: bundle.manifest}),
        "a task of a value": (of_value, value),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names = ("", *registry.OFFERED_KINDS)
    with canvas.look():
        figure, axes = canvas.panels(2, 2, 6.0)
        for row, (title, (task, manifests)) in enumerate(tasks().items()):
            for column, (link, ratio) in enumerate(LINK_RATIOS.items()):
                kinds = chosen(task, manifests, ratio)
                panel = np.ravel(axes)[2 * row + column]
                for kind in names:
                    panel.scatter(
                        *_places(kinds == kind), s=30, marker="s", linewidths=0, label=kind or "sits out",
                        color=canvas.kind_colour(kind or "sat out"),
                    )  # fmt: skip
                panel.set(xscale="log", yscale="log", xlabel="FLOP a second", ylabel="bytes a second up")
                panel.set(title=f"{title}, link {link}")
                counts = Counter(kinds.ravel().tolist())
                shares = ", ".join(f"{kind or 'sits out'} {counts[kind] / kinds.size:.0%}" for kind in names)
                print(f"{title}, link {link}: {shares}")
        figure.legend(*np.ravel(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(options.out, dpi=canvas.DPI)


def _places(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(mask)
    return SPEEDS[columns], LINKS[rows]


if __name__ == "__main__":
    main()
