"""Further metrics of a model, by name for every loss, and by functions of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.targets import Compared, TargetSpec
from device_runtime.models.engines.base import DeviceModel, Inputs
from device_runtime.models.errors import ExportError, ModelError, one_line
from device_runtime.models.networks.own import own_function, raised_at, source_of

from .evaluation import auroc, predicted_values, r2, reconstruction_errors
from .heads import Matrix, log_softmax

Metric = str | Callable[..., Any]
"""A metric: its name, FILE.py:NAME, or a function of the user's own."""
Predict = Callable[[Inputs], Matrix]
"""From prepared inputs (n, *input) to predictions, as `predictions` gives them."""


class MetricError(ModelError):
    """A metric that is unknown, does not fit the bundle's loss, or fails."""


@dataclass(frozen=True)
class Predictions:
    """What a metric is computed from: outputs (n, outputs) of prepared x (n, *input), and targets y."""

    target: TargetSpec
    outputs: Matrix
    x: Inputs
    y: NDArray[Any]

    @property
    def logits(self) -> Matrix:
        """The outputs that stand for targets, (n, columns); of classes all."""
        columns = len(self.target.columns)
        return self.outputs[:, :columns] if columns else self.outputs

    @property
    def off(self) -> NDArray[np.float64]:
        """Predictions less targets in original units, (n, columns)."""
        return (predicted_values(self.target, self.outputs) - self.target.restore(self.y)).astype(np.float64)


@dataclass(frozen=True)
class NamedMetric:
    """A metric of bundles that compare outputs with `compared`. `higher`: the higher, the better."""

    compared: tuple[Compared, ...]
    compute: Callable[[Predictions], Any]
    higher: bool = True


def confusion_matrix(of: Predictions) -> NDArray[np.int64]:
    """How many samples of each class (row) are taken for each class (column), (classes, classes)."""
    classes = of.outputs.shape[1]
    pairs = np.bincount(of.y * classes + of.outputs.argmax(axis=1), minlength=classes**2)
    matrix: NDArray[np.int64] = pairs.reshape(classes, classes)
    return matrix


def _by_class(of: Predictions) -> NDArray[np.float64]:
    """True positives, predicted and true samples of each class that has any of these, (3, classes)."""
    matrix = confusion_matrix(of)
    counts = np.array([matrix.diagonal(), matrix.sum(axis=0), matrix.sum(axis=1)], np.float64)
    return counts[:, counts[1:].any(axis=0)]


def _macro(of: Predictions, times: int, *denominators: int) -> float:
    """The mean over classes of a ratio; 0 where its denominator is."""
    counts = _by_class(of)
    below = sum(counts[place] for place in denominators)
    return float((times * counts[0] / np.maximum(below, 1)).mean()) if counts.size else float("nan")


def _top(count: int) -> Callable[[Predictions], float]:
    def accuracy(of: Predictions) -> float:
        rank = (of.outputs > of.outputs[np.arange(len(of.y)), of.y][:, None]).sum(axis=1)
        return float((rank < count).mean())

    return accuracy


def _auroc(of: Predictions) -> float:
    """The mean area over classes or flags that have samples of both sides; of anomalies, by their error."""
    if of.target.compared == "input":
        return auroc(reconstruction_errors(of.target, of.outputs, of.x), of.y != 0)
    is_flags = of.target.compared == "flags"
    scores = of.logits if is_flags else log_softmax(of.outputs)
    true = of.y > 0 if is_flags else of.y[:, None] == np.arange(scores.shape[1])
    areas = [auroc(scores[:, place], true[:, place]) for place in range(scores.shape[1])]
    measured = [area for area in areas if area == area]
    return float(np.mean(measured)) if measured else float("nan")


def _flags_f1(of: Predictions) -> float:
    flags, true = of.logits > 0, of.y > 0
    both, either = (flags & true).sum(axis=0), flags.sum(axis=0) + true.sum(axis=0)
    return float((2 * both / np.maximum(either, 1)).mean())


def _f1(of: Predictions) -> float:
    return _flags_f1(of) if of.target.compared == "flags" else _macro(of, 2, 1, 2)


NAMED: Mapping[str, NamedMetric] = {
    "accuracy": NamedMetric(("classes",), _top(1)),
    "top-5": NamedMetric(("classes",), _top(5)),
    "f1-macro": NamedMetric(("classes", "flags"), _f1),
    "precision-macro": NamedMetric(("classes",), lambda of: _macro(of, 1, 1)),
    "recall-macro": NamedMetric(("classes",), lambda of: _macro(of, 1, 2)),
    "auroc": NamedMetric(("classes", "flags", "input"), _auroc),
    "r2": NamedMetric(("values",), lambda of: r2(of.off, of.target.restore(of.y).astype(np.float64))),
    "mae": NamedMetric(("values",), lambda of: float(np.abs(of.off).mean()), higher=False),
    "rmse": NamedMetric(("values",), lambda of: float(np.sqrt((of.off**2).mean())), higher=False),
    "exact-match": NamedMetric(
        ("flags",), lambda of: float(((of.logits > 0) == (of.y > 0)).all(axis=1).mean())
    ),
    "confusion-matrix": NamedMetric(("classes",), confusion_matrix),
}
"""The metrics by name; `top-K` has any whole number K. Macro: the mean over classes, each counts as one."""


