"""Makes weights without torch: random ones, those of lower precision, and those of narrower networks.

Random weights serve for random starts, and for new parts of a network. The role of a tensor follows from
its name, its shape and its neighbours' names, as torch and timm name them.

Those of lower precision are for forward graphs, computed from the float32 weights on the device. Graphs hold
no weights, and weights change every round, so int8 weights are made here, by the formulas of
`onnxruntime.quantization` (quant_utils.py, compute_scale_zp and quantize_nparray), to the last bit.

A narrower network is the leading part of every tensor of a wider one (HeteroFL, Diao et al. 2021).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import BundleError, TensorError

from .manifest import Derived, Graph, Manifest, Parameter
from .tensors import Tensors, TensorSpec, Vector

RECURRENT = re.compile(r"(?:weight|bias)_(?:ih|hh)(_l\d+(?:_reverse)?)")
TOKENS = re.compile(r"embed|token|position")
DEVIATION = 0.02
"""Standard deviation of embeddings and tokens, by the code of Dosovitskiy et al. 2021, Devlin et al. 2019."""
STATISTICS = {"running_mean": 0.0, "running_var": 1.0}
FROM_ZERO = ("lora_b", "adapter_down_bias", "adapter_up", "adapter_up_bias", "sparse_values")
GLOROT = ("prompt_tokens", "prefix_keys", "prefix_values")

Draw = Callable[["np.random.Generator"], Vector]


def initial_values(manifest: Manifest, names: Iterable[str], rng: np.random.Generator) -> dict[str, Vector]:
    """Fresh values of the named tensors, float32 in the shapes of the manifest.

    nn.Linear as in torch: weight and bias from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); recurrent layers the same
    with the hidden size. Convolutions: U(-sqrt(6/fan_in), sqrt(6/fan_in)), bias 0 (He et al. 2015, equation
    10); torch's default has a sixth of that variance, with which signals die out in networks without
    normalisation. Normalisation: scale 1, shift 0, statistics 0 and 1. Embeddings and tokens: N(0, 0.02^2).
    Tensors of parameter-efficient sets are drawn as `peft` draws them.

    One number is drawn from `rng`, and each tensor has its own stream, so that its values depend neither on
    the order of the names nor on the other names. The result has no tensors that are not drawn: int64 indices
    of a sparse set, and parameters that the network never trains, such as given word vectors.
    Raises BundleError for a name that the bundle does not have.
    """
    parameters = {parameter.name: parameter for parameter in manifest.parameters}
    root = int(rng.integers(2**63))
    values = {}
    for name in names:
        if name not in parameters:
            raise BundleError(f"bundle {manifest.name} has no tensor {name!r}")
        if not _is_given(parameters[name], manifest):
            values[name] = _value(parameters[name], parameters)(generator_of(f"{root}:{name}"))
    return values


def _is_given(parameter: Parameter, manifest: Manifest) -> bool:
    untrained = "all" in manifest.sets and not parameter.sets and _last(parameter.name) not in STATISTICS
    return parameter.dtype != "float32" or untrained


def generator_of(text: str) -> np.random.Generator:
    """A random generator whose numbers follow from the text alone, on every machine."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _value(parameter: Parameter, parameters: dict[str, Parameter]) -> Draw:
    """How a tensor is drawn: a function from its random stream to its values."""
    shape, last = parameter.shape, _last(parameter.name)
    if last in STATISTICS:
        return _filled(shape, STATISTICS[last])
    if last in FROM_ZERO:
        return _filled(shape, 0)
    if last in GLOROT:  # for dim inputs and outputs: (tokens, dim), or (heads, tokens, dim / heads)
        return _uniform(shape, (3 / (prod(shape) / shape[-2])) ** 0.5)
    if match := RECURRENT.fullmatch(last):
        hidden = parameters[parameter.name[: -len(last)] + "weight_hh" + match[1]].shape[1]
        return _uniform(shape, hidden**-0.5)
    if len(shape) < 2:
        return _one_row(parameter, parameters)
    if _is_table(parameter.name, shape):
        return lambda stream: stream.standard_normal(shape, np.float32) * np.float32(DEVIATION)
    return _uniform(shape, _bound(parameter))


def _one_row(parameter: Parameter, parameters: dict[str, Parameter]) -> Draw:
    """How a tensor of one axis is drawn: of a normalisation, or the bias of a layer."""
    last = _last(parameter.name)
    if "bias" not in last:
        return _filled(parameter.shape, 1 if last in ("weight", "gamma") else 0)
    layer = parameters.get(parameter.name[: -len(last)] + last.replace("bias", "weight"))
    if layer is None or len(layer.shape) != 2:
        return _filled(parameter.shape, 0)
    return _uniform(parameter.shape, _bound(layer))


def _bound(layer: Parameter) -> float:
    inner = prod(layer.shape[1:])
    is_convolution = len(layer.shape) > 2 and _last(layer.name) == "weight" and "embed" not in layer.name
    return float((6 / inner) ** 0.5 if is_convolution else inner**-0.5)


