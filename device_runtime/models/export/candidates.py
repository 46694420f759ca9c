"""Makes the ONNX graphs of a bundle: forward, feature maps, losses, and training graphs.

Graphs are traced as seldom as possible: one trace has the gradients of several tunable sets, and each set's
graph is cut out of it.

Training graphs for devices with onnxruntime-training have gradients that onnxruntime-training builds. Its
artifact generator is not used: it writes the weights once more into a checkpoint, and merges equal constants,
which are then trained jointly. Its gradient builder alone, given the loss of `trace` with all parameters as
inputs, makes a graph with the same inputs and outputs as the other training graphs. The builder has no
gradients for some operators; for others it has those of batch statistics, or gradients that need a fixed
batch. Before it is called, such operators are replaced by ones for which it builds right gradients.
"""
# mypy: allow-untyped-calls, allow-any-unimported

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import nn

from device_runtime.models.available_engines.onnx_engine import VERSION, available
from device_runtime.models.bundles.manifest import ABOVE, ORT_TRAINING
from device_runtime.models.errors import ExportError, one_line
from device_runtime.models.networks.own import raised_at
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    batch_norms,
    statistics,
    with_batch_statistics,
)

from .graph import convert, subgraph, to_onnx
from .parity import GraphCandidate
from .trace import trace_features, trace_forward, trace_losses, trace_training, trainable_sets

_ADVICE = {
    "modified by an inplace operation": "the module changes in place a value that its gradient needs; "
    "write x = x * 2 for x *= 2, and relu(x) for x.relu_()",
    "data-dependent": "the module's Python code branches on values of its input; use torch.where instead",
    "does not require grad and does not have a grad_fn": "no weight influences the loss: remove .detach(), "
    ".data and torch.no_grad()",
    "SymIntArrayRef expected": "an operator of torch cannot be traced without a fixed number of samples: "
    "write it in simpler ones",
    ".numpy() is not supported": "numpy is called on a tensor, and gives no gradient: use torch",
    "Expected more than 1 value per channel": "a batch norm without running statistics cannot take one "
    "sample alone; give it track_running_stats=True, or use GroupNorm",
}
"""Part of a torch error's message -> what the user can do about it."""


@dataclass(frozen=True)
class WantedGraphs:
    """The graphs that a bundle shall have: tunable sets with tensor names, objectives, feature maps."""

    sets: Mapping[str, tuple[str, ...]]
    objectives: tuple[str, ...]
    features: tuple[str, ...]
    batch_statistics: bool  # used by batch norms whose own parameters are trained
    ort_training: bool = False  # also graphs for the engine onnxruntime-training


def candidates(
    subject: FunctionalModule, request: WantedGraphs, begin: Callable[[str], None] = lambda what: None
) -> Iterator[GraphCandidate]:
    """Yields forward, the feature maps, then the loss and training graphs of each tunable set.

    begin: called before each graph is traced, with what is done.
    """
    begin("tracing forward")
    with export_errors("forward"):
        forward = to_onnx(trace_forward(subject))
    yield GraphCandidate("forward", forward)
    for level in request.features:
        if level not in subject.outputs:
            raise ExportError(f"graph features.{level} needs the submodule at the end of that level: name it")
        begin(f"tracing features.{level}")
        with export_errors(f"features.{level}"):
            onnx = to_onnx(trace_features(subject, level))
        yield GraphCandidate(f"features.{level}", onnx)
    begin("tracing the losses")
    yield from _losses(subject, request)
    for objective in request.objectives:
        for norms, sets in _traced_together(subject, _with_reached_sets(subject, request, objective)):
            begin(f"tracing {objective}.{'/'.join(sets)}")
            yield from _training(with_batch_statistics(subject, norms), objective, norms, sets)
    if request.ort_training:
        for norms, sets in _traced_together(subject, request):
            for tunable, names in sets.items():
                begin(f"building {ORT_TRAINING}.{tunable}")
                onnx = training_graph(with_batch_statistics(subject, norms), names)
                yield GraphCandidate(f"{ORT_TRAINING}.{tunable}", onnx, names, norms=norms)


