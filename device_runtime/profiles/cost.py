"""Predicts the cost of an update before it runs, and tells whether the device is a straggler.

Pure functions over dataclasses. A straggler is a property of device and task together: a device whose full
update of the task at hand does not fit its memory or the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from .device import DeviceProfile, Memory, Speed

SESSION_BYTES = 12 * 2**20
"""Bytes of an open session in addition to its graph, weights and activations (measured 1 to 11 MB)."""
GRAPH_FACTOR = 128
"""Memory of an open graph in ONNX Runtime over its file size (measured 70 to 150, graphs of 6 to 66 KB)."""


class MissingGraph(LookupError):
    """Raised for work on a graph, such as "moon.bias", that the bundle does not have."""

    def __init__(self, message: str, graph: str) -> None:
        super().__init__(message)
        self.graph = graph

    @property
    def options(self) -> str:
        """The options of `device-runtime export` that add the graph to a bundle."""
        what, _, of = self.graph.partition(".")
        if what == "features":
            return f"--features {of}"
        return f"--tunable {of}" if what == "loss" else f"--objective {what} --tunable {of}"


@dataclass(frozen=True)
class GraphWork:
    """Work of one graph: `flops` per sample, and the memory of a run without the weights, in bytes.

    A run of n samples holds fixed_bytes + n * bytes_per_sample of activations.
    rows: most samples of one run.
    file_bytes: size of the graph's file.
    held_bytes: measured memory of an open session with a run of `rows` samples; 0 if unknown.
    whole: every run has `rows` samples, never fewer.
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
        """Bytes of an open session with a run of `rows` samples, computed from the graph's shapes."""
        return session_bytes(self.file_bytes) + self.fixed_bytes + self.rows * self.bytes_per_sample

    def within(self, run_bytes: int) -> GraphWork:
        """The same graph with `rows` lowered, to 1 at least, so that a run's activations fit `run_bytes`.

        0 sets no limit. A graph that is `whole` stays as it is.
        """
        if self.whole or not run_bytes:
            return self
        fit = (run_bytes - self.fixed_bytes) // max(1, self.bytes_per_sample)
        return replace(self, rows=max(1, min(self.rows, fit)))


@dataclass(frozen=True)
class Workload:
    """The sizes of a task's bundle, and of the samples that this device has for it.

    parameters, tensors: the number of values and of tensors in an update, by tunable set.
    weights_bytes: the size of the whole model.
    download_bytes: the size of the part of the model still to be fetched.
    class_counts: the number of local samples of each class.
    sample_bytes: the size of one prepared input.
    maps: the number of values in a feature map, by level, for the levels that the bundle gives.
    no_classes: why kinds of update that work by class do not apply to the bundle's loss; empty if they do.
    columns: the number of values that the outputs of a sample are compared with; 0 for classes.
    strata: the number of strata that statistics have in place of classes; 0 for classes.
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
    no_classes: str = ""
    columns: int = 0
    strata: int = 0

    def graph(self, name: str) -> GraphWork:
        """The work of one graph. Raises MissingGraph."""
        if name not in self.graphs:
            raise MissingGraph(f"needs graph {name}, the bundle has {', '.join(self.graphs)}", name)
        return self.graphs[name]

    def map_values(self, level: str) -> int:
        """Number of values in the feature map of a level. Raises MissingGraph if the bundle gives none."""
        self.graph(f"features.{level}")
        return self.maps[level]

    def values(self, tunable: str) -> int:
        """Number of values that a tunable set trains. Raises MissingGraph if the bundle has no such set."""
        if tunable not in self.parameters:
            had = ", ".join(self.parameters)
            raise MissingGraph(f"needs tunable set {tunable}, the bundle has {had}", f"loss.{tunable}")
        return self.parameters[tunable]

    @cached_property
    def samples(self) -> int:
        return sum(self.class_counts)

    @property
    def labels(self) -> int:
        return len(self.class_counts)

    @property
    def head_flops(self) -> float:
        """FLOPs of one sample through the linear head alone."""
        return 2.0 * self.feature_width * self.labels


@dataclass(frozen=True)
class GraphPass:
    """A pass of `samples` samples through one graph, at `flops` operations each.

    slowdown: the pass's seconds over those of the same operations in full batches.
    steps: optimizer steps of the linear classifier alone in this pass.
    """

    graph: str
    samples: float
    flops: float
    slowdown: float = 1.0
    steps: float = 0.0


@dataclass(frozen=True)
class Work:
    """The work of one update. `peak_bytes` comes on top of the idle process; up and down count payloads."""

    passes: tuple[GraphPass, ...]
    peak_bytes: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Cost:
    """The predicted cost of one update on one device.

    seconds: of download, compute and upload.
    peak_memory_bytes: of the whole process.
    energy_j: modelled: load power while computing, idle power while waiting for the link.
    flops: the operations of all passes.
    """

    seconds: float
    compute_s: float
    peak_memory_bytes: int
    bytes_up: int
    bytes_down: int
    energy_j: float
    flops: float = 0.0


def session_bytes(file_bytes: int) -> int:
    """Bytes of an open session, without activations, of a graph whose file has `file_bytes`."""
    return SESSION_BYTES + GRAPH_FACTOR * file_bytes


def activation_bytes(workload: Workload, graph: str, samples: int | None = None) -> int:
    """Peak bytes of one run's live activations and the open session; of `rows` samples if none are given."""
    work = workload.graph(graph)
    n = min(samples or work.rows, work.rows)
    if work.held_bytes and n == work.rows:
        return work.held_bytes
    return session_bytes(work.file_bytes) + work.fixed_bytes + n * work.bytes_per_sample


