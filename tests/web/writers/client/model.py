"""Random orders of events, and what the device's machine does (tests/device/machine/modelled.py)."""

import random
from typing import Any

from tests.device.machine.modelled import World
from tests.device.machine.recorded import Recorder

MORE = (40, 76, 103, 190, 254, 553, 819, 1041, 1463, 1788, 6338, 23822)
"""Seeds that take ways through the machine that the first ones do not."""
SEEDS, STEPS = (*range(30), *MORE), 60
UNTIL_DONE = 23
"""A walk of a device that goes on to no other task, while there are others."""


def vectors() -> dict[str, Any]:
    traces: dict[str, Any] = {}
    for seed in SEEDS:
        recorder = Recorder()
        World(random.Random(seed), recorder.saw).run(STEPS)
        traces |= {f"walk {seed}, life {life}": trace for life, trace in enumerate(recorder.traces, 1)}
    recorder = Recorder()
    World(random.Random(UNTIL_DONE), recorder.saw, leaves=True).run(STEPS)
    return traces | {f"until done, life {life}": trace for life, trace in enumerate(recorder.traces, 1)}
