"""Random orders of events, and what the device's machine does (tests/client/modelled.py)."""

import random
from typing import Any

from tests.client.modelled import World
from tests.client.recorded import Recorder

SEEDS, STEPS = (*range(30), 87, 145, 237, 340, 483, 1169, 2477, 4476), 60
"""The last eight take ways through the machine that the others do not."""


def vectors() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed in SEEDS:
        recorder = Recorder()
        World(random.Random(seed), recorder.saw).run(STEPS)
        found |= {f"walk {seed}, life {life}": trace for life, trace in enumerate(recorder.traces, 1)}
    return found
