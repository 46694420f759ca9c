"""What a bundle says about itself: `manifest.json`, as frozen structs."""

import hashlib
from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, TensorError, one_line
from .names import LEVELS as LEVELS
from .names import LEVELS_OF as LEVELS_OF
from .names import PRECISIONS as PRECISIONS
from .names import RUN_BYTES as RUN_BYTES
from .names import TUNABLE_SETS as TUNABLE_SETS
from .tensors import TensorSpec
from .tokens.file import Form

FORMAT = 2
ABOVE = {"above-low": "mid", "above-mid": "up", "above-up": "head"}
"""Objectives that train on feature maps of a level, and the largest set that is all above it."""

TRAINING = ("train", "moon", "distil", "kl", "attention", "prototype", *ABOVE)
"""Objectives of training graphs; `train` is cross-entropy alone."""

ORT_TRAINING = "ort-training"
"""Kind of the graphs that compute what train.SET does in operators of onnxruntime-training."""

# ONNX Runtime's arena over live activations, by resident memory at batch 512 and 1024 (ONNX Runtime 1.31,
# WRN-10-1): 1.25 to 1.4 for train.head, 1.7 to 2.0 for train.mid and train.all.
ARENA_FACTOR = 2

Level = Literal["low", "mid", "up", "head"]
Tunable = Literal["all", "mid", "up", "head", "bias", "adapter", "prompt", "prefix", "lora", "sparse"]
Setting = bool | int | float | str

# What a manifest may say at most: figures beyond these are damage or malice, and would end in overflows.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
LARGEST = 1 << 31
Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Shape = tuple[Size, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the manifest: immutable, and unknown fields are an error."""


class Parameter(Record, frozen=True):
    """One tensor of weights.safetensors; `sets` is empty for what is never trained (running statistics).

    int64 is for the indices of a sparse set, which are never trained.
    """

    name: str
    shape: Shape
    dtype: Literal["float32", "int64"]
    level: Level
    sets: tuple[Tunable, ...]

    @property
    def spec(self) -> TensorSpec:
        """Name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype)


class File(Record, frozen=True):
    """A file of the bundle."""

    file: str
    sha256: str
    bytes: Count


class Text(Record, frozen=True):
    """How a text becomes token ids: cut by a tokenizer, put between fixed ids, filled up behind.

    What is too long loses its end, never what stands around it. `template` says the fixed ids to people, as
    in "{text} It was{mask} ."; where `words` are given, each label is asked for as one of them.
    """

    form: Form
    tokenizer: File
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int
    template: str = "{text}"
    words: tuple[str, ...] = ()

    def said(self, length: int) -> str:
        """In words, for an input of `length` tokens."""
        asked = f", read as {self.template!r}" if self.template != "{text}" else ""
        answered = f", answered by {', '.join(map(repr, self.words))}" if self.words else ""
        return f"texts as {length} tokens ({self.form}){asked}{answered}"


