"""Softmax heads in numpy, one or many at once: training on given features, loss, entropy, accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Head, Manifest
from device_runtime.models.bundles.targets import ACCURACY, metric_text, metrics_text
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec
from device_runtime.models.errors import TensorError

from .optimizer import Optimizer, Sgd

Matrix = NDArray[np.float32]  # (n, columns)
Heads = NDArray[np.float32]  # (heads, classes, inputs)
Indices = NDArray[np.integer[Any]]

WINDOW_BYTES = 4 << 20
"""Bytes of samples that are gathered for the next steps; they fit in a part of the processor's cache."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss over `num_examples` samples; the loss is the mean of the bundle's (in nats).

    eval_acc: where the loss is not of classes, the metric that the bundle's `TargetSpec.metric` names.
    metric: the name of that metric. metrics: further ones, by name; in original units.
    """

    eval_acc: float
    eval_loss: float
    num_examples: int
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The metrics for people, as "87.5% of 40 samples held out"."""
        samples = f"{self.num_examples} samples held out"
        if self.metric == ACCURACY:
            return f"{metric_text(self.metric, self.eval_acc)} of {samples}"
        more = f", {metrics_text(self.metrics)}" if self.metrics else ""
        return f"{self.metric} {metric_text(self.metric, self.eval_acc)}{more} on {samples}"


def log_softmax(logits: Matrix) -> Matrix:
    """The log-softmax of each row; logits (n, classes), the result is a new array of the same dtype."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Matrix = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def entropy(logits: Matrix) -> NDArray[np.float32]:
    """Entropy of each row's softmax in nats; logits (n, classes), result (n,)."""
    logs = log_softmax(logits)
    result: NDArray[np.float32] = -(np.exp(logs) * logs).sum(axis=1)
    return result


def cross_entropy(logits: Matrix, y: NDArray[Any]) -> NDArray[np.float32]:
    """Cross-entropy of each row in nats; logits (n, classes), y (n,) integers, result (n,)."""
    result: NDArray[np.float32] = -log_softmax(logits)[np.arange(len(y)), y]
    return result


def accuracy_and_loss(logits: Matrix, y: NDArray[Any], class_weights: Sequence[float] = ()) -> Evaluation:
    """Accuracy (ties go to the lower class) and mean cross-entropy, weighted by class; NaN for no samples."""
    if len(y) == 0:
        return Evaluation(float("nan"), float("nan"), 0)
    accuracy = float((logits.argmax(axis=1) == y).mean())
    losses = cross_entropy(logits, y)
    if class_weights:
        losses = losses * np.asarray(class_weights, np.float32)[y]
    loss = float(losses.mean(dtype=np.float64))
    return Evaluation(accuracy, loss, len(y))


class SoftmaxHead:
    """The last layer alone, trained on features computed once: logits = features @ weight.T + bias.

    Its parameters and gradients are in flat buffers, under the bundle's names: weight (classes, width), bias
    (classes,) or absent.
    """

    def __init__(self, manifest: Manifest, weights: Tensors) -> None:
        """Copies the head's parameters out of `weights`. Raises TensorError if they do not fit."""
        self._weight, self._bias = manifest.head.weight, manifest.head.bias
        classes, width = manifest.outputs, manifest.head.features
        specs = [TensorSpec(self._weight, (classes, width))]
        if self._bias is not None:
            specs.append(TensorSpec(self._bias, (classes,)))
        self.params = Flat(specs)
        self.grads = Flat(specs)
        self.params.load(weights)
        self._class_weights = np.asarray(manifest.target.class_weights, np.float32)

    def logits(self, features: Matrix) -> Matrix:
        """Logits (n, classes) of features (n, width). Raises TensorError for another width."""
        weight = self.params.views[self._weight]
        if features.ndim != 2 or features.shape[1] != weight.shape[1]:
            raise TensorError(f"features are {features.shape}, expected (n, {weight.shape[1]})")
        logits: Matrix = features @ weight.T
        if self._bias is not None:
            logits += self.params.views[self._bias]
        return logits

    def loss_and_grads(self, features: Matrix, y: NDArray[Any]) -> float:
        """Mean cross-entropy in nats, by the bundle's weights of classes; leaves the gradients in `grads`.

        features (n, width), y (n,).
        """
        logs = log_softmax(self.logits(features))
        rows = np.arange(len(y))
        of_samples = logs[rows, y]
        slope = np.exp(logs)
        slope[rows, y] -= 1
        if len(self._class_weights):
            weights = self._class_weights[y]
            of_samples = of_samples * weights
            slope *= weights[:, None]
        loss = -float(of_samples.mean(dtype=np.float64))
        slope /= np.float32(len(y))
        np.matmul(slope.T, features, out=self.grads.views[self._weight])
        if self._bias is not None:
            slope.sum(axis=0, out=self.grads.views[self._bias])
        return loss

    def train(
        self, features: Matrix, y: NDArray[Any], batches: Iterable[Indices], optimizer: Optimizer
    ) -> float:
        """One step for each batch of indices into `features`; returns the mean loss of all samples used."""
        steps = optimizer.start(self.params.vector)
        total, count = 0.0, 0
        for batch in batches:
            total += self.loss_and_grads(features[batch], y[batch]) * len(batch)
            count += len(batch)
            steps.step(self.params.vector, self.grads.vector)
        return total / count if count else float("nan")


