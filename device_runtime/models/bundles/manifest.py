"""`manifest.json`, the description of a bundle, as frozen structs."""

import hashlib
from math import prod
from typing import Annotated, Literal

import msgspec

from device_runtime.models.errors import BundleError, one_line

from .inputs import Count, File, InputSpec, ManifestRecord, Shape, Size
from .names import RUN_BYTES, SCALE
from .targets import CROSS_ENTROPY, STRATA, TargetSpec
from .tensors import TensorSpec

FORMAT = 2
ABOVE = {"above-low": "mid", "above-mid": "up", "above-up": "head"}
"""Objectives that train on the feature maps of a level, with the largest tunable set above that level."""

TRAINING = ("train", "moon", "distil", "kl", "attention", "attention-norm", "prototype", *ABOVE)
"""Objectives of training graphs; `train` is the bundle's loss alone."""

OF_ANY_LOSS = ("train", "moon")
"""The objectives that a bundle whose loss is not cross-entropy can have; the others are of classes."""

ORT_TRAINING = "ort-training"
"""Kind of the graphs that do the work of train.SET with operators of onnxruntime-training."""

ARENA_FACTOR = 2
"""Memory of ONNX Runtime's arena over live activations. Measured by resident memory at batch 512 and 1024
(ONNX Runtime 1.31, WRN-10-1): 1.25 to 1.4 for train.head, 1.7 to 2.0 for train.mid and train.all.
"""

Level = Literal["low", "mid", "up", "head"]
Tunable = Literal["all", "mid", "up", "head", "bias", "adapter", "prompt", "prefix", "lora", "sparse"]
Setting = bool | int | float | str


class Parameter(ManifestRecord, frozen=True):
    """One tensor of weights.safetensors; `sets` is empty if it is never trained, as running statistics.

    int64 is for the indices of a sparse set, which are never trained either.
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


class Extra(ManifestRecord, frozen=True):
    """A float32 input of a training graph besides x and y: (n, *shape) if it has a row for each sample."""

    name: str
    shape: Shape
    per_sample: bool


class Derived(ManifestRecord, frozen=True):
    """An initialiser that the device computes from a parameter, see `models.bundles.weights`.

    transposed: from the transpose of the parameter as a matrix (shape[0], the rest). columns: one scale for
    each column of that matrix, instead of one for all.
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


class Graph(ManifestRecord, frozen=True):
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
        """The parameters that its initialisers hold or are computed from."""
        return {*self.frozen, *(derived.parameter for derived in self.derived)}

    def activation_bytes(self, samples: int) -> int:
        """Predicted peak of live activations for a batch of `samples`."""
        return self.fixed_bytes + samples * self.bytes_per_sample

    def rows(self, most: int, run_bytes: int = RUN_BYTES) -> int:
        """Samples of one run: `most`, or fewer (at least 1) to keep live activations within `run_bytes`.

        A graph that computes statistics of the batch always runs `most`.
        """
        fit = (run_bytes - self.fixed_bytes) // max(1, self.bytes_per_sample)
        return most if self.statistics else max(1, min(most, fit))

    def memory_bytes(self, samples: int) -> int:
        """Predicted growth of the process in one run: live activations with the allocator's overhead."""
        return ARENA_FACTOR * self.activation_bytes(samples)


class Head(ManifestRecord, frozen=True):
    """The linear layer at the end: logits = features @ weight.T + bias."""

    weight: str  # shape (outputs, features)
    bias: str | None  # shape (outputs,)
    features: Size


class Source(ManifestRecord, frozen=True):
    """The network of this package, and its settings, from which the module was built."""

    network: str
    settings: dict[str, Setting]


class Manifest(ManifestRecord, frozen=True):
    """manifest.json. Graphs: forward, forward.PRECISION, features.LEVEL, loss.SET and OBJECTIVE.SET.

    SET is a tunable set, OBJECTIVE one of TRAINING, PRECISION one of PRECISIONS but the first. `features` has
    the output shape of each features.LEVEL and the input shape of the head, without the batch. `labels` name
    the classes; of values and flags, the outputs. Without `loss` the loss is cross-entropy.
    """

    name: str
    input: InputSpec
    labels: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(min_length=1)]
    features: dict[Level, Shape]
    head: Head
    sets: dict[Tunable, dict[str, Setting]]  # its tunable sets, with the settings that each was made with
    graphs: dict[str, Graph]
    weights: File
    producer: str
    source: Source | None = None
    stored_as: Literal["float32", "float16"] = "float32"  # float16: tensors that lose nothing by it
    loss: TargetSpec | msgspec.UnsetType = msgspec.UNSET  # where it is not cross-entropy
    pretrained: bool | msgspec.UnsetType = msgspec.UNSET  # true where the weights are trained
    format: int = FORMAT
    seal: str = ""  # sha256 of manifest.json with an empty seal; `encode` sets it

    @property
    def target(self) -> TargetSpec:
        """The loss, and the targets that it takes."""
        return self.loss if isinstance(self.loss, TargetSpec) else CROSS_ENTROPY

    @property
    def outputs(self) -> int:
        """The number of the network's outputs for a sample: one for each label, or for each input value."""
        return prod(self.input.shape) if self.target.compared == "input" else len(self.labels)

    @property
    def columns(self) -> int:
        """How many numbers the outputs for a sample are compared with; 0 for classes."""
        return {"classes": 0, "input": self.outputs}.get(self.target.compared, len(self.target.columns))

    @property
    def strata(self) -> int:
        """The number of strata of samples: of classes, or of what `TargetSpec.strata` takes for these."""
        return {"classes": len(self.labels), "flags": self.columns + 1}.get(self.target.compared, STRATA)

    def names(self, tunable: str = "all") -> tuple[str, ...]:
        """Names of the parameters trained in a tunable set, in the order of `parameters`."""
        return tuple(spec.name for spec in self.specs(tunable))

    def specs(self, tunable: str = "all") -> tuple[TensorSpec, ...]:
        """The parameters trained in a tunable set. Raises BundleError for an unknown set."""
        if tunable not in self.sets:
            names = ", ".join(self.sets)
            raise BundleError(f"bundle {self.name} has no tunable set {tunable!r}; it has {names}")
        return tuple(parameter.spec for parameter in self.parameters if tunable in parameter.sets)

    @property
    def scale(self) -> str | None:
        """The tensor that multiplies the features before the head, float32 (features,), if there is one.

        It is never trained. Everywhere else, "features" are those after this multiplication.
        """
        name = f"{self.head.weight.rpartition('.')[0]}.{SCALE}"
        parameter = Parameter(name, (self.head.features,), "float32", "head", ())
        return name if parameter in self.parameters else None

    def statistics(self, tunable: str) -> tuple[TensorSpec, ...]:
        """Running statistics that change while a set is trained; an update holds them and `specs`."""
        graph = self.graphs.get(f"train.{tunable}")
        moved = set(graph.statistics if graph else ())
        return tuple(parameter.spec for parameter in self.parameters if parameter.name in moved)

    def stored(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the weights file, including those that are never trained."""
        return tuple(parameter.spec for parameter in self.parameters)

    def parts(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """All tensors, grouped by level and tunable sets."""
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
    """Reads `manifest.json`; a manifest without a seal is accepted.

    Raises BundleError for another format, wrong fields, or bytes that do not fit the seal.
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
