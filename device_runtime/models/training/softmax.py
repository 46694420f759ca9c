"""Softmax and what is read off it: cross-entropy, entropy, accuracy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]  # (n, classes)


@dataclass(frozen=True)
class Evaluation:
    """Figures over `num_examples` samples; the loss is the mean cross-entropy in nats."""

    eval_acc: float
    eval_loss: float
    num_examples: int


def log_softmax(logits: Matrix) -> Matrix:
    """Row by row; logits (n, classes), the result is new and of the same dtype."""
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


def accuracy_and_loss(logits: Matrix, y: NDArray[Any]) -> Evaluation:
    """Accuracy (ties go to the lower class) and mean cross-entropy; NaN for no samples."""
    if len(y) == 0:
        return Evaluation(float("nan"), float("nan"), 0)
    accuracy = float((logits.argmax(axis=1) == y).mean())
    loss = float(cross_entropy(logits, y).mean(dtype=np.float64))
    return Evaluation(accuracy, loss, len(y))
