"""Random initial parameters, drawn without torch.

They serve for random starts, and for new parts of a network. The role of a tensor follows from its name, its
shape and its neighbours' names, as torch and timm name them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from device_runtime.models.errors import BundleError

from .manifest import Manifest, Parameter
from .tensors import Vector

RECURRENT = re.compile(r"(?:weight|bias)_(?:ih|hh)(_l\d+(?:_reverse)?)")
TOKENS = re.compile(r"embed|token|position")
DEVIATION = 0.02
"""Standard deviation of embeddings and tokens, by the code of Dosovitskiy et al. 2021, Devlin et al. 2019."""
STATISTICS = {"running_mean": 0.0, "running_var": 1.0}
FROM_ZERO = ("lora_b", "adapter_down_bias", "adapter_up", "adapter_up_bias", "sparse_values")
GLOROT = ("prompt_tokens", "prefix_keys", "prefix_values")

Draw = Callable[[np.random.Generator], Vector]


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
