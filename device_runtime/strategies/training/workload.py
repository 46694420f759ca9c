"""The workload and work of training, for the cost model, from a bundle and the local data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.engines.base import BLOCK
from device_runtime.profiles import GraphPass, GraphWork, Work, Workload
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies.codecs import chain as codecs

ENVELOPE_BYTES = 120
"""Bytes of a contribution's message and topic around its tensors (measured; see docs/wire.md)."""
SINGLE_SAMPLE_SLOWDOWN = 5.0
"""How many times longer a sample takes alone than in a batch of 32.

Measured: WRN-10-1 at 8x8, ONNX Runtime on one core, clipping and noise included: 5.0 for set all, 8.4 for
mid, 5.4 for head.
"""


def workload(manifest: Manifest, class_counts: tuple[int, ...], batch: int = 32) -> Workload:
    """The workload of this bundle on data with these class counts, in batches of up to `batch` samples."""
    sent = {name: (*manifest.specs(name), *manifest.statistics(name)) for name in manifest.sets}
    return Workload(
        graphs={
            name: GraphWork(
                graph.flops,
                graph.memory_bytes(0),
                graph.memory_bytes(1) - graph.memory_bytes(0),
                graph.rows(batch),
                graph.bytes,
                whole=bool(graph.statistics),
            )
            for name, graph in manifest.graphs.items()
        },
        parameters={name: sum(spec.size for spec in specs) for name, specs in sent.items()},
        tensors={name: len(specs) for name, specs in sent.items()},
        weights_bytes=sum(np.dtype(spec.dtype).itemsize * spec.size for spec in manifest.stored()),
        download_bytes=manifest.weights.bytes,
        feature_width=manifest.head.features,
        class_counts=class_counts,
        sample_bytes=np.dtype(manifest.input.dtype).itemsize * prod(manifest.input.shape),
        maps={level: prod(shape) for level, shape in manifest.features.items() if level != "head"},
        no_classes=manifest.target.why_not_by_class,
        columns=manifest.columns,
        strata=manifest.strata if manifest.columns else 0,
    )


def head_specs(manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The parameters of the linear head alone."""
    names = {manifest.head.weight, manifest.head.bias}
    return tuple(spec for spec in manifest.stored() if spec.name in names)


def too_few_of_each(load: Workload, smallest: int) -> str:
    """Why nothing can be sent by class if a class needs `smallest` samples; empty if something can."""
    most = max(load.class_counts, default=0)
    return "" if most >= smallest else f"needs {smallest} samples of a class, the largest here has {most}"


def passes(load: Workload, **samples: float) -> tuple[GraphPass, ...]:
    """Passes of samples through graphs: `passes(load, forward=100, train_mid=250)`."""
    named = [(name.replace("_", ".", 1), count) for name, count in samples.items()]
    return tuple([GraphPass(graph, count, load.graph(graph).flops) for graph, count in named])


def upload_bytes(values: int, tensors: int, codec: str = "", exact: int = 0) -> int:
    """Bytes on the wire of `values` float32 parameters in `tensors` tensors, with header and envelope.

    `exact`: the number of further float32 or int32 values in the tensors, which the codec does not change.
    """
    return codecs.codec_named(codec).payload_bytes(values, tensors, exact) + ENVELOPE_BYTES


@dataclass(frozen=True)
class Training:
    """SGD on a tunable set over `trained` samples in all, after a forward pass over `scored` samples.

    copies: extra vectors of the set's size in memory.
    singly: samples are run one by one, as in private training.
    codec: the codec of the update.
    more_bytes: memory in addition to all that.
    """

    tunable: str
    trained: float
    scored: float = 0.0
    batch: int = 32
    objective: str = "train"
    copies: int = 0
    singly: bool = False
    codec: str = ""
    more_bytes: int = 0


def work_of_training(load: Workload, training: Training) -> Work:
    """The work of training.

    Memory: weights, gradients and momentum of the set, and summed gradients if a batch takes several runs;
    the optimiser's block; the model itself; a run's activations, and those of the forward pass that scored,
    whose session stays open; the data, and a batch drawn from it.
    """
    tunable, name = training.tunable, f"{training.objective}.{training.tunable}"
    values, graph = load.values(tunable), load.graph(name)
    forward = passes(load, forward=training.scored) if training.scored else ()
    slowdown = SINGLE_SAMPLE_SLOWDOWN if training.singly else 1.0
    rows = 1 if training.singly else training.batch
    vectors = 3 + training.copies + (rows > graph.rows)
    set_bytes = 4 * (vectors * values + BLOCK)
    data_bytes = (load.samples + min(training.batch, load.samples)) * load.sample_bytes
    memory_bytes = set_bytes + 2 * load.weights_bytes + data_bytes + training.more_bytes
    if training.scored:
        memory_bytes += activation_bytes(load, "forward")
    return Work(
        passes=(*forward, GraphPass(name, training.trained, graph.flops, slowdown)),
        peak_bytes=memory_bytes + activation_bytes(load, name, rows),
        bytes_up=upload_bytes(values, load.tensors[tunable], training.codec),
        bytes_down=load.download_bytes,
    )


def forward_work(load: Workload, samples: int, values_up: int, codec: str = "") -> Work:
    """The work of computing and keeping features of `samples` samples, and sending `values_up` float32."""
    features = 4 * load.feature_width * samples
    memory_bytes = 2 * load.weights_bytes + load.samples * load.sample_bytes + features
    return Work(
        passes=passes(load, forward=samples),
        peak_bytes=memory_bytes + activation_bytes(load, "forward"),
        bytes_up=upload_bytes(values_up, 2, codec),
        bytes_down=load.download_bytes,
    )