def with_measured_memory(workload: Workload, speed: Speed) -> Workload:
    """The workload with this device's limit on a run and its measured memory of each graph."""
    by_graph, most = speed.held_bytes, speed.run_bytes
    if not by_graph and not most:
        return workload
    graphs = {
        name: replace(work.within(most), held_bytes=by_graph.get(name, 0))
        for name, work in workload.graphs.items()
    }
    return replace(workload, graphs=graphs)


def speed_on_bundle(speed: Speed, measured: Workload, other: Workload) -> Speed:
    """The speed on another bundle, estimated from the graphs that both bundles have.

    The seconds per operation stay the same, and so does the ratio of measured memory to the memory that the
    shapes predict.
    """
    both = measured.graphs.keys() & other.graphs.keys()
    here, target = (
        {name: load.graphs[name].within(speed.run_bytes) for name in both} for load in (measured, other)
    )
    seconds = {
        name: time_s * target[name].flops / max(here[name].flops, 1e-9)
        for name, time_s in speed.seconds.items()
        if name in both
    }
    sizes = {
        name: round(size * target[name].shaped_bytes / here[name].shaped_bytes)
        for name, size in speed.held_bytes.items()
        if name in both
    }
    return replace(speed, seconds=seconds, held_bytes=sizes)


def predict(profile: DeviceProfile, work: Work, kind: str) -> Cost:
    """The cost of an update of this kind on this device, corrected by measurements of earlier rounds."""
    speed, flops = profile.speed, 0.0
    compute = sum(speed.opening.get(graph, 0.0) for graph in dict.fromkeys(p.graph for p in work.passes))
    for part in work.passes:
        compute += part.samples * part.slowdown * speed.of(part.graph, part.flops) + part.steps * speed.step_s
        flops += part.samples * part.flops
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


def with_upload(cost: Cost, bytes_up: int, profile: DeviceProfile) -> Cost:
    """The same cost with another size of the update on the wire."""
    more_s = (bytes_up - cost.bytes_up) / profile.bandwidth.up
    return replace(
        cost,
        seconds=cost.seconds + more_s,
        bytes_up=bytes_up,
        energy_j=cost.energy_j + more_s * profile.power.idle_w,
    )


@dataclass(frozen=True)
class StragglerVerdict:
    """Whether a device is a straggler, and the reasons: time, memory or both; empty if it is not."""

    straggler: bool
    reasons: tuple[str, ...]


def classify(full: Cost, memory: Memory, deadline_s: float) -> StragglerVerdict:
    """Compares the predicted cost of a *full* update with the deadline and the device's memory."""
    reasons = misfit_reasons(full, memory, deadline_s)
    return StragglerVerdict(bool(reasons), reasons)


def misfit_reasons(cost: Cost, memory: Memory, deadline_s: float) -> tuple[str, ...]:
    """The reasons why an update of this cost does not fit: time, memory, both; empty if it fits."""
    reasons = []
    if cost.seconds > deadline_s:
        transfer = cost.seconds - cost.compute_s
        where = "on the link" if transfer > cost.compute_s else "to compute"
        reasons.append(f"needs {cost.seconds:.1f} s and has {deadline_s:.1f} s (mostly {where})")
    if cost.peak_memory_bytes > memory.limit_bytes:
        reasons.append(f"needs {_mb(cost.peak_memory_bytes)} MB of {_mb(memory.limit_bytes)} MB")
    return tuple(reasons)


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}"