def _is_table(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the tensor holds embeddings or tokens, whose rows are not outputs of a layer."""
    *owners, last = name.split(".")
    own = last if last != "weight" else next(reversed(owners), "")
    return TOKENS.search(own) is not None and len(shape) < 4


def _uniform(shape: tuple[int, ...], bound: float) -> Draw:
    def draw(stream: np.random.Generator) -> Vector:
        value = stream.random(shape, np.float32)
        value *= np.float32(2 * bound)
        value -= np.float32(bound)
        return value

    return draw


def _filled(shape: tuple[int, ...], value: float) -> Draw:
    return lambda _: np.full(shape, value, np.float32)


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


STACKED = re.compile(r"(^|\.)((weight|bias)_(ih|hh)|in_proj_|qkv\.)")
"""Names of tensors with several matrices stacked along the first axis: gates, or queries, keys and values."""

NAMED = 3
"""How many tensors an error names."""

Shape = tuple[int, ...]


def leading_index(shape: Shape) -> tuple[slice, ...]:
    """The index of the leading part of this shape in a larger tensor."""
    return tuple(slice(size) for size in shape)


@dataclass(frozen=True)
class Slices:
    """The part of the main model that a narrower member of its family is: its shapes by tensor name."""

    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, main: Manifest, member: Manifest) -> Slices:
        """The member as a part of the main model.

        Flattened channels before a linear layer nest, because the positions of a channel are contiguous.
        Flattened tokens do not. The input of a layer that concatenates two others' outputs nests only if the
        first output is as wide in both models. Raises TensorError, naming both models and the tensors at
        fault, if the member does not nest.
        """
        try:
            _check_ends(main, member)
            wide = {spec.name: spec for spec in main.stored()}
            narrow = {spec.name: spec for spec in member.stored()}
            _check_names(wide, narrow)
            for name, spec in narrow.items():
                _check_nested(wide[name], spec)
            _check_inputs(main, member)
        except TensorError as error:
            raise TensorError(f"{member.name} is not a narrower {main.name}: {error}") from None
        return cls({name: spec.shape for name, spec in narrow.items()})

    def cut(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """A copy of the member's weights, cut from the main model's."""
        where = {name: leading_index(shape) for name, shape in self.shapes.items()}
        return {name: np.array(weights[name][part], order="C") for name, part in where.items()}


def _check_ends(main: Manifest, member: Manifest) -> None:
    if main.input != member.input:
        raise TensorError(f"it takes {_input_text(member)}, not {_input_text(main)}")
    if main.labels != member.labels:
        raise TensorError(f"its {len(member.labels)} labels are not the other's {len(main.labels)}")
    if main.target != member.target:
        raise TensorError(
            f"its loss is {member.target.description}, not {main.target.description} on the same scale"
        )


def _input_text(manifest: Manifest) -> str:
    spec = manifest.input
    return f"{spec.dtype} {spec.shape} (scale {spec.scale:g}, mean {spec.mean}, std {spec.std})"


def _check_names(wide: Mapping[str, TensorSpec], narrow: Mapping[str, TensorSpec]) -> None:
    for first, second, whose in ((wide, narrow, "only the main model"), (narrow, wide, "only it")):
        if names := sorted(first.keys() - second.keys()):
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise TensorError(f"{whose} has {', '.join(names[:NAMED])}{more}")


def _check_nested(wide: TensorSpec, narrow: TensorSpec) -> None:
    name = wide.name
    if wide.dtype != narrow.dtype:
        raise TensorError(f"{name} is {narrow.dtype}, not {wide.dtype}")
    fits = len(wide.shape) == len(narrow.shape)
    if not fits or any(n > w for w, n in zip(wide.shape, narrow.shape, strict=True)):
        raise TensorError(f"{name} is {narrow.shape}, which is no part of {wide.shape}")
    if wide.shape != narrow.shape and STACKED.search(name):
        raise TensorError(
            f"{name} holds several matrices, of which {narrow.shape} of {wide.shape} is no part of each"
        )


def _check_inputs(main: Manifest, member: Manifest) -> None:
    """Checks layers that take more channels than the layer before them in the table gives."""
    tokens = _token_maps(main, member)
    before: tuple[int, int] | None = None
    for wide, narrow in zip(main.stored(), _in_order(main, member), strict=True):
        if len(wide.shape) < 2:
            continue
        takes = (wide.shape[1], narrow.shape[1])
        if before and takes[0] != takes[1] and takes[0] > before[0] and not takes[0] % before[0]:
            _check_flattened(wide, takes, before)
        if takes in tokens:
            raise TensorError(f"{wide.name} takes tokens one after the other, not their leading values")
        # the rows of an embedding are tokens or positions, not channels
        embeds = len(wide.shape) == 2 and wide.shape[0] == narrow.shape[0] and takes[0] != takes[1]
        before = None if embeds else (wide.shape[0], narrow.shape[0])


def _check_flattened(wide: TensorSpec, takes: tuple[int, int], before: tuple[int, int]) -> None:
    """Check a layer whose input is not as wide as the layer before. Raises TensorError.

    It may be a linear layer on flattened channels with as many positions in both models, or a layer after a
    concatenation whose other part is as wide in both.
    """
    if takes[0] - before[0] == takes[1] - before[1]:
        return
    if len(wide.shape) > 2:
        raise TensorError(f"{wide.name} takes {takes[0]} channels, more than one layer's {before[0]}")
    places = takes[0] // before[0]
    if takes[1] != places * before[1]:
        raise TensorError(
            f"{wide.name} takes {takes[1]} values of {before[1]} channels, not {places} places of each"
        )


def _in_order(main: Manifest, member: Manifest) -> list[TensorSpec]:
    narrow = {spec.name: spec for spec in member.stored()}
    return [narrow[spec.name] for spec in main.stored()]


def _token_maps(main: Manifest, member: Manifest) -> set[tuple[int, int]]:
    """Sizes in both models of the feature maps (tokens, width) with several tokens and different shapes."""
    both = [(shape, member.features.get(level)) for level, shape in main.features.items()]
    return {
        (prod(wide), prod(narrow))
        for wide, narrow in both
        if narrow is not None and len(wide) == 2 and wide[0] > 1 and wide != narrow
    }
