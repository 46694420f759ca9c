"""Training graphs whose gradients onnxruntime-training builds, for devices that have that build.

Its artifact generator is left out: it writes the weights once more into a checkpoint, and merges equal
constants, which then train jointly. Its gradient builder alone, given the loss of `trace` with all
parameters as inputs, makes a graph of the same inputs and outputs as the other training graphs.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Sequence
from typing import Any

import onnx

from device_runtime.models.engines.ort_training_engine import VERSION, available
from device_runtime.models.errors import ExportError, one_line

from .candidates import export_errors
from .differentiable import make_differentiable
from .graph import convert, part
from .subject import Subject
from .trace import trace_training

_FAILS = "graph ort-training cannot be exported"
_UNKNOWN = "gradient builder has not been registered: "


def training_graph(subject: Subject, trainable: Sequence[str]) -> bytes:
    """The ONNX file: x, y, trainable tensors, statistics -> loss, grad.NAME, next.NAME; deterministic.

    The loss is the mean cross-entropy in nats. Other tensors are external initialisers; layers of the
    subject that are in training mode use batch statistics. Raises ExportError where onnxruntime-training is
    missing or has no gradient for an operator, and names it.
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


def _loss_graph(subject: Subject, trainable: Sequence[str]) -> bytes:
    """x, y, trainable tensors, statistics -> loss, next statistics.

    Cut out of a training graph, since there the normalisations are in operators that have gradients.
    """
    traced = trace_training(subject, "train", trainable[-1:])
    moved = [name for name in traced.outputs.names if name.startswith("next.")]
    inputs = (*trainable, *(name.removeprefix("next.") for name in moved))
    return part(convert(traced), traced, inputs, ("loss", *moved))


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


def _finish(model: Any, kept: Sequence[str], trainable: Sequence[str]) -> None:
    """Outputs get their names and order; what says nothing of what is computed goes."""
    graph = model.graph
    names = {f"{name}_grad": f"grad.{name}" for name in trainable}
    outputs = {value.name: value for value in graph.output}
    if idle := [name for grad, name in names.items() if grad not in outputs]:
        raise ExportError(f"{_FAILS}: {idle[0]} does not influence the loss")
    wanted = [onnx.ValueInfoProto.FromString(outputs[n].SerializeToString()) for n in (*kept, *names)]
    del graph.output[:]
    graph.output.extend(wanted)
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
