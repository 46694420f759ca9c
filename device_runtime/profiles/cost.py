"""The cost model: what an update will take, before anything runs. Pure functions over dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from .device import DeviceProfile, Memory, Speed

SESSION_BYTES = 12 * 2**20
"""What an open session holds besides its graph, weights and activations (measured 1 to 11 MB)."""
GRAPH_FACTOR = 128
"""What ONNX Runtime holds of an open graph, over its file (measured 70 to 150, graphs of 6 to 66 KB)."""


class MissingGraph(LookupError):
    """Work on a graph, as "moon.bias", that the bundle does not have."""

    def __init__(self, message: str, graph: str) -> None:
        super().__init__(message)
        self.graph = graph

    @property
    def options(self) -> str:
        """Of `export`, that give a bundle the graph."""
        what, _, of = self.graph.partition(".")
        if what == "features":
            return f"--features {of}"
        return f"--tunable {of}" if what in ("train", "loss") else f"--objective {what} --tunable {of}"


@dataclass(frozen=True)
class GraphWork:
    """One graph of a bundle: operations per sample, and what a run holds beside the weights, in bytes.

    `file_bytes` is the size of its file, `rows` the most samples of one run. `held_bytes`: what an open
    session with so many in it holds; 0 where that is not known. `whole`: a run is never of fewer.
    """

    flops: float
    fixed_bytes: int
    bytes_per_sample: int
    rows: int = 32
    file_bytes: int = 0
    held_bytes: int = 0
    whole: bool = False

    @property
    def shaped_bytes(self) -> int:
        """Of an open session with a whole run in it, as its shapes say."""
        return session_bytes(self.file_bytes) + self.fixed_bytes + self.rows * self.bytes_per_sample

    def within(self, run_bytes: int) -> GraphWork:
        """In runs that hold no more than this beside the weights; one sample at least. 0 sets no limit."""
        if self.whole or not run_bytes:
            return self
        fit = (run_bytes - self.fixed_bytes) // max(1, self.bytes_per_sample)
        return replace(self, rows=max(1, min(self.rows, fit)))


@dataclass(frozen=True)
class Workload:
    """What a task asks and what data this device has for it.

    `parameters` counts values and `tensors` tensors of an update of each tunable set; `class_counts` holds
    the local samples of each class; `sample_bytes` is one prepared input; `weights_bytes` is the whole
    model, `download_bytes` what of it must still be fetched; `maps` counts the values of a feature map at
    each level that the bundle gives.
    """

    graphs: Mapping[str, GraphWork]
    parameters: Mapping[str, int]
    tensors: Mapping[str, int]
    weights_bytes: int
    download_bytes: int
    feature_width: int
    class_counts: tuple[int, ...]
    sample_bytes: int
    maps: Mapping[str, int] = field(default_factory=dict)

    def graph(self, name: str) -> GraphWork:
        """The work of one graph. Raises MissingGraph."""
        if name not in self.graphs:
            raise MissingGraph(f"needs graph {name}, the bundle has {', '.join(self.graphs)}", name)
        return self.graphs[name]

    def map_values(self, level: str) -> int:
        """How many values the feature map of a level has. Raises MissingGraph where the bundle gives none."""
        self.graph(f"features.{level}")
        return self.maps[level]

    def values(self, tunable: str) -> int:
        """How many values a tunable set trains. Raises MissingGraph where the bundle has no such set."""
        if tunable not in self.parameters:
            had = ", ".join(self.parameters)
            raise MissingGraph(f"needs tunable set {tunable}, the bundle has {had}", f"train.{tunable}")
        return self.parameters[tunable]

    @cached_property
    def samples(self) -> int:
        return sum(self.class_counts)

    @property
    def labels(self) -> int:
        return len(self.class_counts)

    @property
    def head_flops(self) -> float:
        """One sample through the linear head alone."""
        return 2.0 * self.feature_width * self.labels


@dataclass(frozen=True)
class GraphPass:
    """`samples` samples through the graph of this name, at `flops` operations each.

    `slowdown`: seconds over those that as many operations in whole batches take. `steps`: of the classifier
    alone, in as many batches.
    """

    graph: str
    samples: float
    flops: float
    slowdown: float = 1.0
    steps: float = 0.0


@dataclass(frozen=True)
class Work:
    """What one update does. `peak_bytes` is what it adds to the idle process; the wire counts payloads."""

    passes: tuple[GraphPass, ...]
    peak_bytes: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Cost:
    """Predicted for one update on one device. `seconds` covers download, compute and upload;
    `peak_memory_bytes` is the whole process; `energy_j` is modelled (load power while computing, idle
    power while waiting for the link); `flops` are the operations of all passes.
    """

    seconds: float
    compute_s: float
    peak_memory_bytes: int
    bytes_up: int
    bytes_down: int
    energy_j: float
    flops: float = 0.0


def session_bytes(file_bytes: int) -> int:
    """Of an open session of a graph whose file is so large."""
    return SESSION_BYTES + GRAPH_FACTOR * file_bytes


def activation_bytes(workload: Workload, graph: str, samples: int | None = None) -> int:
    """Peak of live activations of one run, and of the session that holds it."""
    work = workload.graph(graph)
    n = min(samples or work.rows, work.rows)
    if work.held_bytes and n == work.rows:
        return work.held_bytes
    return session_bytes(work.file_bytes) + work.fixed_bytes + n * work.bytes_per_sample


def as_measured(workload: Workload, speed: Speed) -> Workload:
    """The same, in runs as this device makes them, with what it was seen to hold."""
    held, most = speed.held_bytes, speed.run_bytes
    if not held and not most:
        return workload
    graphs = {
        name: replace(work.within(most), held_bytes=held.get(name, 0))
        for name, work in workload.graphs.items()
    }
    return replace(workload, graphs=graphs)


def of_another(speed: Speed, measured: Workload, other: Workload) -> Speed:
    """On another bundle's graphs of the same names: as fast, operation for operation; and they hold as much
    more, or less, than their shapes say.
    """
    both = measured.graphs.keys() & other.graphs.keys()
    here, there = (
        {name: load.graphs[name].within(speed.run_bytes) for name in both} for load in (measured, other)
    )
    seconds = {
        name: one * there[name].flops / max(here[name].flops, 1e-9)
        for name, one in speed.seconds.items()
        if name in both
    }
    held = {
        name: round(one * there[name].shaped_bytes / here[name].shaped_bytes)
        for name, one in speed.held_bytes.items()
        if name in both
    }
    return replace(speed, seconds=seconds, held_bytes=held)


def predict(profile: DeviceProfile, work: Work, kind: str) -> Cost:
    """What `work`, an update of this kind, costs on this device; corrected by what was measured before."""
    speed, flops = profile.speed, 0.0
    compute = sum(speed.opening.get(graph, 0.0) for graph in dict.fromkeys(one.graph for one in work.passes))
    for one in work.passes:
        compute += one.samples * one.slowdown * speed.of(one.graph, one.flops) + one.steps * speed.step_s
        flops += one.samples * one.flops
    compute *= profile.corrections.get(kind, 1.0)
    grown = round(work.peak_bytes * profile.growth.get(kind, 1.0))
    transfer = work.bytes_up / profile.bandwidth.up + work.bytes_down / profile.bandwidth.down
    return Cost(
        seconds=compute + transfer,
        compute_s=compute,
        peak_memory_bytes=profile.memory.resident_bytes + grown,
        bytes_up=work.bytes_up,
        bytes_down=work.bytes_down,
        energy_j=compute * profile.power.load_w + transfer * profile.power.idle_w,
        flops=flops,
    )


# FROM straggler: Who is a straggler: a property of device and task together (DESIGN, section 2).


@dataclass(frozen=True)
class StragglerVerdict:
    """Whether a full update does not fit, and in what respect; no reasons for a device that keeps up."""

    straggler: bool
    reasons: tuple[str, ...]


def classify(full: Cost, memory: Memory, deadline_s: float) -> StragglerVerdict:
    """Judge the predicted cost of a *full* update against the deadline and the device's memory."""
    reasons = misfits(full, memory, deadline_s)
    return StragglerVerdict(bool(reasons), reasons)


def misfits(cost: Cost, memory: Memory, deadline_s: float) -> tuple[str, ...]:
    """Why an update of this cost does not fit: the time, the memory, both, or (empty) neither."""
    reasons = []
    if cost.seconds > deadline_s:
        transfer = cost.seconds - cost.compute_s
        where = "link" if transfer > cost.compute_s else "compute"
        reasons.append(f"needs {cost.seconds:.1f} s of {deadline_s:.1f} s ({where})")
    if cost.peak_memory_bytes > memory.limit_bytes:
        reasons.append(f"needs {_mb(cost.peak_memory_bytes)} MB of {_mb(memory.limit_bytes)} MB")
    return tuple(reasons)


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}"