@dataclass(frozen=True)
class HeadTrainingData:
    """The samples to train one head on.

    inputs: (n, inputs), from `inputs_of`.
    y: (n,).
    batches: the sample indices of each training step, at least one index a step.
    counted: the first step whose loss counts.
    """

    inputs: Matrix
    y: NDArray[Any]
    batches: Sequence[Indices]
    counted: int = 0


@dataclass(frozen=True)
class TrainedHeads:
    """Heads (n, classes, inputs), and the mean loss of each over the samples of the steps that count."""

    heads: Heads
    losses: NDArray[np.float64]


def inputs_of(features: Matrix, head: Head) -> Matrix:
    """The features (n, width), contiguous, followed by a column of ones if the head has a bias."""
    if head.bias is None:
        return np.ascontiguousarray(features, np.float32)
    inputs = np.ones((len(features), features.shape[1] + 1), np.float32)
    inputs[:, :-1] = features
    return inputs


def head_matrix(weights: Tensors, head: Head) -> Matrix:
    """The weight and bias of a model as one matrix (classes, inputs)."""
    if head.bias is None:
        return np.ascontiguousarray(weights[head.weight])
    return np.concatenate([weights[head.weight], weights[head.bias][:, None]], axis=1)


def split_heads(heads: Heads, head: Head) -> list[dict[str, NDArray[np.float32]]]:
    """The tensors of each head under their names in the bundle, contiguous copies."""
    if head.bias is None:
        return [{head.weight: weight.copy()} for weight in heads]
    weights, biases = np.ascontiguousarray(heads[:, :, :-1]), np.ascontiguousarray(heads[:, :, -1])
    return [{head.weight: weight, head.bias: bias} for weight, bias in zip(weights, biases, strict=True)]


def train_heads(
    start: Matrix, data: Sequence[HeadTrainingData], sgd: Sgd, clip_norm: float = 0.0
) -> TrainedHeads:
    """Trains one or more heads at once, each from `start` (classes, inputs) on its own data.

    Each head is trained as SoftmaxHead trains it, in batched products. clip_norm: the largest norm of a
    step's gradient; 0: no limit. A head's result does not depend on the other heads. Values overflow silently
    if training diverges. Memory: three matrices of the head's size for each head, four with momentum, and
    WINDOW_BYTES.
    """
    learnt = TrainedHeads(np.empty((len(data), *start.shape), np.float32), np.full(len(data), np.nan))
    alike: dict[int, list[int]] = {}
    for i, head in enumerate(data):
        alike.setdefault(_rows(head), []).append(i)
    for rows, chosen in alike.items():
        # Most steps first: then at each step, the heads that still train are the first ones.
        chosen.sort(key=lambda i: -len(data[i].batches))
        training = _Training(start, [data[i] for i in chosen], sgd, clip_norm, rows)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            training.run()
        learnt.heads[chosen], learnt.losses[chosen] = training.heads, training.mean_losses()
    return learnt


