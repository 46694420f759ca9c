"""The loss of a bundle, and the targets that it compares the network's outputs with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from statistics import NormalDist
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

from .inputs import ManifestRecord

Compared = Literal["classes", "values", "flags", "input"]

LOSSES: dict[str, Compared] = {
    "cross-entropy": "classes",
    "mse": "values",
    "mae": "values",
    "huber": "values",
    "bce": "flags",
}
"""The losses of this package, and the targets that each takes; those of values also take "input"."""
OF_VALUES = tuple(name for name, compared in LOSSES.items() if compared == "values")

METRICS: dict[Compared, str] = {
    "classes": "accuracy", "values": "R2", "flags": "label accuracy", "input": "R2",
}  # fmt: skip
"""The metric that models are judged by, for each kind of targets; at most 1, the higher the better."""

ACCURACY = METRICS["classes"]


def metric_text(metric: str, value: float) -> str:
    """The value of a metric for people: an accuracy in percent, others as numbers; a dash for NaN."""
    if isnan(value):
        return "-"
    return f"{value:.1%}" if metric.endswith(ACCURACY) else f"{value:.3f}"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Further metrics for people, as "RMSE 4.31, MAE 3.2"; empty for none."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


STRATA = 10
"""The number of strata of values and of reconstruction."""
_EDGES = np.array([NormalDist().inv_cdf(part / STRATA) for part in range(1, STRATA)])

NORMAL = ("normal", "anomaly")
"""Default labels of a bundle that reconstructs its input; the first one means normal."""

Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class TargetSpec(ManifestRecord, frozen=True):
    """The loss, and the targets y that it takes, after `prepare`; a bundle without one has CROSS_ENTROPY.

    compared: what the outputs are compared with. "classes": y int64 (n,), numbers of labels. "values": y
    float32 (n, columns), standardised by `mean` and `std`. "flags": y float32 (n, columns) of 0 and 1.
    "input": the prepared input itself, flattened; y is int64 (n,) as for classes, and not used in training.
    Raises ValueError for parts that do not fit each other.
    """

    loss: str  # a name in LOSSES, or of the user's own function
    compared: Compared
    columns: tuple[str, ...] = ()  # the names of the targets, of values and flags
    mean: tuple[float, ...] = (0.0,)  # of values: one per column, or one for all, in original units
    std: tuple[float, ...] = (1.0,)
    delta: float = 1.0  # huber: where squares become straight lines, in standardised units
    own: bool = False  # whether the loss is the user's own, whose code only the graphs have
    class_weights: tuple[float, ...] = ()  # of cross-entropy: a factor of the loss for each label, or none
    quantile: Share = 0.99  # input: samples with an error above this quantile are anomalies

    def __post_init__(self) -> None:
        default = LOSSES.get(self.loss)
        takes = (default, "input") if self.loss in OF_VALUES else (default,)
        if not self.own and self.compared not in takes:
            raise ValueError(f"loss {self.loss!r} of {self.compared} is none of {', '.join(LOSSES)}")
        if bool(self.columns) != (self.compared in ("values", "flags")):
            raise ValueError(f"targets are {self.compared} and have the columns {list(self.columns)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, len(self.columns)):
                raise ValueError(f"targets have {len(values)} values of {name}, expected 1 or one per column")
            if not all(isfinite(np.float32(value)) for value in values):
                raise ValueError(f"{name} of the targets is not finite in float32")
        if self.class_weights and not self.is_cross_entropy:
            raise ValueError(f"loss {self.loss!r} has no weights of classes, only cross-entropy has")
        if not all(isfinite(w) and np.float32(w) > 0 for w in self.class_weights):
            raise ValueError(f"weights of classes are {list(self.class_weights)}, expected numbers above 0")
        if not all(np.float32(value) > 0 for value in (*self.std, self.delta)):
            raise ValueError("std of the targets, or delta, is not above 0")

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is cross-entropy over class labels."""
        return self.compared == "classes" and not self.own

    @property
    def has_columns(self) -> bool:
        """Whether targets are numbers in columns, float32 (n, columns), and no class numbers."""
        return bool(self.columns)

    @property
    def dtype(self) -> Literal["float32", "int64"]:
        """The dtype of the graphs' input y."""
        return "float32" if self.columns else "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's y: (columns,) or ()."""
        return (len(self.columns),) if self.columns else ()

    @property
    def metric(self) -> str:
        """The name of the metric by which models are judged, as people read it."""
        return METRICS[self.compared]

    def prepare(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """Targets in columns as the graphs take them: (n, columns), a new array.

        raw: in original units, (n, columns), or (n,) for a single column. Raises TensorError for another
        shape, values that are not finite, or flags other than 0 and 1.
        """
        count = len(self.columns)
        if raw.dtype.kind not in "buif" or (raw.shape[1:] != (count,) and (raw.ndim != 1 or count != 1)):
            columns = ", ".join(self.columns[:8])
            raise TensorError(
                f"targets are {raw.dtype} {raw.shape}, expected numbers (n, {count}): {columns}"
            )
        with np.errstate(over="ignore"):
            y = raw.reshape(len(raw), count).astype(np.float32)
        if not np.isfinite(y).all():
            raise TensorError(f"{int((~np.isfinite(y)).sum())} targets are not finite")
        if self.compared == "flags":
            if not np.isin(y, (0, 1)).all():
                raise TensorError(f"targets hold {y[~np.isin(y, (0, 1))][0]:g}, expected 0 or 1")
            return y
        y -= np.asarray(self.mean, np.float32)
        y /= np.asarray(self.std, np.float32)
        return y

    def compared_values(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float32]:
        """The numbers that outputs are compared with, (n, columns); (n, 0) for classes.

        x: prepared inputs (n, *input). y: as the graphs take it.
        """
        if self.compared == "classes":
            return np.empty((len(y), 0), np.float32)
        return x.reshape(len(x), -1).astype(np.float32, copy=False) if self.compared == "input" else y

    def strata(self, values: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.int64]:
        """The stratum of each sample, (n,), which stands for its class in statistics; a class is its own.

        Of flags it is the first one that is 1, or their number. Of `values` (n, columns) it is the tenth of
        a standard normal distribution in which their mean is.
        """
        if self.compared == "classes":
            return np.asarray(y, np.int64)
        if self.compared == "flags":
            first: NDArray[np.int64] = np.where(values.any(axis=1), values.argmax(axis=1), values.shape[1])
            return first
        tenths: NDArray[np.int64] = np.searchsorted(_EDGES, values.mean(axis=1, dtype=np.float64))
        return tenths

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Standardised values (n, columns) in original units; a new array."""
        return values * np.asarray(self.std, np.float32) + np.asarray(self.mean, np.float32)

    def raw(self, y: NDArray[Any]) -> NDArray[Any]:
        """Undoes `prepare`: targets in original units; class numbers stay as they are."""
        return self.restore(y) if self.compared == "values" else y

    @property
    def why_not_by_class(self) -> str:
        """Why kinds of update that work by class do not apply; empty if they do."""
        if self.is_cross_entropy:
            return ""
        return f"works by class, and the bundle's loss is {self.description}, not cross-entropy over classes"

    @property
    def description(self) -> str:
        """The loss and what it is of, as people read it: "mse of price, area"."""
        if self.class_weights:
            return f"{self.loss} of classes weighted {', '.join(f'{w:g}' for w in self.class_weights[:8])}"
        columns = ", ".join(self.columns[:4]) + (", .." if len(self.columns) > 4 else "")
        return f"{self.loss} of {columns or {'input': 'the input itself'}.get(self.compared, self.compared)}"


CROSS_ENTROPY = TargetSpec("cross-entropy", "classes")


def targets_of(
    loss: str, labels: Sequence[str], compared: str = "", own: bool = False, **settings: Any
) -> TargetSpec:
    """The targets for a loss by its name, or with `own` for a user's function of this name.

    compared: as in `TargetSpec`; empty: what the loss takes, for an own loss values. settings: the other
    fields of `TargetSpec`; columns are named as the labels by default. Raises ValueError.
    """
    if not own and loss not in LOSSES:
        raise ValueError(f"no loss {loss!r}; there are {', '.join(LOSSES)}")
    compared = compared or ("values" if own else LOSSES[loss])
    if compared not in METRICS:
        raise ValueError(f"targets are {compared!r}, expected one of {', '.join(METRICS)}")
    named = tuple(settings.pop("columns", ())) or (tuple(labels) if compared in ("values", "flags") else ())
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    if compared != "values" and {"mean", "std"} & values.keys():
        raise ValueError(f"targets are {compared}: only values have a mean and a std")
    return TargetSpec(loss, compared, named, own=own, **values)  # type: ignore[arg-type]  # checked above