def _with_reached_sets(subject: FunctionalModule, request: WantedGraphs, objective: str) -> WantedGraphs:
    """Removes tunable sets with tensors that the objective does not reach.

    Objectives of ABOVE train on the feature maps of a level, so tensors below it have no gradient. Raises
    ExportError if no set is left.
    """
    if objective not in ABOVE:
        return request
    with export_errors(objective):
        sets = trainable_sets(subject, objective, request.sets)
    if not sets:
        tunable_sets = ", ".join(request.sets)
        raise ExportError(
            f"objective {objective} trains what is above a level, such as tunable set {ABOVE[objective]}; "
            f"none of {tunable_sets} is all above it"
        )
    return replace(request, sets=sets)


def _losses(subject: FunctionalModule, request: WantedGraphs) -> Iterator[GraphCandidate]:
    with export_errors("loss"):
        traced = trace_losses(subject)
        converted = convert(traced)
    for tunable, names in request.sets.items():
        yield GraphCandidate(f"loss.{tunable}", subgraph(converted, traced, names, ("losses",)), names)


def _training(
    subject: FunctionalModule, objective: str, norms: tuple[str, ...], sets: Mapping[str, tuple[str, ...]]
) -> Iterator[GraphCandidate]:
    """Traces the gradients of all sets at once, and cuts out the part that each set's gradients need."""
    together = tuple(dict.fromkeys(name for names in sets.values() for name in names))
    moved = statistics(norms)
    with export_errors(f"{objective}.{'/'.join(sets)}"):
        traced = trace_training(subject, objective, together)
        converted = convert(traced)
    for tunable, names in sets.items():
        outputs = ("loss", *(f"grad.{name}" for name in names), *(f"next.{name}" for name in moved))
        onnx = subgraph(converted, traced, (*names, *moved), outputs)
        yield GraphCandidate(f"{objective}.{tunable}", onnx, names, traced.outputs.extras, norms)


def _traced_together(
    subject: FunctionalModule, request: WantedGraphs
) -> list[tuple[tuple[str, ...], dict[str, tuple[str, ...]]]]:
    """Groups the tunable sets that are traced together, by the layers that use batch statistics.

    A network whose forward pass depends on what is trained divides the groups by its method `traced_with`.
    """
    alike: dict[tuple[Any, ...], dict[str, tuple[str, ...]]] = {}
    divide = getattr(subject.module, "traced_with", lambda names: ())
    for tunable, names in request.sets.items():
        norms = _trained_norms(subject.module, names) if request.batch_statistics else ()
        alike.setdefault((norms, divide(names)), {})[tunable] = names
    return [(norms, sets) for (norms, _), sets in alike.items()]


def _trained_norms(module: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(norm for norm in batch_norms(module) if f"{norm}.weight" in names or f"{norm}.bias" in names)


def _first_cause(error: BaseException) -> BaseException:
    """The innermost cause: torch's exporter wraps an error into pages of advice about itself."""
    return _first_cause(error.__cause__) if error.__cause__ is not None else error


@contextmanager
def export_errors(graph: str) -> Iterator[None]:
    """Raises any exception as an ExportError, since tracing runs the user's module, which may raise any."""
    try:
        yield
    except Exception as error:
        raise ExportError(f"graph {graph} cannot be exported: {advice(error)}{raised_at(error)}") from error


def advice(error: BaseException, otherwise: str = "") -> str:
    """What the user can do about an error of torch; else its text, and `otherwise`."""
    text = one_line(_first_cause(error))
    if unknown := re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text):
        return f"torch's operator {unknown[1]} has no counterpart in ONNX: write it in simpler ones"
    return next((say for part, say in _ADVICE.items() if part in text), text + otherwise)


# Training graphs of onnxruntime-training

_FAILS = "graph ort-training cannot be exported"
_UNKNOWN = "gradient builder has not been registered: "


