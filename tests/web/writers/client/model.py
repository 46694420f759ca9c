"""Random orders of events, and what the device's machine does (tests/client/modelled.py)."""

import random
from typing import Any

from tests.client.modelled import World
from tests.client.recorded import Recorder

WALKS, STEPS = 42, 60


def vectors() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed in range(WALKS):
        recorder = Recorder()
        World(random.Random(seed), recorder.saw).run(STEPS)
        found |= {f"walk {seed}, life {life}": trace for life, trace in enumerate(recorder.traces, 1)}
    return found
