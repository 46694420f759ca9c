"""Exports a torch module as a bundle: traces it, writes graphs, and compares them with torch."""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal, cast

import msgspec
import torch
from torch import nn

from device_runtime.models import networks
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.graph_check import check_graph
from device_runtime.models.bundles.inputs import File, InputSpec, Shape
from device_runtime.models.bundles.manifest import (
    OF_ANY_LOSS,
    ORT_TRAINING,
    TRAINING,
    Graph,
    Head,
    Level,
    Manifest,
    Source,
)
from device_runtime.models.bundles.names import LEVELS, PRECISIONS
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, ExportError, ModelError, ParityError, one_line
from device_runtime.models.export.graph_cost import graph_cost
from device_runtime.models.networks.own import raised_at
from device_runtime.models.peft.tunable_sets import (
    Sets,
    change_warning,
    inject,
    parameter_table,
    scale_features,
)
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    HeadUnused,
    OwnLoss,
    batch_norms,
    loss_of,
    run,
    stored_tensors,
)
from device_runtime.models.torch_modules.objectives import OutputSizes, sizes_of
from device_runtime.models.torch_modules.parameters import assign_levels, find_head, level_outputs
from device_runtime.models.torch_modules.rules import undescribed

from .candidates import WantedGraphs, candidates
from .determinism import ProbeSamples, check_function
from .evaluation_mode import frozen_norms, left_out
from .module_check import (
    check_head,
    exportable_copy,
    faulty_layer,
    not_finite,
    other_than_logits,
    unused_head,
)
from .parity import RELATIVE, GraphCandidate, check_blocked, check_parity, random_inputs, random_targets
from .progress import ExportStep
from .trace import TRACED_BATCH

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportSpec:
    """Settings of an export: the description of the bundle that the module lacks, and the graphs to make.

    labels: the classes; of values and flags, the outputs; of the input itself, normal and other samples.
    sets: tunable sets, each with its settings, as in {"all": {}, "lora": {"rank": 8}}. batchnorm "training":
    batch norms whose own parameters are in the trained set use batch statistics and update the running ones;
    "frozen": all keep their running statistics. pretrained: the weights are trained;
    running statistics of a batch norm that are not those of a new one say so too.
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
    ort_training: bool = False  # also training graphs of onnxruntime-training, which must be installed
    precisions: tuple[str, ...] = ()  # of further forward graphs: int8, float16
    stored_as: Literal["float32", "float16"] = "float32"  # float16 rounds them; the file is half as big
    scaled: bool = False  # each feature has a scale before the head, 1 until class means set it
    pretrained: bool = False
    loss: TargetSpec = CROSS_ENTROPY
    own_loss: OwnLoss | None = None  # where `loss` is the user's own: its function
    source: Source | None = None
    tokenizer: bytes | None = None  # file of the tokenizer, if the input is text


@dataclass(frozen=True)
class CheckedGraph:
    """A graph that has passed the parity check, with the worst difference, as `check_parity` gives it."""

    name: str
    bytes: int
    worst: float


@dataclass(frozen=True)
class ExportWatch:
    """What is called during an export: for each step as it begins, and each graph that passed the check."""

    begin: Callable[[ExportStep], None] = lambda step: None
    report: Callable[[CheckedGraph], None] = lambda graph: None


@dataclass(frozen=True)
class PassedGraphs:
    """The graphs that have passed the parity check so far, and their files, by name; `count`: of how many."""

    watch: ExportWatch
    count: int
    graphs: dict[str, Graph] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def begin(self, what: str) -> None:
        """A step begins."""
        self.watch.begin(ExportStep(what, len(self.graphs), self.count))

    def add(self, name: str, graph: Graph, onnx: bytes, worst: float) -> None:
        """Adds a graph and reports it."""
        self.graphs[name], self.files[name] = graph, onnx
        self.watch.report(CheckedGraph(name, len(onnx), worst))


def export(
    module: nn.Module, spec: ExportSpec, folder: Path, watch: ExportWatch | None = None
) -> bundles.Bundle:
    """Writes the bundle into `folder` and opens it.

    The module is exported in eval mode, also for training: there is no dropout. Raises ExportError for a
    module that cannot be traced, and ParityError if a graph computes something else than torch; nothing is
    written then.
    """
    with other_errors(type(module).__name__):
        return _export(module, spec, folder, watch or ExportWatch())


def _export(module: nn.Module, spec: ExportSpec, folder: Path, watch: ExportWatch) -> bundles.Bundle:
    _check_spec(spec)
    passed = PassedGraphs(watch, _graph_count(spec))
    passed.begin("looking at the network")
    module = exportable_copy(module, _example(spec.input))
    if spec.stored_as == "float16":
        _round_to_float16(module)
    if spec.scaled:
        scale_features(module, find_head(module, spec.head))
    injected = inject(module, spec.sets, spec.head)
    if warning := change_warning(spec.sets):
        logger.warning("%s", warning)
    outputs = level_outputs(module, spec.outputs)
    loss = loss_of(spec.loss, spec.own_loss)
    subject = FunctionalModule(module, find_head(module, spec.head), _example(spec.input), outputs, loss)
    uncalled = replace(subject, module=copy.deepcopy(module))
    sizes = _checked_sizes(subject, spec)
    trained_norms = batch_norms(module) if spec.batchnorm == "training" else ()
    check_function(uncalled, trained_norms, partial(_samples, subject, sizes))
    _say_left_out(uncalled, spec)
    parameters = parameter_table(module, assign_levels(module, subject.head, spec.levels), injected)
    sets = {str(s): tuple(p.name for p in parameters if s in p.sets) for s in injected.settings}
    request = WantedGraphs(
        sets, spec.objectives, spec.features, spec.batchnorm == "training", spec.ort_training
    )
    for candidate in _named_candidates(subject, request, passed.begin):
        passed.begin(f"comparing {candidate.name} with torch")
        _check_allowed(candidate)
        worst = check_parity(subject, candidate)
        if worst > RELATIVE:
            logger.warning(
                "graph %s: the largest difference is %.1g, at a value that rounding moves across the kink "
                "of a ReLU or the like; torch's own result changes by as much",
                candidate.name,
                worst,
            )
        right = _described_if_right(subject, candidate)
        passed.add(right.name, _manifest_graph(right, passed.graphs), right.onnx, worst)
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
        loss=msgspec.UNSET if spec.loss == CROSS_ENTROPY else spec.loss,
        pretrained=spec.pretrained or _has_running_statistics(module) or msgspec.UNSET,
    )
    return bundles.write(folder, manifest, weights, passed.files, spec.tokenizer)


def _graph_count(spec: ExportSpec) -> int:
    """The number of graphs to make; objectives that train few levels alone may have fewer."""
    of_sets = len(spec.sets) * (1 + len(spec.objectives) + spec.ort_training)
    return 1 + len(spec.features) + of_sets + len(spec.precisions)


def _named_candidates(
    subject: FunctionalModule, request: WantedGraphs, begin: Callable[[str], None]
) -> Iterator[GraphCandidate]:
    """As `candidates`; an error names the layer that cannot be exported."""
    try:
        yield from candidates(subject, request, begin)
    except ExportError as error:
        begin("looking for the layer that cannot be exported")
        if not (layer := faulty_layer(subject)):
            raise
        graph = str(error).split()[1].partition(".")[0]
        way = "" if graph in ("forward", "loss") else ", or train the head alone (--tunable head)"
        raise ExportError(f"{error}; it is layer {layer}: replace it{way}") from error


@contextmanager
def other_errors(name: str) -> Iterator[None]:
    """Raises errors of the user's code, and of torch about it, as ExportError."""
    try:
        yield
    except (ModelError, OSError):
        raise
    except Exception as error:
        raise ExportError(
            f"{name} cannot be exported: {type(error).__name__}: {one_line(error)}{raised_at(error)}"
        ) from error