def training_graph(subject: FunctionalModule, trainable: Sequence[str]) -> bytes:
    """The ONNX file of x, y, trainable tensors, statistics -> loss, grad.NAME, next.NAME; the same each time.

    The loss is the mean cross-entropy in nats. Other tensors are external initialisers; layers of the
    subject that are in training mode use batch statistics. Raises ExportError if onnxruntime-training is
    missing, or has no gradient for an operator, which the message names.
    """
    if missing := available():
        raise ExportError(f"{_FAILS}: {missing}")
    with export_errors("ort-training"):
        model = onnx.load_from_string(_loss_graph(subject, trainable))
        make_differentiable(model)
    with_gradients = onnx.load_from_string(_differentiated(model.SerializeToString(), trainable))
    if "AveragePoolGrad" in (node.op_type for node in with_gradients.graph.node):  # crashes the process
        raise ExportError(f"{_FAILS}: onnxruntime-training pools averages for a fixed batch only")
    _finish(with_gradients, [value.name for value in model.graph.output], trainable)
    onnx_file: bytes = with_gradients.SerializeToString(deterministic=True)
    return onnx_file


def _loss_graph(subject: FunctionalModule, trainable: Sequence[str]) -> bytes:
    """The ONNX file of x, y, trainable tensors, statistics -> loss, next statistics.

    It is cut out of a training graph, where normalisation is written in operators that have gradients.
    """
    traced = trace_training(subject, "train", trainable[-1:])
    moved = [name for name in traced.outputs.names if name.startswith("next.")]
    inputs = (*trainable, *(name.removeprefix("next.") for name in moved))
    return subgraph(convert(traced), traced, inputs, ("loss", *moved))


def _differentiated(loss_graph: bytes, trainable: Sequence[str]) -> bytes:
    """The graph with an output NAME_grad for each trainable tensor, in any order."""
    from onnxruntime import SessionOptions
    from onnxruntime.capi._pybind_state import GradientGraphBuilder

    options = SessionOptions()
    options.log_severity_level = 3  # the builder reports each of its passes otherwise
    try:
        builder = GradientGraphBuilder(loss_graph, {"loss"}, set(trainable), "loss", options)
        builder.build()
        return bytes(builder.get_model())
    except Exception as error:
        text = one_line(error)
        if _UNKNOWN in str(error):
            operator = str(error).split(_UNKNOWN)[1].split()[0]
            text = f"onnxruntime-training {VERSION} has no gradient for operator {operator}"
        raise ExportError(f"{_FAILS}: {text}") from error


def _finish(model: Any, output_names: Sequence[str], trainable: Sequence[str]) -> None:
    """Renames and orders the outputs, and removes whatever has no effect on the computation."""
    graph = model.graph
    names = {f"{name}_grad": f"grad.{name}" for name in trainable}
    outputs = {value.name: value for value in graph.output}
    if idle := [name for grad, name in names.items() if grad not in outputs]:
        raise ExportError(f"{_FAILS}: {idle[0]} does not influence the loss")
    values = [onnx.ValueInfoProto.FromString(outputs[n].SerializeToString()) for n in (*output_names, *names)]
    del graph.output[:]
    graph.output.extend(values)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.doc_string = ""
    for value in graph.output:
        value.name = names.get(value.name, value.name)
    graph.ClearField("value_info")
    used = {node.domain for node in graph.node} | {""}
    domains = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(domains)


# Operators that onnxruntime-training can differentiate

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators


