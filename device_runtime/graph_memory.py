"""What a bundle's graphs hold while they are open: of some it was seen, of others it follows from those."""

from __future__ import annotations

from collections.abc import Mapping

from models.manifest import TRAINING, Graph
from profiles.cost import session_bytes

TRAINING_OFF = 1.25
"""What a training graph may hold over what its shapes say (measured 0.5 to 1.24; see docs/profiling.md)."""
ALIKE = 1.1
"""Live bytes a sample that count as no fewer."""


def held(seen: Mapping[str, int], graphs: Mapping[str, Graph], rows: Mapping[str, int]) -> dict[str, int]:
    """What each graph holds with `rows` samples in it: as seen, or what its shapes say, times as much as that
    was off for those of its sort (training, or not) which have as many live bytes a sample, or more.
    """
    shaped = {n: session_bytes(graph.bytes) + graph.memory_bytes(rows[n]) for n, graph in graphs.items()}

    def off(name: str) -> float:
        training, live = trains(name), graphs[name].bytes_per_sample
        alike = [
            seen[other] / shaped[other]
            for other in seen
            if trains(other) == training and ALIKE * graphs[other].bytes_per_sample >= live
        ]
        return max(alike, default=TRAINING_OFF if training else 1.0)

    return {name: seen[name] if name in seen else round(off(name) * size) for name, size in shaped.items()}


def trains(graph: str) -> bool:
    """Whether a graph of this name computes gradients."""
    return graph.partition(".")[0] in TRAINING
