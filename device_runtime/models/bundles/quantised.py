"""Initialisers of forward graphs in lower precision, computed from the float32 weights on the device.

Graphs hold no weights, and weights change every round, so int8 weights are made here, by the formulas of
`onnxruntime.quantization` (quant_utils.py, compute_scale_zp and quantize_nparray), to the last bit.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

from .manifest import Derived, Graph
from .tensors import Tensors

Values = NDArray[Any]

INT8_LARGEST = 127  # int8 is symmetric: its zero is 0, and -128 is not used
UINT8_LARGEST = 255
TINY = float(np.finfo(np.float32).tiny)  # a scale below it becomes 1


class Quantised(NamedTuple):
    """A quantised tensor, about scale * (values - zero_point).

    scale and zero_point have shape (), or one value for each column.
    """

    values: Values
    scale: NDArray[np.float32]
    zero_point: Values


def initialisers(graph: Graph, weights: Tensors) -> dict[str, Values]:
    """The initialisers that a session of the graph needs, by name: frozen parameters and derived ones.

    Raises TensorError if a weight is missing, or too large for float16.
    """
    if missing := sorted(graph.parameters - weights.keys()):
        raise TensorError(f"{missing[0]} is missing, which the graph {graph.file} needs")
    return {**{name: weights[name] for name in graph.frozen}, **derive(graph.derived, weights)}


def holds_float16(graph: Graph) -> bool:
    """Whether folding constants would turn the graph's initialisers back into float32."""
    return any(derived.what == "float16" for derived in graph.derived)


def has_exact_int8(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to have VNNI, with which int8 products do not overflow.

    On x86-64 without VNNI they overflow, unless ONNX Runtime is told to be exact
    (session.x64quantprecision), which halves the speed of int8. On other processors that setting changes
    nothing.
    """
    try:
        return "vnni" in cpuinfo.read_text()
    except OSError:
        return False


def derive(entries: Iterable[Derived], weights: Tensors) -> dict[str, Values]:
    """The derived initialisers by name; each parameter is quantised once for values, scale and zero point."""
    groups: dict[tuple[str, bool, bool, str], list[Derived]] = {}
    for derived in entries:
        kind = derived.what.partition(".")[0]
        groups.setdefault((derived.parameter, derived.transposed, derived.columns, kind), []).append(derived)
    result: dict[str, Values] = {}
    for (parameter, transposed, columns, kind), members in groups.items():
        value = weights[parameter]
        if transposed:
            value = np.ascontiguousarray(value.reshape(len(value), -1).T)
        parts = _quantised_values(parameter, value, kind, columns)
        result |= {derived.name: parts[derived.what] for derived in members}
    return result


def _quantised_values(parameter: str, value: Values, kind: str, columns: bool) -> dict[str, Values]:
    if kind == "float32":
        return {kind: value}
    if kind == "float16":
        return {kind: _float16(parameter, value)}
    integers = _int8(value, columns) if kind == "int8" else _uint8(value)
    return {kind: integers.values, f"{kind}.scale": integers.scale, f"{kind}.zero_point": integers.zero_point}


def _float16(parameter: str, value: Values) -> Values:
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    if not np.isfinite(half).all():
        largest = float(np.abs(value).max())
        raise TensorError(f"{parameter} reaches {largest:.3g}, float16 holds at most {np.finfo('f2').max}")
    return half


def _int8(value: Values, columns: bool) -> Quantised:
    """scale = largest absolute value / 127, zero_point = 0; for all values or for each column."""
    largest = np.abs(value).max(axis=tuple(range(value.ndim - 1)) if columns else None, initial=0)
    scale = _scale(2 * largest.astype(np.float64), 2 * INT8_LARGEST)
    quantised = (value / scale).round()  # float32; within 127 but for rounding
    np.clip(quantised, -INT8_LARGEST - 1, INT8_LARGEST, out=quantised)
    return Quantised(quantised.astype(np.int8), scale, np.zeros_like(scale, np.int8))


def _uint8(value: Values) -> Quantised:
    """0 to 255 span the least to the largest value, widened to contain 0."""
    least, largest = value.min(initial=0).astype(np.float64), value.max(initial=0).astype(np.float64)
    step = (largest - least) / UINT8_LARGEST
    if step < TINY:
        return Quantised(value.round().astype(np.uint8), np.ones((), np.float32), np.zeros((), np.uint8))
    zero_point = np.round(-least / step).astype(np.uint8)
    scale = np.asarray(step, np.float32)
    quantised = (value / scale).round() + zero_point  # float32
    np.clip(quantised, 0, UINT8_LARGEST, out=quantised)
    return Quantised(quantised.astype(np.uint8), scale, np.asarray(zero_point))


def _scale(span: NDArray[np.float64], steps: int) -> NDArray[np.float32]:
    scale = np.asarray(span / steps)
    return np.where(scale < TINY, np.float32(1), scale).astype(np.float32)
