"""What the model of a round is worth on the data set's test part."""

from __future__ import annotations

import numpy as np

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.available import open_model
from device_runtime.models.training.softmax import Evaluation, accuracy_and_loss

from .data import DataSet
from .errors import ScenarioError
from .ledger import Figures


class Evaluator:
    """Figures of every `every`-th round and of the last; see `learning.Evaluate`. 0: of none."""

    def __init__(self, bundle: Bundle, data: DataSet, every: int, rounds: int) -> None:
        """Raises TensorError for samples that the bundle does not take, ScenarioError for other labels."""
        self._every, self._rounds = every, rounds
        if not every:
            return
        manifest = bundle.manifest
        if (top := int(data.test_y.max(initial=0))) >= len(manifest.labels):
            raise ScenarioError(f"the data has label {top}, {manifest.name} has {len(manifest.labels)}")
        self._model = open_model(bundle)
        self._x, self._y = manifest.input.prepare(data.test_x), data.test_y
        self._classes = len(manifest.labels)

    def __call__(self, number: int, served: Tensors, base: Tensors) -> Figures:
        if not self._every or (number % self._every and number != self._rounds):
            return Figures()
        of_served, by_class = self._of(served)
        of_base, base_by_class = (of_served, by_class) if base is served else self._of(base)
        return Figures(of_served.eval_acc, of_served.eval_loss, of_base.eval_acc, by_class, base_by_class)

    def _of(self, weights: Tensors) -> tuple[Evaluation, tuple[float, ...]]:
        """Accuracy and loss with these weights, and the share of each class that is recognised."""
        self._model.load(weights)
        logits = self._model.logits(self._x)
        right = logits.argmax(axis=1) == self._y
        with np.errstate(invalid="ignore"):
            by_class = np.bincount(self._y, right, self._classes) / np.bincount(
                self._y, minlength=self._classes
            )
        return accuracy_and_loss(logits, self._y), tuple(by_class.tolist())
