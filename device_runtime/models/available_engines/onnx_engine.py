"""The default engine, on ordinary ONNX Runtime, and an optional one for the package onnxruntime-training.

Both run a bundle's graphs, back-propagation included. onnxruntime-training, which its makers have
deprecated, brings the import name `onnxruntime` and excludes the ordinary package. Graphs named ort-
training.SET hold gradient operators that no other build has.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import ORT_TRAINING, Graph, Manifest
from device_runtime.models.bundles.names import RUN_BYTES
from device_runtime.models.bundles.tensors import Flat, Tensors
from device_runtime.models.bundles.weights import initialisers
from device_runtime.models.engines.base import (
    NO_EXTRAS,
    EngineWatch,
    Forward,
    Inputs,
    Labels,
    Matrix,
    batches,
    blocks,
    check_sizes,
    checked_extras,
    checked_inputs,
    checked_labels,
    copied_weights,
    even_share,
)
from device_runtime.models.engines.blocked.layers import load_blocked
from device_runtime.models.engines.onnx_layout import ConstantProbe, OptimisedProbe, optimise_layout
from device_runtime.models.engines.onnx_session import (
    BoundSession,
    LoadedGraph,
    OnnxProbe,
    ProbeGraph,
    SessionSettings,
    load_session,
    rows_beside,
)
from device_runtime.models.errors import BundleError, EngineError

logger = logging.getLogger(__name__)

FEWEST = 8
"""Least number of samples of a run in the blocked layout: fewer fill too little of a block."""


class OnnxModel:
    """A bundle on ONNX Runtime; see `base.DeviceModel`. Sessions are made when first needed, and kept.

    Inputs of any n are run in batches of at most `batch` samples, or fewer to keep live activations within
    `run_bytes`.
    """

    def __init__(
        self,
        bundle: Bundle,
        weights: Tensors | None = None,
        *,
        threads: int = 1,
        batch: int = 32,
        watch: EngineWatch | None = None,
        precision: str = "float32",
        run_bytes: int = RUN_BYTES,
    ) -> None:
        """Starts at the bundle's weights, replaced by copies of `weights` where given.

        precision: of the graph that gives logits and features, one of PRECISIONS. Raises TensorError,
        BundleError.
        """
        check_sizes(batch, threads)
        self.manifest: Manifest = bundle.manifest
        self._forward = "forward" if precision == "float32" else f"forward.{precision}"
        if self._forward not in self.manifest.graphs:
            raise BundleError(
                f"bundle {self.manifest.name} has no forward graph in {precision}; "
                f"export it with --precision {precision}"
            )
        self.batch = batch
        self._run_bytes = run_bytes
        self._bundle = bundle
        self._settings = SessionSettings(threads, watch)
        self._weights: Tensors = {}
        self._sessions: dict[str, LoadedGraph] = {}
        self._blocked: dict[str, tuple[int, LoadedGraph | None]] = {}  # by name, for a number of samples
        self._laid_out: dict[str, OptimisedProbe | None] = {}
        self._probed: dict[str, bytes] = {}
        self._outputs = {"logits": (self.manifest.outputs,), "features": (self.manifest.head.features,)}
        self._adopt(bundle.weights())
        if weights:
            self.load(weights)

    @property
    def weights(self) -> Tensors:
        """Every tensor of the model by name; neither the mapping nor the arrays can be written to."""
        return MappingProxyType(dict(self._weights))

    def load(self, weights: Tensors) -> None:
        """Copies in new values of some or all tensors; the others stay.

        Only sessions that hold a changed tensor as a constant are made again, at their next use. Existing
        probes and trainers keep their own weights. Raises TensorError if a tensor does not fit.
        """
        self._adopt(copied_weights(self.manifest, weights))

    def rows(self, graph: Graph) -> int:
        """The most samples of one run of `graph`."""
        return graph.rows(self.batch, self._run_bytes)

    def unload(self) -> None:
        """Drops the sessions and with them their memory; the next use makes them again."""
        self._sessions.clear()
        self._blocked.clear()
        self._laid_out.clear()

    def forward(self, x: Inputs) -> Forward:
        """Logits (n, classes) and features (n, width) in one pass. Raises EngineError."""
        return Forward(*self._run(self._forward, x, self._outputs))

    def logits(self, x: Inputs) -> Matrix:
        """Logits (n, classes). Raises EngineError."""
        return self._run(self._forward, x, {"logits": self._outputs["logits"]})[0]

    def features(self, x: Inputs) -> Matrix:
        """Features (n, width), the input of the head. Raises EngineError."""
        return self._run(self._forward, x, {"features": self._outputs["features"]})[0]

    def level_features(self, x: Inputs, level: str) -> Matrix:
        """The feature map at the end of a level, (n, *manifest.features[level]).

        Raises BundleError if the bundle has no graph for it, EngineError.
        """
        shapes = {str(key): shape for key, shape in self.manifest.features.items()}
        return self._run(f"features.{level}", x, {"features": shapes.get(level, ())})[0]

    def probe(self, tunable: str = "all") -> OnnxProbe | ConstantProbe:
        """The loss as a function of a tunable set, starting at `weights`. Raises BundleError, EngineError."""
        name, params = f"loss.{tunable}", self._params(tunable)
        source, graph = self._source(name), self._bundle.entry(name)
        if source.suits_constants(self.manifest):
            rows = rows_beside(4 * params.vector.size, graph, self.rows(graph))
            return ConstantProbe(self.manifest, rows, source, params, self._settings, self._optimised_layout)
        return OnnxProbe(self.manifest, self.rows(graph), self.session(name), params)

    def trainer(self, tunable: str = "all", objective: str = "train", batch: int = 0) -> "OnnxGradients":
        """The gradients of a tunable set, starting at `weights`. Raises BundleError, EngineError."""
        name = f"{objective}.{tunable}"
        self._bundle.entry(name)
        return OnnxGradients(self, name, self._params(tunable), batch)

    def _params(self, tunable: str) -> Flat:
        params = Flat(self.manifest.specs(tunable))
        params.load_part(self._weights, 0, params.vector.size)
        return params

    def _run(self, name: str, x: Inputs, outputs: Mapping[str, tuple[int, ...]]) -> list[Matrix]:
        """Runs graph `name` batch by batch; `outputs` has the shape of each output without the batch."""
        x = checked_inputs(self.manifest, x)
        loaded = self.session(name)
        results: list[Matrix] = []
        for part in batches(len(x), self.rows(loaded.graph)):
            values = loaded.run(list(outputs), {"x": self.manifest.input.as_graphs_take(x[part])})
            for (output, shape), value in zip(outputs.items(), values, strict=True):
                if value.shape[1:] != shape:
                    raise EngineError(
                        f"graph {name} gives {output} of {value.shape}, expected {('n', *shape)}"
                    )
            results = results or [np.empty((len(x), *shape), np.float32) for shape in outputs.values()]
            for result, value in zip(results, values, strict=True):
                result[part] = value
        return results or [np.empty((0, *shape), np.float32) for shape in outputs.values()]

    def session(self, name: str) -> LoadedGraph:
        """The session of a graph. Raises BundleError, EngineError."""
        if name not in self._sessions:
            onnx = self._bundle.graph(name)
            graph = self.manifest.graphs[name]
            tensors = initialisers(graph, self._weights)
            self._sessions[name] = load_session(name, graph, onnx, tensors, self._settings)
        return self._sessions[name]

    def blocked_session(self, name: str, samples: int) -> LoadedGraph | None:
        """A session in the blocked layout for exactly this many samples; None where it does not pay.

        Only the last one is kept of each graph. Raises what the watch raises.
        """
        if samples < FEWEST:
            return None
        if name not in self._blocked or self._blocked[name][0] != samples:
            self._blocked.pop(name, None)
            self._blocked[name] = samples, self._made_blocked(name, samples)
        return self._blocked[name][1]

    def _made_blocked(self, name: str, samples: int) -> LoadedGraph | None:
        graph = self.manifest.graphs[name]
        shapes = {spec.name: spec.shape for spec in self.manifest.stored()}
        shapes["x"] = self.manifest.input.shape
        tensors = initialisers(graph, self._weights), shapes
        try:
            return load_blocked(name, graph, self._bundle.graph(name), tensors, samples, self._settings)
        except (BundleError, EngineError) as error:
            logger.warning("graph %s cannot be used in the blocked layout: %s", name, error)
            return None

    def _optimised_layout(
        self, name: str, constant: Callable[[], ProbeGraph], rows: int
    ) -> OptimisedProbe | None:
        if name not in self._laid_out:
            self._laid_out[name] = optimise_layout(self.manifest, rows, constant(), self._settings)
        return self._laid_out[name]

    def _source(self, name: str) -> ProbeGraph:
        """The graph with the present weights; its file is read only once."""
        graph = self._bundle.entry(name)
        if name not in self._probed:
            self._probed[name] = self._bundle.graph(name)
        return ProbeGraph(name, graph, self._probed[name], initialisers(graph, self._weights))

    def _adopt(self, weights: Tensors) -> None:
        for value in weights.values():
            value.flags.writeable = False
        old = self._weights
        changed = {n for n, value in weights.items() if n not in old or not np.array_equal(value, old[n])}
        self._weights = {**old, **{name: weights[name] for name in changed}}
        graphs = self.manifest.graphs
        for sessions in (self._sessions, self._blocked):
            for name in [name for name in sessions if changed & graphs[name].parameters]:
                del sessions[name]


class OnnxGradients:
    """Gradients by ONNX Runtime; see `engines.base.Gradients`.

    More samples than one run takes are cut into micro-batches, whose gradients are summed. Batch statistics
    are those of a micro-batch. Runs of as many samples as expected use a graph in the blocked layout, if the
    bundle and this machine have one.
    """

    def __init__(self, model: OnnxModel, name: str, params: Flat, batch: int) -> None:
        """batch: samples of most calls, for which the blocked layout is prepared; 0: none."""
        self.params, self.grads = params, Flat(params.specs)
        self._model, self._name, self._graph = model, name, model.manifest.graphs[name]
        moved = set(self._graph.statistics)
        self.statistics = Flat([spec for spec in model.manifest.stored() if spec.name in moved])
        self.statistics.load(model.weights)
        self._next = Flat(self.statistics.specs)  # no buffer may be bound as input and as output
        self._loss = np.zeros((), np.float32)
        self._sum: np.ndarray[Any, np.dtype[np.float32]] | None = None
        self._rows = even_share(batch or model.batch, model.rows(self._graph))
        self._prepared = self._rows if batch else 0
        self._runs: dict[bool, BoundSession] = {}
        self._run(self._prepared)

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """The mean loss of the objective; leaves its gradient in `grads`."""
        arrays = checked_extras(self._graph, len(x), extras)
        if len(x) <= self._rows:
            return sum(loss for _, loss in self._losses(x, y, arrays))
        if self._sum is None:
            self._sum = np.empty_like(self.grads.vector)
        self._sum.fill(0)
        total = 0.0
        for share, loss in self._losses(x, y, arrays):
            total += share * loss
            for summed, grads in blocks(self._sum, self.grads.vector):
                np.multiply(grads, np.float32(share), out=grads)
                np.add(summed, grads, out=summed)
        np.copyto(self.grads.vector, self._sum)
        return total

    def _losses(self, x: Inputs, y: Labels, extras: Tensors) -> Iterator[tuple[float, float]]:
        """Runs batch by batch; yields each batch's share of the samples, and its mean loss."""
        x, spec = checked_inputs(self._model.manifest, x), self._model.manifest.input
        labels = checked_labels(self._model.manifest, x, y)
        rows = {extra.name for extra in self._graph.extras if extra.per_sample}
        for part in batches(len(x), self._rows):
            samples = part.stop - part.start
            run = self._run(samples)
            batch = {"x": spec.as_graphs_take(x[part]), "y": labels[part], **extras}
            for name, value in batch.items():
                run.bind_input(name, value[part] if name in rows else value)
            run.run(samples)
            np.copyto(self.statistics.vector, self._next.vector)
            yield samples / len(x), float(self._loss)

    def _run(self, samples: int) -> BoundSession:
        """The session for this many samples, with all that does not change bound to it."""
        prepared = samples == self._prepared > 0
        if prepared not in self._runs:
            loaded = self._model.blocked_session(self._name, samples) if prepared else None
            run = BoundSession(loaded or self._model.session(self._name), self.params)
            for name, view in self.statistics.views.items():
                run.bind_input(name, view)
                run.bind_output(f"next.{name}", self._next.views[name])
            run.bind_output("loss", self._loss)
            for name, view in self.grads.views.items():
                run.bind_output(f"grad.{name}", view)
            self._runs[prepared] = run
        return self._runs[prepared]


