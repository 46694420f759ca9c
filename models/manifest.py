"""What a bundle says about itself: `manifest.json`, as frozen structs."""

import hashlib
from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, TensorError, one_line
from .tensors import TensorSpec

FORMAT = 1
LEVELS = ("low", "mid", "up", "head")
TUNABLE_SETS = ("all", "upper", "head")
LEVELS_OF = {"all": LEVELS, "upper": ("mid", "up", "head"), "head": ("head",)}

# ONNX Runtime's arena over live activations, by resident memory at batch 512 and 1024 (ONNX Runtime 1.31,
# WRN-10-1): 1.25 to 1.4 for train.head, 1.7 to 2.0 for train.upper and train.all.
ARENA_FACTOR = 2

Level = Literal["low", "mid", "up", "head"]
Tunable = Literal["all", "upper", "head"]

# What a manifest may say at most: figures beyond these are damage or malice, and would end in overflows.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Shape = tuple[Size, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the manifest: immutable, and unknown fields are an error."""


class Parameter(Record, frozen=True):
    """One tensor of weights.safetensors; `sets` is empty for what is never trained (running statistics)."""

    name: str
    shape: Shape
    dtype: Literal["float32"]
    level: Level
    sets: tuple[Tunable, ...]

    @property
    def spec(self) -> TensorSpec:
        """Name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype)


class InputSpec(Record, frozen=True):
    """What the graphs take: float32 of shape (n, *shape), channels first, after `prepare`.

    Raises ValueError unless mean and std have one value or one per channel, and divide and scale by numbers.
    """

    shape: Annotated[Shape, msgspec.Meta(min_length=1)]  # without the batch
    scale: float = 1.0  # multiplies the raw values, before mean and std
    mean: tuple[float, ...] = (0.0,)  # one per channel, or one for all
    std: tuple[float, ...] = (1.0,)
    dtype: Literal["float32"] = "float32"

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, *self.shape[:1]):
                raise ValueError(
                    f"input {self.shape} has {len(values)} values of {name}, not 1 or one per channel"
                )
        if not all(isfinite(value) for value in (self.scale, *self.mean, *self.std)):
            raise ValueError("scale, mean or std of the input is not finite")
        if not self.scale or not all(self.std):
            raise ValueError("scale or std of the input is 0, which leaves nothing of it")

    def prepare(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """(raw * scale - mean) / std, as float32 of shape (n, *shape), a new array.

        raw: shape (n, *shape), any real dtype; the axis of a single channel may be left out.
        Raises TensorError for another shape.
        """
        shapes = [self.shape, self.shape[1:]] if self.shape[:1] == (1,) else [self.shape]
        if raw.ndim == 0 or raw.shape[1:] not in shapes:
            wanted = ", ".join(str(n) for n in self.shape)
            raise TensorError(f"input is {raw.shape}, expected (n, {wanted})")
        channels = (-1, *(1 for _ in self.shape[1:]))
        x = raw.reshape((raw.shape[0], *self.shape)).astype(np.float32)
        x *= np.float32(self.scale)
        x -= np.asarray(self.mean, np.float32).reshape(channels)
        x /= np.asarray(self.std, np.float32).reshape(channels)
        return x


class File(Record, frozen=True):
    """A file of the bundle."""

    file: str
    sha256: str
    bytes: Count


class Graph(Record, frozen=True):
    """An ONNX graph; peak memory of live activations is fixed_bytes + samples * bytes_per_sample."""

    file: str
    sha256: str
    bytes: Count
    trainable: tuple[str, ...]  # parameters that are graph inputs
    flops: Count  # one sample
    fixed_bytes: Count
    bytes_per_sample: Count
    frozen: tuple[str, ...] = ()  # parameters that are initialisers, given to the session in memory

    def activation_bytes(self, samples: int) -> int:
        """Predicted peak of live activations for a batch of `samples`."""
        return self.fixed_bytes + samples * self.bytes_per_sample

    def memory_bytes(self, samples: int) -> int:
        """Predicted growth of the process in one run: live activations as the allocator holds them."""
        return ARENA_FACTOR * self.activation_bytes(samples)


class Head(Record, frozen=True):
    """The linear layer at the end: logits = features @ weight.T + bias."""

    weight: str  # shape (labels, features)
    bias: str | None  # shape (labels,)
    features: Size


class Manifest(Record, frozen=True):
    """manifest.json. Graph names: forward, and loss.<set> and train.<set> for each tunable set."""

    name: str
    input: InputSpec
    labels: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(min_length=1)]
    features: dict[Level, Shape]  # shape of each feature output of `forward`, without the batch
    head: Head
    graphs: dict[str, Graph]
    weights: File
    producer: str
    format: int = FORMAT
    seal: str = ""  # sha256 of manifest.json with an empty seal; `encode` sets it

    def names(self, tunable: str = "all") -> tuple[str, ...]:
        """Names of the parameters trained in a tunable set, in the order of the table."""
        return tuple(spec.name for spec in self.specs(tunable))

    def specs(self, tunable: str = "all") -> tuple[TensorSpec, ...]:
        """The parameters trained in a tunable set. Raises BundleError for an unknown set."""
        if tunable not in TUNABLE_SETS:
            raise BundleError(f"there is no tunable set {tunable!r}; there are {', '.join(TUNABLE_SETS)}")
        return tuple(parameter.spec for parameter in self.parameters if tunable in parameter.sets)

    def stored(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the weights file, those that are never trained too."""
        return tuple(parameter.spec for parameter in self.parameters)

    def num_parameters(self, tunable: str = "all") -> int:
        """Number of trained values."""
        return sum(spec.size for spec in self.specs(tunable))


def encode(manifest: Manifest) -> bytes:
    """JSON, indented, sealed, ending in a line break; equal manifests give equal bytes."""
    seal = hashlib.sha256(_text(msgspec.structs.replace(manifest, seal=""))).hexdigest()
    return _text(msgspec.structs.replace(manifest, seal=seal))


def decode(data: bytes) -> Manifest:
    """Raises BundleError for what is not a manifest of a format this version reads, or does not fit its seal.

    A manifest without a seal is taken as it is.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version != FORMAT:
            raise BundleError(f"manifest.json has format {version}, this version reads {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BundleError(f"manifest.json is not a manifest: {one_line(error)}") from error
    unsealed = data.replace(b'"seal": "%s"' % manifest.seal.encode(), b'"seal": ""')
    if manifest.seal and hashlib.sha256(unsealed).hexdigest() != manifest.seal:
        raise BundleError("manifest.json is damaged: it does not fit its seal; fetch the bundle again")
    return manifest


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


class _Version(msgspec.Struct):
    format: int
