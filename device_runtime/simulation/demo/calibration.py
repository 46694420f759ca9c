"""Measures whether this machine is fast enough for the demo's devices, before their deadline is set.

A device emulates a board by sleeping until the board would have finished. Where the machine is slower than
the board, as while others compute on it, no device meets the deadline that was set for the boards. Then all
of them emulate boards that are slower still, and the deadline is longer in the same proportion, so that each
device can send the same in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from device_runtime.device.engine.profiling import BATCH, random_samples, runnable
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles.device import Emulation, Time

WINDOW_S = 1.5
"""Seconds of one measurement."""
ROOM = 0.75
"""The share of a deadline that a full update may take.

The rest is for the margin that a device plans with, and for devices with more samples than others.
"""
SPARE = 1.5
"""How many times faster boards the machine must keep up with while it is measured.

Devices do more than train: they write, send and receive, and the aggregator merges and evaluates beside them.
"""
SCALES = (1.0, 2.0, 4.0, 8.0)
"""The factors by which the emulated boards may be slower still."""

Step = Callable[[], object]


@dataclass(frozen=True)
class DemoRound:
    """A round of the demo: the seconds that it has, and the training steps of a full update."""

    deadline_s: float
    steps: float


def scale(bundle: Bundle, boards: Sequence[tuple[str, float]], demo_round: DemoRound) -> float:
    """The factor by which all boards must be slower, so that this machine can emulate all of them at once.

    It is the first of SCALES that is enough for the machine as it is now, or the last if none is. `boards`
    are names of profiles, each with the factor by which it is slower in any case.
    """
    flops, steps, seconds = BATCH * bundle.manifest.graphs["train.all"].flops, [], []
    for name, slow in boards:
        steps.append(runnable(open_model(bundle), "train.all", *random_samples(bundle.manifest, BATCH)))
        seconds.append(flops / Emulation.of(name, slow).profile.speed.flops_per_s)
    room_s = ROOM * demo_round.deadline_s / demo_round.steps

    def keeps_up(scale: float) -> bool:
        paced = [PacedStep(step, scale * step_s / SPARE) for step, step_s in zip(steps, seconds, strict=True)]
        return in_time(seconds, stretches(paced), room_s)

    return first_kept_up(keeps_up)


def in_time(seconds: Sequence[float], stretches: Sequence[float], room_s: float) -> bool:
    """Whether all boards that need at most `room_s` for a step still do when their steps are stretched."""
    return all(s * stretch <= room_s for s, stretch in zip(seconds, stretches, strict=True) if s <= room_s)


def first_kept_up(keeps_up: Callable[[float], bool]) -> float:
    """The first of SCALES at which the machine keeps up, or the last; `keeps_up` measures at one."""
    return next((factor for factor in SCALES if keeps_up(factor)), SCALES[-1])


@dataclass(frozen=True)
class PacedStep:
    """A training step that is to take `seconds`, by sleeping after it."""

    step: Step
    seconds: float

    def stretch(self, window_s: float, on: Time) -> float:
        """How many times longer than `seconds` its steps take, measured for `window_s` seconds."""
        self.step()  # the first step also opens the graph
        began, count = on.clock(), 0
        while on.clock() - began < window_s:
            self.step()
            count += 1
            on.sleep(max(0.0, began + count * self.seconds - on.clock()))
        return (on.clock() - began) / (count * self.seconds)


def stretches(steps: Sequence[PacedStep]) -> list[float]:
    """How many times longer than it should a step of each takes.

    All run at once, each on a thread, because this machine divides its cores among threads as among
    processes.
    """
    on = Time(time.monotonic)
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(lambda step: step.stretch(WINDOW_S, on), steps))