def _say_left_out(subject: FunctionalModule, spec: ExportSpec) -> None:
    if layers := left_out(subject):
        logger.warning("exported as in eval mode, so that devices train without: %s", layers)
    if spec.batchnorm == "frozen" and (frozen := frozen_norms(subject.module)):
        logger.warning("%s", frozen)


def _samples(subject: FunctionalModule, sizes: OutputSizes, count: int) -> ProbeSamples:
    generator = torch.Generator().manual_seed(count)
    target = subject.loss.target
    return ProbeSamples(
        random_inputs(subject.example, count, generator),
        random_targets(target, sizes.classes, count, generator),
    )


def _has_running_statistics(module: nn.Module) -> bool:
    """Whether a batch norm has seen data: a new one has means of 0."""
    return any(
        name.endswith("running_mean") and bool(values.any()) for name, values in module.named_buffers()
    )


def _described_if_right(subject: FunctionalModule, candidate: GraphCandidate) -> GraphCandidate:
    """The graph; without its layer labels if it is wrong in the blocked layout."""
    try:
        check_blocked(subject, candidate)
    except ParityError as error:
        logger.warning("its convolutions will be slower than they could be: %s", error)
        return replace(candidate, onnx=undescribed(candidate.onnx))
    return candidate


def _check_allowed(candidate: GraphCandidate) -> None:
    """Raises ExportError for a graph that devices would refuse."""
    try:
        check_graph(candidate.onnx)
    except BundleError as error:
        raise ExportError(f"graph {candidate.name} cannot run on a device: {error}") from error


