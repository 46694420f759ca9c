"""Training the last layer alone, in numpy, on features computed once."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec
from device_runtime.models.errors import TensorError

from .optimizer import Optimizer
from .softmax import Matrix, log_softmax

Indices = NDArray[np.integer[Any]]


class SoftmaxHead:
    """logits = features @ weight.T + bias, with its parameters and gradients in flat buffers.

    weight: (classes, width), bias: (classes,) or absent; the names are those of the bundle.
    """

    def __init__(self, manifest: Manifest, weights: Tensors) -> None:
        """Copies the head's parameters out of `weights`. Raises TensorError if they do not fit."""
        self._weight, self._bias = manifest.head.weight, manifest.head.bias
        classes, width = len(manifest.labels), manifest.head.features
        specs = [TensorSpec(self._weight, (classes, width))]
        if self._bias is not None:
            specs.append(TensorSpec(self._bias, (classes,)))
        self.params = Flat(specs)
        self.grads = Flat(specs)
        self.params.load(weights)

    def logits(self, features: Matrix) -> Matrix:
        """features (n, width) -> (n, classes)."""
        weight = self.params.views[self._weight]
        if features.ndim != 2 or features.shape[1] != weight.shape[1]:
            raise TensorError(f"features are {features.shape}, expected (n, {weight.shape[1]})")
        logits: Matrix = features @ weight.T
        if self._bias is not None:
            logits += self.params.views[self._bias]
        return logits

    def loss_and_grads(self, features: Matrix, y: NDArray[Any]) -> float:
        """Mean cross-entropy in nats; the gradients are left in `grads`. features (n, width), y (n,)."""
        logs = log_softmax(self.logits(features))
        rows = np.arange(len(y))
        loss = -float(logs[rows, y].mean(dtype=np.float64))
        slope = np.exp(logs)
        slope[rows, y] -= 1
        slope /= np.float32(len(y))
        np.matmul(slope.T, features, out=self.grads.views[self._weight])
        if self._bias is not None:
            slope.sum(axis=0, out=self.grads.views[self._bias])
        return loss

    def train(
        self, features: Matrix, y: NDArray[Any], batches: Iterable[Indices], optimizer: Optimizer
    ) -> float:
        """One step for each batch of indices into `features`; the mean loss over all samples seen."""
        steps = optimizer.start(self.params.vector)
        total, seen = 0.0, 0
        for batch in batches:
            total += self.loss_and_grads(features[batch], y[batch]) * len(batch)
            seen += len(batch)
            steps.step(self.params.vector, self.grads.vector)
        return total / seen if seen else float("nan")