def _rows(head: HeadTrainingData) -> int:
    """The batch size to which a head's batches are padded: the largest, rounded up to three significant bits.

    It depends on this head's data alone, so that no bit of its result depends on the other heads.
    """
    longest = max((len(batch) for batch in head.batches), default=0)
    unit = 1 << max(0, longest.bit_length() - 3)
    return -(-longest // unit) * unit


class _Training:
    """Trains heads of one padded batch size; padding has weight 0. k: heads, s: steps, b: rows of a batch."""

    def __init__(
        self, start: Matrix, data: Sequence[HeadTrainingData], sgd: Sgd, clip_norm: float, rows: int
    ) -> None:
        self._data, self._sgd, self._clip_norm = data, sgd, np.float32(clip_norm)
        self.heads = np.repeat(start[None], len(data), axis=0)
        self._slopes = np.empty_like(self.heads)
        self._velocity = np.zeros_like(self.heads) if sgd.momentum else None
        lengths = [np.array([len(batch) for batch in head.batches], np.intp) for head in data]
        self._steps = np.array([len(steps) for steps in lengths])
        shape = (len(data), int(self._steps[0]), rows)
        self._rows = np.zeros(shape, np.intp)  # (k, s, b)
        self._labels = np.zeros(shape, np.intp)
        self._shares = np.zeros(shape, np.float32)
        self._losses = np.zeros(shape, np.float32)
        self._counts = np.zeros(shape, bool)
        self._which, self._rank = np.arange(len(data))[:, None], np.arange(rows)
        for k in range(len(data)):
            self._lay_out(k, lengths[k])

    def _lay_out(self, k: int, lengths: NDArray[np.intp]) -> None:
        head, steps = self._data[k], len(lengths)
        if not steps:
            return
        mask = self._rank < lengths[:, None]
        rows = np.concatenate(head.batches)
        self._rows[k, :steps][mask] = rows
        self._labels[k, :steps][mask] = head.y[rows]
        self._shares[k, :steps] = mask / lengths[:, None]
        self._counts[k, head.counted : steps] = mask[head.counted :]

    def run(self) -> None:
        """Runs all steps, one window of gathered samples at a time."""
        k, steps, batch = self._rows.shape
        inputs = self.heads.shape[2]
        window = max(1, min(steps, WINDOW_BYTES // max(1, 4 * k * batch * inputs)))
        gathered = np.empty((k, window, batch, inputs), np.float32)
        for begin in range(0, steps, window):
            end = min(begin + window, steps)
            active = self._active(begin)
            for i in range(active):
                rows, out = self._rows[i, begin:end], gathered[i, : end - begin]
                np.take(self._data[i].inputs, rows, axis=0, out=out, mode="clip")
            for step in range(begin, end):
                still = self._active(step)
                self._step(step, gathered[:still, step - begin])

    def _active(self, step: int) -> int:
        return int(np.count_nonzero(self._steps > step))

    def _step(self, step: int, x: NDArray[np.float32]) -> None:
        """One step of the first k heads; x: (k, b, inputs)."""
        k, b, _ = x.shape
        heads, sgd = self.heads[:k], self._sgd
        own = (self._which[:k], self._rank[:b], self._labels[:k, step])
        logits = np.matmul(x, heads.transpose(0, 2, 1))
        logits -= np.maximum.reduce(logits, axis=2, keepdims=True)
        chosen = logits[own]
        np.exp(logits, out=logits)
        sums = np.add.reduce(logits, axis=2, keepdims=True)
        self._losses[:k, step] = np.log(sums[:, :, 0]) - chosen
        logits /= sums
        logits[own] -= 1
        logits *= self._shares[:k, step, :, None]
        slopes = np.matmul(logits.transpose(0, 2, 1), x, out=self._slopes[:k])
        if self._clip_norm:
            norms = np.sqrt(np.einsum("kci,kci->k", slopes, slopes))
            slopes *= np.minimum(self._clip_norm / (norms + np.float32(1e-6)), np.float32(1))[:, None, None]
        if sgd.weight_decay:
            slopes += np.float32(sgd.weight_decay) * heads
        moves = slopes
        if self._velocity is not None:
            moves = self._velocity[:k]
            moves *= np.float32(sgd.momentum)
            moves += slopes
        heads -= np.multiply(moves, np.float32(sgd.lr), out=slopes)

    def mean_losses(self) -> NDArray[np.float64]:
        """The mean loss of each head, (k,); NaN if none of its steps counts."""
        counts = self._counts.sum(axis=(1, 2))
        total = np.sum(self._losses, axis=(1, 2), where=self._counts, dtype=np.float64)
        return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)