def _check_spec(spec: ExportSpec) -> None:
    if len(set(spec.labels)) != len(spec.labels) or not all(spec.labels):
        raise ExportError(f"labels are {', '.join(spec.labels)}: one is empty or occurs twice")
    if unknown := sorted(set(spec.objectives) - set(TRAINING)):
        raise ExportError(f"there is no objective {unknown[0]!r}; there are {', '.join(TRAINING)}")
    if unknown := sorted(set(spec.precisions) - set(PRECISIONS[1:])):
        raise ExportError(f"there is no precision {unknown[0]!r}; there are {', '.join(PRECISIONS[1:])}")
    if (weights := spec.loss.class_weights) and len(weights) != len(spec.labels):
        raise ExportError(f"there are {len(weights)} weights of classes for {len(spec.labels)} labels")
    if weights and spec.ort_training:
        raise ExportError("graphs of onnxruntime-training have no weights of classes")
    if not spec.loss.is_cross_entropy:
        _check_loss(spec)
    if spec.ort_training and "train" not in spec.objectives:
        raise ExportError("graphs of onnxruntime-training are for objective train, which is not asked for")


def _check_loss(spec: ExportSpec) -> None:
    loss, other = spec.loss, sorted(set(spec.objectives) - set(OF_ANY_LOSS))
    if other:
        raise ExportError(
            f"objective {other[0]} is of classes, and the loss is {loss.description}: "
            f"choose {' or '.join(OF_ANY_LOSS)}"
        )
    if spec.ort_training:
        raise ExportError(
            f"graphs of onnxruntime-training are for cross-entropy, and the loss is {loss.description}"
        )
    if loss.compared == "input" and spec.input.vocabulary is not None:
        raise ExportError(f"the loss is {loss.description}, which is token ids: expected an input of numbers")
    columns, outputs = len(loss.columns), len(spec.labels)
    if loss.has_columns and columns > outputs:
        raise ExportError(f"the loss is of {columns} columns, and {outputs} labels name fewer outputs")
    if loss.has_columns and not loss.own and columns < outputs:
        raise ExportError(
            f"the loss {loss.loss} is of {columns} columns, and there are {outputs} outputs: expected as many"
        )


def _check_own_loss(subject: FunctionalModule, outputs: torch.Tensor) -> None:
    """Raises ExportError unless the user's loss gives a number for each sample."""
    name, y = subject.loss.target.loss, subject.loss.example(len(outputs))
    try:
        losses = subject.loss(outputs, y, subject.example)
    except Exception as error:
        raise ExportError(
            f"loss {name} fails on outputs {tuple(outputs.shape)} and targets {subject.loss.target.dtype} "
            f"{tuple(y.shape)}: {one_line(error)}"
        ) from error
    if not isinstance(losses, torch.Tensor) or losses.shape != outputs.shape[:1]:
        shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ExportError(
            f"loss {name} gives {shape} for {len(outputs)} samples, "
            f"expected the loss of each: ({len(outputs)},)"
        )


