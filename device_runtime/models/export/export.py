"""From a torch module to a bundle: trace, write graphs, compare with torch, measure, then write."""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import torch
from torch import nn

from device_runtime.models import networks
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.inputs import File, InputSpec, Shape
from device_runtime.models.bundles.manifest import (
    ORT_TRAINING,
    TRAINING,
    Graph,
    Head,
    Level,
    Manifest,
    Source,
)
from device_runtime.models.bundles.names import LEVELS, PRECISIONS
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ExportError, one_line
from device_runtime.models.export.graph_cost import measure_work
from device_runtime.models.torch_engine.objectives import OutputSizes, sizes_of

from .candidates import WantedGraphs, candidates
from .levels import find_head, lay_out, level_outputs
from .parity import GraphCandidate, check_parity
from .subject import HeadUnused, Subject, run, stored_tensors
from .trace import TRACED_BATCH
from .tunable_sets import Sets, changes, inject, parameter_table, scale_features

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportSpec:
    """What a bundle says that the module does not know, and which graphs it has.

    sets: tunable sets, each with its settings, as in {"all": {}, "lora": {"rank": 8}}. `batchnorm` training:
    layers whose own parameters are in the trained set use the statistics of the batch and move the running
    ones; frozen: all keep theirs.
    """

    name: str
    input: InputSpec
    labels: tuple[str, ...]
    head: str | None = None  # name of the nn.Linear that gives the logits; the last one if None
    levels: Mapping[str, str] | None = None  # prefix of a parameter's name -> low, mid, up or head
    outputs: Mapping[str, str] | None = None  # low, mid, up -> name of the submodule at the end of the level
    sets: Sets = field(default_factory=lambda: {"all": {}, "mid": {}, "head": {}})
    objectives: tuple[str, ...] = ("train",)
    features: tuple[str, ...] = ()  # levels whose feature map the bundle gives
    batchnorm: Literal["frozen", "training"] = "frozen"
    ort_training: bool = False  # training graphs of onnxruntime-training besides; needs it installed
    precisions: tuple[str, ...] = ()  # of further forward graphs: int8, float16
    stored_as: Literal["float32", "float16"] = "float32"  # float16 rounds them; the file is half as big
    scaled: bool = False  # features have a scale each before the head, 1 until class means set it
    source: Source | None = None
    tokenizer: bytes | None = None  # of an input that is text


@dataclass(frozen=True)
class CheckedGraph:
    """A graph that has passed the parity gate, and the worst difference found, as `check_parity` gives it."""

    name: str
    bytes: int
    worst: float


@dataclass(frozen=True)
class PassedGraphs:
    """The graphs that have passed the gate so far, and their files, by name."""

    report: Callable[[CheckedGraph], None]
    graphs: dict[str, Graph] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, graph: Graph, onnx: bytes, worst: float) -> None:
        """One more."""
        self.graphs[name], self.files[name] = graph, onnx
        self.report(CheckedGraph(name, len(onnx), worst))


def export(
    module: nn.Module,
    spec: ExportSpec,
    folder: Path,
    report: Callable[[CheckedGraph], None] = lambda graph: None,
) -> bundles.Bundle:
    """Writes the bundle into `folder` and opens it; `report` is told of each graph that passed.

    The module is exported in eval mode, also for training: no dropout.
    Raises ExportError for a module that cannot be traced, ParityError if a graph does not compute what
    torch computes; then nothing has been written.
    """
    _check_spec(spec)
    module = copy.deepcopy(module).eval()
    if spec.stored_as == "float16":
        _round_to_float16(module)
    if spec.scaled:
        scale_features(module, find_head(module, spec.head))
    injected = inject(module, spec.sets, spec.head)
    if warning := changes(spec.sets):
        logger.warning("%s", warning)
    outputs = level_outputs(module, spec.outputs)
    subject = Subject(module, find_head(module, spec.head), _example(spec.input), outputs)
    sizes = _checked_sizes(subject, spec)
    parameters = parameter_table(module, lay_out(module, subject.head, spec.levels), injected)
    sets = {str(s): tuple(p.name for p in parameters if s in p.sets) for s in injected.settings}
    wanted = WantedGraphs(
        sets, spec.objectives, spec.features, spec.batchnorm == "training", spec.ort_training
    )
    passed = PassedGraphs(report)
    for candidate in candidates(subject, wanted):
        worst = check_parity(subject, candidate)
        passed.add(candidate.name, _described(candidate, passed.graphs), candidate.onnx, worst)
    if spec.batchnorm == "training" and not any(graph.statistics for graph in passed.graphs.values()):
        logger.warning("no graph uses batch statistics: no batch normalisation is in a set that is trained")
    weights = {name: tensor.contiguous().numpy() for name, tensor in stored_tensors(module).items()}
    _add_lower(passed, weights, spec)
    manifest = Manifest(
        name=spec.name,
        input=spec.input,
        labels=spec.labels,
        parameters=parameters,
        features=_features(sizes, spec),
        head=_head(subject, sizes.width),
        sets=injected.settings,
        graphs=passed.graphs,
        weights=File("", "", 0),
        producer=f"torch {torch.__version__.partition('+')[0]}",
        source=spec.source,
        stored_as=spec.stored_as,
    )
    return bundles.write(folder, manifest, weights, passed.files, spec.tokenizer)


