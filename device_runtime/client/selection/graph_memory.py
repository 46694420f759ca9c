"""What a bundle's graphs hold while they are open: of some it was seen, of others it follows from those."""

from __future__ import annotations

from collections.abc import Mapping

from device_runtime.models.bundles.manifest import TRAINING, Graph
from device_runtime.profiles.cost import session_bytes

OFF, TRAINING_OFF = 1.0, 1.4
"""What a graph may hold over what its shapes say, and one that trains (measured 0.1 to 0.8, and 0.3 to 1.25
with batches that end in a smaller run, and a tenth more; see docs/profiling.md)."""
ALIKE, APART = 1.1, 1.3
"""Live bytes a sample that count as no fewer; and how far such graphs are apart (measured up to 1.3)."""


def held(seen: Mapping[str, int], graphs: Mapping[str, Graph], rows: Mapping[str, int]) -> dict[str, int]:
    """What each graph holds with `rows` samples in it: as seen; or else by its shapes, which are taken to be
    nearly as far off as for those of its sort (training, or not) with as many live bytes a sample, or more.
    """
    shaped = {n: session_bytes(graph.bytes) + graph.memory_bytes(rows[n]) for n, graph in graphs.items()}

    def off(name: str) -> float:
        training, live = trains(name), graphs[name].bytes_per_sample
        alike = [
            seen[other] / shaped[other]
            for other in seen
            if trains(other) == training and ALIKE * graphs[other].bytes_per_sample >= live
        ]
        usual = TRAINING_OFF if training else OFF
        most = max(alike, default=usual)
        return max(most, min(usual, APART * most))

    return {name: seen[name] if name in seen else round(off(name) * size) for name, size in shaped.items()}


def trains(graph: str) -> bool:
    """Whether a graph of this name computes gradients."""
    return graph.partition(".")[0] in TRAINING