def _add_lower(passed: PassedGraphs, weights: Tensors, spec: ExportSpec) -> None:
    for precision in spec.precisions:
        from .quantise import lower_forward

        passed.begin(f"writing forward in {precision}")
        lowered = lower_forward(passed.files["forward"], weights, spec.input, precision)
        passed.add(f"forward.{precision}", lowered.graph, lowered.onnx, lowered.worst)


def _manifest_graph(candidate: GraphCandidate, graphs: Mapping[str, Graph]) -> Graph:
    """The manifest's entry of a graph.

    Shapes of onnxruntime-training's operators are not known, so such a graph has the cost of the graph
    `train` of the same set.
    """
    kind, _, tunable = candidate.name.partition(".")
    work = graphs[f"train.{tunable}"] if kind == ORT_TRAINING else graph_cost(candidate.onnx)
    return Graph(
        f"{candidate.name}.onnx", "", len(candidate.onnx), candidate.trainable,
        work.flops, work.fixed_bytes, work.bytes_per_sample, candidate.frozen,
        candidate.statistics, candidate.extras,
    )  # fmt: skip


def _features(sizes: OutputSizes, spec: ExportSpec) -> dict[Level, Shape]:
    levels = (cast(Level, level) for level in LEVELS if level in spec.features)
    return {**{level: sizes.maps[level] for level in levels}, "head": (sizes.width,)}


def _example(spec: InputSpec) -> torch.Tensor:
    """An example input: standard normal, or random token ids.

    The ids include the highest and the lowest ones, some of which mean padding.
    """
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


def _checked_sizes(subject: FunctionalModule, spec: ExportSpec) -> OutputSizes:
    """The module's output sizes. Raises ExportError unless head(features) gives the logits of all labels."""
    head = subject.head
    check_head(subject.module, head)
    try:
        with torch.no_grad():
            passed = run(subject, subject.example, stored_tensors(subject.module))
    except HeadUnused:
        raise ExportError(unused_head(subject)) from None
    except Exception as error:
        raise ExportError(
            f"the module fails on {tuple(subject.example.shape)}: {one_line(error)}{raised_at(error)}"
            f"{_settings_hint(spec)}"
        ) from error
    logits, features = passed.logits, passed.features
    if not isinstance(logits, torch.Tensor):
        raise ExportError(f"the module returns a {type(logits).__name__}, expected the logits alone")
    if features.dim() != 2:
        raise ExportError(f"head {head} is given {tuple(features.shape)}, expected (n, width)")
    if not torch.isfinite(logits).all():
        raise ExportError(not_finite(subject))
    if other := other_than_logits(subject, passed):
        raise ExportError(other)
    values = spec.loss.compared == "input"
    count = prod(spec.input.shape) if values else len(spec.labels)
    if logits.shape[1] != count:
        raise ExportError(
            f"head {head} gives {logits.shape[1]} logits for {count} "
            f"{'values of the input' if values else 'labels'}{_settings_hint(spec)}"
        )
    if spec.loss.own:
        _check_own_loss(subject, logits)
    return sizes_of(passed)


def _settings_hint(spec: ExportSpec) -> str:
    """The settings of a network from this package, as the end of an error message; else empty."""
    if spec.source is None:
        return ""
    name, shape = spec.source.network, ",".join(map(str, spec.input.shape))
    has = networks.described(name, spec.source.settings)
    return f"; {name} has {has}: make that fit an input of {shape} and {len(spec.labels)} labels with --set"


def _round_to_float16(module: nn.Module) -> None:
    """Rounds stored tensors to float16 values, before tracing; a tensor that float16 cannot hold stays."""
    for tensor in stored_tensors(module).values():
        half = tensor.to(torch.float16)
        if tensor.dtype == torch.float32 and torch.isfinite(half).all():
            tensor.copy_(half)


def _head(subject: FunctionalModule, width: int) -> Head:
    has_bias = subject.module.get_submodule(subject.head).bias is not None
    return Head(f"{subject.head}.weight", f"{subject.head}.bias" if has_bias else None, width)
