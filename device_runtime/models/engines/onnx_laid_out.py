"""A graph as ONNX Runtime optimised it for inference, with parameters that change from run to run."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec

from .base import Inputs, Labels
from .freed_memory import give_back
from .onnx_constants import with_inputs
from .onnx_layout import Initialiser, Placed, Tried, initialised, nodes, values
from .onnx_probe import OnnxProbe, Source
from .onnx_session import SessionSettings, load_session

MOST_BYTES = 16 << 20
"""Of parameters: making it holds several copies of them for a moment, which otherwise would be the peak."""


class LaidOut:
    """A session of the optimised graph whose initialisers are inputs, written from the parameters anew.

    It has every advantage of constants but is made once: folded normalisations and the processor's layout of
    kernels are a few passes over the parameters in numpy.
    """

    def __init__(self, probe: OnnxProbe, places: Mapping[str, Placed]) -> None:
        self._probe, self._places = probe, places
        self._written: Tensors = {}

    def loss(self, frozen: Tensors, params: Tensors, x: Inputs, y: Labels) -> float:
        """At these values; what is made of frozen arrays alone is written if they are others than before."""
        tensors = {**frozen, **params}
        for name, place in self._places.items():
            sources = place.value.sources
            if any(source in params or self._written.get(source) is not frozen[source] for source in sources):
                place.write(place.value.of(tensors), self._probe.params.views[name].reshape(-1))
        self._written = frozen
        return self._probe.loss(x, y)


def laid_out(manifest: Manifest, rows: int, source: Source, settings: SessionSettings) -> LaidOut | None:
    """Of a graph with constants; None where they are too many, or went where it is not known.

    The graph is optimised with random values, twice: what differs must be made of them in a known way.
    Raises EngineError, BundleError for a graph that is not allowed, and what the watch raises.
    """
    if sum(value.nbytes for value in source.frozen.values()) > MOST_BYTES:
        return None
    try:
        found = _found(source, _optimised(source, settings, seed=1))
        again = _optimised(source, settings, seed=2)
    except OSError:  # no folder for files that stay for a moment
        return None
    if not found.fits(again):
        return None
    shapes = {name: again.initialisers[name][0] for name in found.places}
    graph = msgspec.structs.replace(source.graph, trainable=tuple(shapes), frozen=())
    onnx = with_inputs(again.onnx, shapes)
    del again
    loaded = load_session(source.name, graph, onnx, {}, replace(settings, optimised=True))
    buffers = Flat([TensorSpec(name, shape) for name, shape in shapes.items()])
    give_back()
    return LaidOut(OnnxProbe(manifest, rows, loaded, buffers), found.places)


@dataclass(frozen=True)
class _Found:
    """Where parameters went, and hashes of the initialisers that are none."""

    places: Mapping[str, Placed]
    others: Mapping[str, bytes]

    def fits(self, optimised: "_Optimised") -> bool:
        """Whether it is so with other values, too: every initialiser is made as said, or is the same."""
        there = optimised.initialisers
        return (
            there.keys() == {*self.places, *self.others}
            and all(_sha(there[name]) == sha for name, sha in self.others.items())
            and all(place.holds(optimised.tensors, there[name][1]) for name, place in self.places.items())
        )


def _found(source: Source, optimised: "_Optimised") -> _Found:
    graph = nodes(source.onnx)
    tried = [Tried.of(value, optimised.tensors) for value in values(graph, source.graph.frozen)]
    places, others = {}, {}
    for name, initialiser in optimised.initialisers.items():
        total = float(initialiser[1].sum(dtype=np.float64))
        ways = (one.placed(initialiser, total) for one in tried)
        place = next((way for way in ways if way is not None), None)
        if place is None:
            others[name] = _sha(initialiser)
        else:
            places[name] = place
    return _Found(places, others)


def _sha(initialiser: Initialiser) -> bytes:
    return hashlib.sha256(initialiser[1].tobytes()).digest()


@dataclass(frozen=True)
class _Optimised:
    """A graph as ONNX Runtime optimised it, with these tensors in it."""

    onnx: bytes
    tensors: Tensors
    initialisers: Mapping[str, Initialiser]


def _optimised(source: Source, settings: SessionSettings, seed: int) -> _Optimised:
    """With random values, positive as variances are, of another size in each tensor. Raises EngineError."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: np.float32(rng.uniform(0.5, 2)) * (0.5 + rng.random(value.shape, np.float32))
        if value.dtype == np.float32
        else value
        for name, value in source.frozen.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        load_session(source.name, source.graph, source.onnx, tensors, replace(settings, save_to=str(path)))
        give_back()  # what the session held would otherwise add to the peak of what follows
        onnx = path.read_bytes()
    return _Optimised(onnx, tensors, initialised(onnx))