VERSION = "1.19.2"  # the last one; other versions may name their gradient operators otherwise
BUILDS = ("onnxruntime-training-cpu", "onnxruntime-training")
_ORDINARY = ("onnxruntime", "onnxruntime-gpu")  # the same import name; no two can live side by side
_INSTALL = f"in an environment without onnxruntime: pip install onnxruntime-training-cpu=={VERSION}"


def available(manifest: Manifest | None = None) -> str:
    """Why this engine cannot be used on this machine (and for this bundle, if given); empty if it can.

    Loads nothing.
    """
    builds = installed_builds()
    name, version = next(((n, v) for n, v in builds.items() if n in BUILDS), ("", ""))
    if not name:
        return f"onnxruntime-training is not installed; {_INSTALL}"
    if other := sorted(builds.keys() - {name}):
        return (
            f"{name} and {other[0]} are both installed and overwrite each other; remove both, then {_INSTALL}"
        )
    if version != VERSION:
        return f"{name} is {version}, expected {VERSION}; {_INSTALL}"
    if manifest is not None and not any(graph.startswith(f"{ORT_TRAINING}.") for graph in manifest.graphs):
        return (
            f"bundle {manifest.name} has no {ORT_TRAINING} graphs; "
            "export it where onnxruntime-training is installed"
        )
    return ""


class OrtTrainingModel(OnnxModel):
    """A bundle on onnxruntime-training; trains with graphs ort-training.SET. See `base.DeviceModel`."""

    def trainer(self, tunable: str = "all", objective: str = "train", batch: int = 0) -> OnnxGradients:
        """The gradients of a tunable set, starting at `weights`. Raises BundleError, EngineError.

        A set without an ort-training graph uses the ordinary training graph.
        """
        if objective != "train":
            raise EngineError(
                f"engine {ORT_TRAINING} trains on cross-entropy only, not with objective {objective!r}; "
                "engines onnxruntime and torch do"
            )
        params = self._params(tunable)
        name = f"{ORT_TRAINING}.{tunable}"
        kind = name if name in self.manifest.graphs else f"train.{tunable}"
        return OnnxGradients(self, kind, params, batch)


def installed_builds() -> dict[str, str]:
    """Versions by name of the packages in the folder from which `import onnxruntime` would load."""
    spec = util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return {}
    folder = str(Path(spec.origin).parent.parent)
    versions: dict[str, str] = {}
    for name in (*BUILDS, *_ORDINARY):
        for distribution in metadata.Distribution.discover(name=name, path=[folder]):
            versions[name] = distribution.version
    return versions
