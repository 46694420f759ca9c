"""Evaluates a model by the metrics that fit its loss, in numpy; losses and errors of single samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.engines.base import DeviceModel, Inputs

from .heads import Evaluation, Matrix, accuracy_and_loss

Vector = NDArray[np.float32]


def evaluate(model: DeviceModel, x: Inputs, y: NDArray[Any]) -> Evaluation:
    """Evaluates a model on prepared samples: x (n, *input), y as the graphs take it. NaN for no samples.

    The loss is in the units that the graphs compute in, the metrics are in original units. Raises
    EngineError.
    """
    target = model.manifest.target
    if not len(x):
        return Evaluation(float("nan"), float("nan"), 0, target.metric)
    evaluation = evaluate_outputs(target, model.logits(x), x, y)
    if not target.own:
        return evaluation
    loss = model.probe(next(iter(model.manifest.sets))).loss(x, y)
    return replace(evaluation, eval_loss=loss)


def evaluate_outputs(target: TargetSpec, outputs: Matrix, x: Inputs, y: NDArray[Any]) -> Evaluation:
    """As `evaluate`, of outputs (n, outputs) of one or more samples; an own loss counts as mse."""
    if target.compared == "classes":
        return accuracy_and_loss(outputs, y, target.class_weights)
    if target.compared == "flags":
        return _flags(target, outputs, y)
    if target.compared == "values":
        return _values(target, outputs, y)
    return _reconstruction(target, outputs, x, y)


def sample_losses(target: TargetSpec, outputs: Matrix, targets: Matrix) -> Vector:
    """The loss of each sample, (n,); outputs and targets are (n, columns). An own loss counts as mse."""
    if target.compared == "flags":
        losses = np.logaddexp(0, outputs) - outputs * targets
    else:
        off = np.abs(outputs - targets)
        bent = np.where(off <= target.delta, 0.5 * off**2, target.delta * (off - 0.5 * target.delta))
        losses = {"mae": off, "huber": bent}.get(target.loss, off**2)
    mean: Vector = losses.mean(axis=1)
    return mean


def reconstruction_errors(target: TargetSpec, outputs: Matrix, x: Inputs) -> Vector:
    """How far each prepared input x (n, *input) is from its reconstruction, by the loss, (n,)."""
    return sample_losses(target, outputs, x.reshape(len(x), -1))


def anomaly_threshold(model: DeviceModel, *parts: tuple[Inputs, NDArray[Any]]) -> float:
    """The error above which a sample is an anomaly: the bundle's quantile over normal samples, label 0.

    parts: prepared samples x and their labels y. NaN without normal samples.
    """
    target = model.manifest.target
    x = np.concatenate([x[y == 0] for x, y in parts])
    if not len(x):
        return float("nan")
    return float(np.quantile(reconstruction_errors(target, model.logits(x), x), target.quantile))


def predicted_values(target: TargetSpec, outputs: Matrix) -> Matrix:
    """The predictions of the columns in original units, (n, columns); further outputs are ignored."""
    return target.restore(outputs[:, : len(target.columns)])


def sigmoid(logits: Matrix) -> Matrix:
    """The probability of each flag."""
    result: Matrix = np.exp(-np.logaddexp(0, -logits))
    return result


def auroc(scores: NDArray[Any], positive: NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a positive sample's score is above a negative one's.

    Ties count as half. Scores and positive: (n,). NaN unless there are samples of both.
    """
    above, below = np.sort(scores[positive]), scores[~positive]
    if not len(above) or not len(below):
        return float("nan")
    less = np.searchsorted(above, below, "left") + np.searchsorted(above, below, "right")
    return float(1 - less.mean() / (2 * len(above)))


def _flags(target: TargetSpec, outputs: Matrix, y: Matrix) -> Evaluation:
    flags, true = outputs[:, : y.shape[1]] > 0, y > 0
    both = float((flags & true).sum())
    metrics = {
        "exact match": float((flags == true).all(axis=1).mean()),
        "F1": 2 * both / max(1.0, float(flags.sum() + true.sum())),
    }
    loss = float(sample_losses(target, outputs[:, : y.shape[1]], y).mean(dtype=np.float64))
    return Evaluation(float((flags == true).mean()), loss, len(y), target.metric, metrics)


def _values(target: TargetSpec, outputs: Matrix, y: Matrix) -> Evaluation:
    own = outputs[:, : y.shape[1]]
    true = target.restore(y).astype(np.float64)
    off = predicted_values(target, outputs) - true
    rmse, mae = np.sqrt((off**2).mean(axis=0)), np.abs(off).mean(axis=0)
    several = len(target.columns) > 1
    metrics = {
        f"{name} {column}" if several else name: float(value)
        for name, values in (("RMSE", rmse), ("MAE", mae))
        for column, value in zip(target.columns, values, strict=True)
    }
    loss = float(sample_losses(target, own, y).mean(dtype=np.float64))
    return Evaluation(r2(off, true), loss, len(y), target.metric, metrics)


def _reconstruction(target: TargetSpec, outputs: Matrix, x: Inputs, y: NDArray[Any]) -> Evaluation:
    """Metrics are of the normal samples, label 0, alone, but for AUROC, which needs others too."""
    errors, normal = reconstruction_errors(target, outputs, x), y == 0
    if not normal.any():
        normal = np.ones(len(y), bool)
    true = x.reshape(len(x), -1)[normal].astype(np.float64)
    metrics = {"threshold": float(np.quantile(errors[normal], target.quantile))}
    if not normal.all():
        metrics["AUROC"] = auroc(errors, ~normal)
    explained = r2((outputs[normal] - true).reshape(-1, 1), (true - true.mean(axis=0)).reshape(-1, 1))
    loss = float(errors[normal].mean(dtype=np.float64))
    return Evaluation(explained, loss, len(y), target.metric, metrics)


def r2(off: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """The coefficient of determination, 1 - sum of squared errors / sum of squares about the mean.

    The mean over the columns; a column that is constant counts as 0.
    """
    spread = ((true - true.mean(axis=0)) ** 2).sum(axis=0)
    shares = (off**2).sum(axis=0) / np.where(spread > 0, spread, 1)
    return float(np.where(spread > 0, 1 - shares, 0).mean())
