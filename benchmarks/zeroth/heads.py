"""Zeroth-order work on the head alone, on features that are computed once: rounds in milliseconds.

The device's own code runs (`ZerothOrder.train`); only the loss behind it is that of the head on features, in
numpy, in place of that of the whole network. `tests/test_zeroth_order_rounds.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors
from device_runtime.models.training.heads import SoftmaxHead, cross_entropy
from device_runtime.simulation.executors.batched import Features, HeadSamples
from device_runtime.simulation.executors.job import ExecutorInputs, Result, TrainingJob, run_of
from device_runtime.strategies.interface.device_half import LocalData

CACHE_BYTES = 256 << 20


class _Probe:
    """See `models.engines.base.LossProbe`."""

    def __init__(self, manifest: Manifest, weights: Tensors) -> None:
        self._head = SoftmaxHead(manifest, weights)

    @property
    def params(self) -> Flat:
        return self._head.params

    def loss(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
        """x: features (n, width)."""
        return float(cross_entropy(self._head.logits(x), y).mean(dtype=np.float64))


class _Model:
    """What `ZerothOrder.train` asks of a `models.engines.base.DeviceModel`."""

    def __init__(self, manifest: Manifest, weights: Tensors) -> None:
        self.manifest, self.weights = manifest, weights

    def probe(self, tunable: str) -> _Probe:
        if tunable != "head":
            raise ValueError(f"features are kept for tunable head, not for {tunable!r}")
        return _Probe(self.manifest, self.weights)


class Heads:
    """An executor, see `simulation.executors.job`, of kinds with a loss probe and tunable head."""

    name = "features kept"

    def __init__(self, inputs: ExecutorInputs) -> None:
        self._manifest = inputs.bundle.manifest
        self._features = Features(inputs, CACHE_BYTES)

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for job in jobs:
            base = bases[job.base]
            [samples] = self._features.of(base, [job.device])
            model: Any = _Model(self._manifest, base)
            yield job.strategy.train(model, _data(samples, self._manifest), run_of(job))

    def close(self) -> None:
        self._features.forget()


def _data(samples: HeadSamples, manifest: Manifest) -> LocalData:
    return LocalData(samples.inputs[:, : manifest.head.features], samples.y)