class InputSpec(Record, frozen=True):
    """What the graphs take: shape (n, *shape), channels first, after `prepare`.

    float32 values, or int64 token ids from 0 to vocabulary - 1. Raises ValueError unless mean and std have
    one value or one per channel, divide and scale by numbers, a vocabulary is given to ids alone, and what is
    said of texts fits the vocabulary and leaves room for one.
    """

    shape: Annotated[Shape, msgspec.Meta(min_length=1)]  # without the batch
    scale: float = 1.0  # multiplies the raw values, before mean and std
    mean: tuple[float, ...] = (0.0,)  # one per channel, or one for all
    std: tuple[float, ...] = (1.0,)
    dtype: Literal["float32", "int64"] = "float32"
    vocabulary: Size | None = None
    text: Text | msgspec.UnsetType = msgspec.UNSET  # where the ids are those of a text

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, *self.shape[:1]):
                raise ValueError(
                    f"input {self.shape} has {len(values)} values of {name}, not 1 or one per channel"
                )
        with np.errstate(over="ignore"):
            scale, *others = (float(np.float32(value)) for value in (self.scale, *self.std, *self.mean))
        if not all(isfinite(value) for value in (scale, *others)):
            raise ValueError("scale, mean or std of the input is not finite in float32")
        if not scale or not all(others[: len(self.std)]):
            raise ValueError("scale or std of the input is 0 in float32, which leaves nothing of it")
        if (self.dtype == "int64") != (self.vocabulary is not None):
            raise ValueError(f"input of {self.dtype} has vocabulary {self.vocabulary}: int64 alone has one")
        if isinstance(self.text, Text):
            self._check_text(self.text)

    def _check_text(self, text: Text) -> None:
        fixed = (*text.before, *text.after, text.padding)
        if self.vocabulary is None or not all(0 <= number < self.vocabulary for number in fixed):
            raise ValueError(f"ids {fixed} around a text are not all of the vocabulary {self.vocabulary}")
        if len(self.shape) != 1 or len(fixed) > self.shape[0]:
            raise ValueError(
                f"input {self.shape} has no room for a text beside {len(fixed) - 1} fixed tokens"
            )

    def prepare(self, raw: NDArray[Any]) -> NDArray[Any]:
        """(raw * scale - mean) / std as float32, or the ids as int64, of shape (n, *shape), a new array.

        raw: shape (n, *shape), any real dtype, for ids integers; the axis of a single channel may be left
        out. Raises TensorError for another shape, or what is no id.
        """
        shapes = [self.shape, self.shape[1:]] if self.shape[:1] == (1,) else [self.shape]
        if raw.ndim == 0 or raw.shape[1:] not in shapes:
            wanted = ", ".join(str(n) for n in self.shape)
            raise TensorError(f"input is {raw.shape}, expected (n, {wanted})")
        raw = raw.reshape((raw.shape[0], *self.shape))
        return self._ids(raw) if self.vocabulary is not None else self._scaled(raw)

    def _scaled(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        channels = (-1, *(1 for _ in self.shape[1:]))
        x = raw.astype(np.float32)
        x *= np.float32(self.scale)
        x -= np.asarray(self.mean, np.float32).reshape(channels)
        x /= np.asarray(self.std, np.float32).reshape(channels)
        return x

    def _ids(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        if raw.dtype.kind not in "iu":
            raise TensorError(f"input is {raw.dtype}, expected integer token ids")
        self.check_ids(raw)
        return raw.astype(np.int64)

    def check_ids(self, ids: NDArray[Any]) -> None:
        """Raises TensorError for an id that the vocabulary does not have; any float passes."""
        if self.vocabulary is None or ids.size == 0:
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise TensorError(f"input holds token id {wrong}, expected 0 to {self.vocabulary - 1}")


class Extra(Record, frozen=True):
    """A float32 input of a training graph beside x and y: (n, *shape) if it has a row for each sample."""

    name: str
    shape: Shape
    per_sample: bool


class Derived(Record, frozen=True):
    """An initialiser that the device computes from a parameter, as `models.quantised` says.

    transposed: of the parameter as (shape[0], the rest), transposed. columns: one scale for each column of
    that, not one for all.
    """

    name: str
    parameter: str
    what: Literal[
        "float32", "float16",
        "int8", "int8.scale", "int8.zero_point",
        "uint8", "uint8.scale", "uint8.zero_point",
    ]  # fmt: skip
    transposed: bool = False
    columns: bool = False


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
    statistics: tuple[str, ...] = ()  # running statistics: inputs, whose next values are outputs next.NAME
    extras: tuple[Extra, ...] = ()
    derived: tuple[Derived, ...] = ()  # initialisers that are given to the session in memory, as `frozen`

    @property
    def parameters(self) -> set[str]:
        """Parameters that its initialisers are, or are made of."""
        return {*self.frozen, *(derived.parameter for derived in self.derived)}

    def activation_bytes(self, samples: int) -> int:
        """Predicted peak of live activations for a batch of `samples`."""
        return self.fixed_bytes + samples * self.bytes_per_sample

    def rows(self, most: int, run_bytes: int = RUN_BYTES) -> int:
        """Samples of one run: `most`, or as few as keep live activations within `run_bytes`.

        Where the graph computes statistics of the batch, all of `most`.
        """
        fit = (run_bytes - self.fixed_bytes) // max(1, self.bytes_per_sample)
        return most if self.statistics else max(1, min(most, fit))

    def memory_bytes(self, samples: int) -> int:
        """Predicted growth of the process in one run: live activations as the allocator holds them."""
        return ARENA_FACTOR * self.activation_bytes(samples)


class Head(Record, frozen=True):
    """The linear layer at the end: logits = features @ weight.T + bias."""

    weight: str  # shape (labels, features)
    bias: str | None  # shape (labels,)
    features: Size


class Source(Record, frozen=True):
    """What the module was built from: a network of this package and its settings."""

    network: str
    settings: dict[str, Setting]


class Manifest(Record, frozen=True):
    """manifest.json. Graphs: forward, forward.PRECISION, features.LEVEL, loss.SET and OBJECTIVE.SET.

    SET is a tunable set, OBJECTIVE one of TRAINING, PRECISION one of PRECISIONS but the first. `features` has
    the shape of what features.LEVEL gives, and of what the head takes, without the batch.
    """

    name: str
    input: InputSpec
    labels: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(min_length=1)]
    features: dict[Level, Shape]
    head: Head
    sets: dict[Tunable, dict[str, Setting]]  # the tunable sets that there are, and what each was made with
    graphs: dict[str, Graph]
    weights: File
    producer: str
    source: Source | None = None
    stored_as: Literal["float32", "float16"] = "float32"  # float16: what loses nothing by it
    format: int = FORMAT
    seal: str = ""  # sha256 of manifest.json with an empty seal; `encode` sets it

    def names(self, tunable: str = "all") -> tuple[str, ...]:
        """Names of the parameters trained in a tunable set, in the order of the table."""
        return tuple(spec.name for spec in self.specs(tunable))

    def specs(self, tunable: str = "all") -> tuple[TensorSpec, ...]:
        """The parameters trained in a tunable set. Raises BundleError for a set that is not there."""
        if tunable not in self.sets:
            known = ", ".join(self.sets)
            raise BundleError(f"bundle {self.name} has no tunable set {tunable!r}; it has {known}")
        return tuple(parameter.spec for parameter in self.parameters if tunable in parameter.sets)

    def statistics(self, tunable: str) -> tuple[TensorSpec, ...]:
        """Running statistics that training a set moves; they belong to an update beside `specs`."""
        graph = self.graphs.get(f"train.{tunable}")
        moved = set(graph.statistics if graph else ())
        return tuple(parameter.spec for parameter in self.parameters if parameter.name in moved)

    def stored(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the weights file, those that are never trained too."""
        return tuple(parameter.spec for parameter in self.parameters)

    def parts(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """All tensors, those together that stand at one level and belong to the same tunable sets."""
        together: dict[tuple[str, tuple[str, ...]], list[TensorSpec]] = {}
        for parameter in self.parameters:
            together.setdefault((parameter.level, parameter.sets), []).append(parameter.spec)
        return tuple(tuple(specs) for specs in together.values())

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
            what = "export the bundle again" if version < FORMAT else "update device-runtime"
            raise BundleError(f"manifest.json has format {version}, this version reads {FORMAT}: {what}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"manifest.json is not a manifest: {one_line(error)}") from error
    unsealed = data.replace(b'"seal": "%s"' % manifest.seal.encode(), b'"seal": ""')
    if manifest.seal and hashlib.sha256(unsealed).hexdigest() != manifest.seal:
        raise BundleError("manifest.json is damaged: it does not fit its seal; fetch the bundle again")
    return manifest


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


class _Version(msgspec.Struct):
    format: int