def _check_spec(spec: ExportSpec) -> None:
    if len(set(spec.labels)) != len(spec.labels) or not all(spec.labels):
        raise ExportError(f"labels are {', '.join(spec.labels)}: one is empty or occurs twice")
    if unknown := sorted(set(spec.objectives) - set(TRAINING)):
        raise ExportError(f"there is no objective {unknown[0]!r}; there are {', '.join(TRAINING)}")
    if unknown := sorted(set(spec.precisions) - set(PRECISIONS[1:])):
        raise ExportError(f"there is no precision {unknown[0]!r}; there are {', '.join(PRECISIONS[1:])}")
    if spec.ort_training and "train" not in spec.objectives:
        raise ExportError("graphs of onnxruntime-training are for objective train, which is not asked for")
    if spec.batchnorm == "training" and "prototype" in spec.objectives:
        raise ExportError(
            "objective prototype would move running statistics twice: freeze batch normalisation"
        )


def _add_lower(passed: PassedGraphs, weights: Tensors, spec: ExportSpec) -> None:
    for precision in spec.precisions:
        from .quantise import lower_forward

        lowered = lower_forward(passed.files["forward"], weights, spec.input, precision)
        passed.add(f"forward.{precision}", lowered.graph, lowered.onnx, lowered.worst)


def _described(candidate: GraphCandidate, graphs: Mapping[str, Graph]) -> Graph:
    """Operators of onnxruntime-training have no known shapes; their work is that of the graph they equal."""
    kind, _, tunable = candidate.name.partition(".")
    work = graphs[f"train.{tunable}"] if kind == ORT_TRAINING else measure_work(candidate.onnx)
    return Graph(
        f"{candidate.name}.onnx", "", len(candidate.onnx), candidate.trainable,
        work.flops, work.fixed_bytes, work.bytes_per_sample, candidate.frozen,
        candidate.statistics, candidate.extras,
    )  # fmt: skip


def _features(sizes: OutputSizes, spec: ExportSpec) -> dict[Level, Shape]:
    levels = (cast(Level, level) for level in LEVELS if level in spec.features)
    return {**{level: sizes.maps[level] for level in levels}, "head": (sizes.width,)}


def _example(spec: InputSpec) -> torch.Tensor:
    """Standard normal, or token ids at random, with the last and the lowest: some of those mean padding."""
    generator = torch.Generator().manual_seed(0)
    shape = (TRACED_BATCH, *spec.shape)
    try:
        if spec.vocabulary is None:
            return torch.randn(shape, generator=generator)
        ids = torch.randint(spec.vocabulary, shape, generator=generator)
    except RuntimeError as error:
        raise ExportError(f"an input of {shape} cannot be made: {one_line(error)}") from error
    ids[0, ..., -1] = spec.vocabulary - 1
    ids[-1] = torch.arange(ids[-1].numel()).reshape(spec.shape) % spec.vocabulary
    return ids


def _checked_sizes(subject: Subject, spec: ExportSpec) -> OutputSizes:
    """What the module gives. Raises ExportError unless head(features) are the logits of all labels."""
    tensors = stored_tensors(subject.module)
    parameters = dict(subject.module.named_parameters())
    if other := [f"{n} is {t.dtype}" for n, t in tensors.items() if t.dtype != _dtype(n in parameters, t)]:
        raise ExportError(f"{other[0]}; only torch.float32 can be exported")
    try:
        with torch.no_grad():
            passed = run(subject, subject.example, tensors)
    except HeadUnused:
        raise ExportError(f"the module never calls its head {subject.head}; name the one it calls") from None
    except Exception as error:
        raise ExportError(
            f"the module fails on {tuple(subject.example.shape)}: {one_line(error)}{_built(spec)}"
        ) from error
    logits, features = passed.logits, passed.features
    if not isinstance(logits, torch.Tensor):
        raise ExportError(f"the module returns a {type(logits).__name__}, expected the logits alone")
    if features.dim() != 2:
        raise ExportError(f"head {subject.head} is given {tuple(features.shape)}, expected (n, width)")
    with torch.no_grad():
        from_head = subject.module.get_submodule(subject.head)(features)
    if logits.shape != from_head.shape or not torch.allclose(logits, from_head):
        raise ExportError(
            f"what the module returns are not the logits of its head {subject.head}; name the right one"
        )
    if logits.shape[1] != len(spec.labels):
        raise ExportError(
            f"head {subject.head} gives {logits.shape[1]} logits for {len(spec.labels)} labels{_built(spec)}"
        )
    return sizes_of(passed)


def _built(spec: ExportSpec) -> str:
    """Of a network of ours, what it was built with: the rest of a sentence."""
    if spec.source is None:
        return ""
    name, shape = spec.source.network, ",".join(map(str, spec.input.shape))
    has = networks.described(name, spec.source.settings)
    return f"; {name} has {has}: make that fit an input of {shape} and {len(spec.labels)} labels with --set"


def _round_to_float16(module: nn.Module) -> None:
    """Before anything is traced or compared; a tensor that float16 cannot hold stays."""
    for tensor in stored_tensors(module).values():
        half = tensor.to(torch.float16)
        if tensor.dtype == torch.float32 and torch.isfinite(half).all():
            tensor.copy_(half)


def _dtype(is_parameter: bool, tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if is_parameter or tensor.is_floating_point() else torch.int64


def _head(subject: Subject, width: int) -> Head:
    has_bias = subject.module.get_submodule(subject.head).bias is not None
    return Head(f"{subject.head}.weight", f"{subject.head}.bias" if has_bias else None, width)