def predictions(target: TargetSpec, outputs: Matrix) -> Matrix:
    """What functions of the user's own are given, (n, columns).

    Logits of classes and flags, predictions of values in original units, reconstructed inputs.
    """
    if target.compared == "values":
        return predicted_values(target, outputs)
    return outputs[:, : len(target.columns)] if target.columns else outputs


class FurtherMetrics:
    """Metrics for one bundle's loss, by name or FILE.py:NAME.

    A function of the user's own takes predictions (`predictions`) and targets in original units, or, to
    evaluate in its own way, `predict`, prepared inputs and these targets. It returns a number, or numbers by
    name. Raises MetricError for a metric that is unknown or does not fit the loss.
    """

    def __init__(self, sources: Sequence[str], target: TargetSpec) -> None:
        self._target = target
        self._named = {name: _named(name, target) for name in sources if ":" not in name}
        own = {source: _own(source) for source in sources if ":" in source}
        self._own = {
            source: function for source, function in own.items() if _parameters(source, function) == 2
        }
        self._evaluations = {source: own[source] for source in own.keys() - self._own.keys()}

    def of_outputs(self, outputs: Matrix, x: Inputs, y: NDArray[Any]) -> dict[str, Any]:
        """Those that need outputs (n, outputs) alone; x, y as the graphs take them. Raises MetricError."""
        of = Predictions(self._target, outputs, x, y)
        figures = {name: metric.compute(of) for name, metric in self._named.items()}
        predicted, true = predictions(self._target, outputs), self._target.raw(y)
        for source, function in self._own.items():
            figures |= _figures(source, partial(function, predicted, true))
        return figures

    def of_model(self, model: DeviceModel, x: Inputs, y: NDArray[Any]) -> dict[str, Any]:
        """The figures of functions that evaluate the loaded model in their own way. Raises MetricError."""

        def predict(inputs: Inputs) -> Matrix:
            return predictions(self._target, model.logits(inputs))

        figures: dict[str, Any] = {}
        for source, function in self._evaluations.items():
            figures |= _figures(source, partial(function, predict, x, self._target.raw(y)))
        return figures

    def of(self, model: DeviceModel, x: Inputs, y: NDArray[Any]) -> dict[str, Any]:
        """All of them, for the loaded model. Raises MetricError, EngineError."""
        if not self._named and not self._own:
            return self.of_model(model, x, y)
        return self.of_outputs(model.logits(x), x, y) | self.of_model(model, x, y)

    @property
    def tables(self) -> tuple[str, ...]:
        """Those that are no single number."""
        return tuple(name for name in self._named if name == "confusion-matrix")


def metric_source(metric: Metric) -> AbstractContextManager[str]:
    """Names a metric for this process, until the `with` ends (`own.source_of`). Raises MetricError."""
    if not isinstance(metric, str) and not callable(metric):
        raise MetricError(f"metrics has {metric!r}, expected names, FILE.py:NAME, or functions")
    return source_of(metric)


def higher_is_better(name: str) -> bool | None:
    """Whether a higher value of a named metric is the better one; None for one of the user's own."""
    metric = NAMED.get("top-5" if name.startswith("top-") else name)
    return None if metric is None else metric.higher


def _named(name: str, target: TargetSpec) -> NamedMetric:
    head, dash, count = name.partition("top-")
    metric = NAMED.get(name)
    if metric is None and dash and not head and count.isdecimal() and int(count):
        metric = NamedMetric(("classes",), _top(int(count)))
    fitting = ", ".join(other for other, each in NAMED.items() if target.compared in each.compared)
    hint = f"expected one of {fitting}, or a function of one's own as FILE.py:NAME"
    if metric is None:
        raise MetricError(f"there is no metric {name!r}: {hint}")
    if target.compared not in metric.compared:
        raise MetricError(f"metric {name} is of {' and '.join(metric.compared)}, and the loss is "
                          f"{target.description}: {hint}")  # fmt: skip
    return metric


def _own(source: str) -> Callable[..., Any]:
    try:
        return own_function(source)
    except ExportError as error:
        raise MetricError(f"metric {error}") from None


def _parameters(source: str, function: Callable[..., Any]) -> int:
    """The number of parameters that a function needs, 2 or 3. Raises MetricError for another one."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    count = sum(each.kind in kinds and each.default is each.empty for each in parameters)
    if count not in (2, 3):
        raise MetricError(
            f"metric {source} needs {count} arguments, expected (outputs, y), or (predict, x, y)"
        )
    return count


def _figures(source: str, call: Callable[[], Any]) -> dict[str, float]:
    """The numbers that a function of the user's own gives, by name. Raises MetricError."""
    name = source.rpartition(":")[2].rpartition(".")[2]
    try:
        value = call()
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}{raised_at(error)}"
        raise MetricError(f"metric {name} fails: {why}") from error
    figures = value if isinstance(value, Mapping) else {name: value}
    try:
        return {str(key): float(number) for key, number in figures.items()}
    except (TypeError, ValueError):
        raise MetricError(
            f"metric {name} gives {value!r:.80}, expected a number, or numbers by name"
        ) from None