@dataclass(frozen=True)
class _GraphValues:
    """Shapes and constants of a graph's values by name; a size that is not fixed is 0."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, model: Any) -> "_GraphValues":
        graph = onnx.shape_inference.infer_shapes(model).graph
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        inside = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
        return cls(shapes, {tensor.name: numpy_helper.to_array(tensor) for tensor in inside})


_Rewrite = Callable[[Any, _GraphValues], Sequence[Any]]


def make_differentiable(model: Any) -> None:
    """Rewrites the operators of an onnx.ModelProto in place so that right gradients can be built for them.

    The model, which has no gradients yet, computes the same as before.
    """
    values = _GraphValues.of(model)
    nodes: list[Any] = []
    for node in model.graph.node:
        rewrite = _REWRITES.get(node.op_type)
        nodes.extend(rewrite(node, values) if rewrite else [node])
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def _frozen_batch_norm(node: Any, values: _GraphValues) -> Sequence[Any]:
    """x * scale + shift by channel, since the operator's own gradient is that of batch statistics."""
    x, weight, bias, mean, variance = node.input
    y = node.output[0]
    own = {name: f"{y}.{name}" for name in ("eps", "moved", "std", "scale", "sum", "shift", "axes", "ax")}
    axes = list(range(1, len(values.shapes[x]) - 1))
    return [
        _constant(own["eps"], [_attribute(node, "epsilon", 1e-5)], ()),
        helper.make_node("Add", [variance, own["eps"]], [own["moved"]]),
        helper.make_node("Sqrt", [own["moved"]], [own["std"]]),
        helper.make_node("Div", [weight, own["std"]], [own["scale"]]),
        helper.make_node("Mul", [mean, own["scale"]], [own["sum"]]),
        helper.make_node("Sub", [bias, own["sum"]], [own["shift"]]),
        *_per_channel(own["scale"], axes),
        *_per_channel(own["shift"], axes),
        helper.make_node("Mul", [x, f"{own['scale']}.wide"], [own["ax"]]),
        helper.make_node("Add", [own["ax"], f"{own['shift']}.wide"], [y]),
    ]


def _per_channel(name: str, axes: Sequence[int]) -> Sequence[Any]:
    """(channels,) -> (channels, 1, ..)."""
    tensor = helper.make_tensor("axes", onnx.TensorProto.INT64, [len(axes)], axes)
    return [
        helper.make_node("Constant", [], [f"{name}.axes"], value=tensor),
        helper.make_node("Unsqueeze", [name, f"{name}.axes"], [f"{name}.wide"]),
    ]


def _layer_norm(node: Any, values: _GraphValues) -> Sequence[Any]:
    """Adds the bias that the gradient needs, and outputs for mean and reciprocal deviation."""
    y = node.output[0]
    added = []
    if len(node.input) < 3:
        shape = values.shapes[node.input[1]]
        added.append(_constant(f"{y}.bias", [0.0] * prod(shape), shape))
        node.input.append(f"{y}.bias")
    node.output[:] = [y, f"{y}.mean", f"{y}.deviation"]
    return [*added, node]


def _max_pool(node: Any, values: _GraphValues) -> Sequence[Any]:
    """Looks x up at the places of the maxima, since MaxPoolGrad needs a fixed batch.

    ONNX counts these places in the whole of x.
    """
    x, y = node.input[0], node.output[0]
    node.output[:] = [f"{y}.values", f"{y}.places"]
    everything = helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [-1])
    return [
        node,
        helper.make_node("Constant", [], [f"{y}.shape"], value=everything),
        helper.make_node("Reshape", [x, f"{y}.shape"], [f"{y}.flat"]),
        helper.make_node("Gather", [f"{y}.flat", f"{y}.places"], [y]),
    ]


def _clip(node: Any, values: _GraphValues) -> Sequence[Any]:
    """Puts a Relu before a clip at 0: the gradient at the lower bound is 1 otherwise, and 0 in torch.

    The difference shows in ReLU6, where 0 is frequent.
    """
    x, y = node.input[0], node.output[0]
    lower = values.constants.get(node.input[1]) if len(node.input) > 1 else None
    if lower is None or lower != 0:
        return [node]
    node.input[:2] = [f"{y}.relu", ""]
    return [helper.make_node("Relu", [x], [f"{y}.relu"]), node]


def _gelu(node: Any, values: _GraphValues) -> Sequence[Any]:
    """Uses ONNX Runtime's own operator, which has a gradient; that of the standard has none."""
    kind = "FastGelu" if _attribute(node, "approximate", b"none") == b"tanh" else "Gelu"
    return [helper.make_node(kind, list(node.input), list(node.output), domain=MICROSOFT)]


def _constant(name: str, values: Sequence[float], shape: Sequence[int]) -> Any:
    tensor = helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, values)
    return helper.make_node("Constant", [], [name], value=tensor)


def _attribute(node: Any, name: str, default: Any) -> Any:
    values = [helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return values[0] if values else default


_REWRITES: dict[str, _Rewrite] = {
    "BatchNormalization": _frozen_batch_norm,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "Clip": _clip,
    "Gelu": _gelu,
}
