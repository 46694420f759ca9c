"""Traces a module's forward pass, loss and gradients into torch graphs with a symbolic batch size."""
# mypy: allow-untyped-calls, allow-any-unimported

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import transformer

from device_runtime.models.bundles.manifest import Extra
from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    batch_norms,
    recorded_statistics,
    run,
    statistics,
    stored_tensors,
)
from device_runtime.models.torch_modules.objectives import (
    OBJECTIVES,
    GraphInputs,
    influencing_tensors,
    loss_and_gradients,
    losses_of,
    output_sizes,
)
from device_runtime.models.torch_modules.rules import GRADIENTS_ONLY, RULES

from .substitutes import Substitutes

aten = torch.ops.aten

TRACED_BATCH = 4  # any number above 1: torch treats 0 and 1 as constants

# _MORE are decomposed in addition to torch's core table. _KEPT are not: they are exported better whole.
_MORE = [
    aten.addmm, aten.t, aten.hardswish, aten.hardswish_backward, aten.hardtanh_backward, aten.silu_backward,
    aten.gelu_backward, aten.native_layer_norm_backward, aten._log_softmax_backward_data,
    aten._softmax_backward_data, aten.tanh_backward, aten.sigmoid_backward, aten.leaky_relu_backward,
    aten.threshold_backward, aten.native_batch_norm_backward, aten.unbind.int, aten.stack,
    aten.unsafe_split.Tensor, aten.split.Tensor, aten._adaptive_avg_pool2d, aten._unsafe_view,
]  # fmt: skip
_KEPT = [
    aten.silu.default, aten._log_softmax.default, aten._softmax.default, aten.native_layer_norm.default,
    aten.gelu.default,
]  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """Names of a graph's outputs, and of its inputs other than x and the tensors."""

    names: tuple[str, ...]
    labels: bool = False
    gradients: bool = False
    extras: tuple[Extra, ...] = ()


@dataclass(frozen=True)
class Traced:
    """A torch graph, example arguments (x, [y], [extra inputs], tensors), and the names of all inputs."""

    graph: torch.fx.GraphModule
    example: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: Outputs


def trace_forward(subject: FunctionalModule) -> Traced:
    """x, every tensor -> logits, features."""

    def compute(inputs: GraphInputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            passed = run(subject, inputs.x, inputs.tensors)
        return passed.logits, passed.features

    return _trace(subject, compute, Outputs(("logits", "features")))


def trace_features(subject: FunctionalModule, level: str) -> Traced:
    """x, every tensor -> the feature map at the end of a level."""

    def compute(inputs: GraphInputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (run(subject, inputs.x, inputs.tensors).maps[level],)

    return _trace(subject, compute, Outputs(("features",)))


def trace_losses(subject: FunctionalModule) -> Traced:
    """x, y, every tensor -> the loss of each sample."""

    def compute(inputs: GraphInputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (losses_of(subject, inputs),)

    return _trace(subject, compute, Outputs(("losses",), labels=True))


def trace_training(subject: FunctionalModule, objective: str, trainable: Sequence[str]) -> Traced:
    """x, y, extra inputs, every tensor -> loss, its gradient for each trainable tensor, next statistics.

    Layers of the subject that are in training mode use batch statistics.
    """
    moved = statistics(
        [name for name in batch_norms(subject.module) if subject.module.get_submodule(name).training]
    )
    extras = OBJECTIVES[objective].extras(output_sizes(subject))

    def compute(inputs: GraphInputs) -> tuple[Tensor, ...]:
        with recorded_statistics(subject) as recorded:
            loss, grads = loss_and_gradients(subject, objective, inputs, trainable)
        return (loss, *grads, *(recorded[name] for name in moved))

    names = ("loss", *(f"grad.{name}" for name in trainable), *(f"next.{name}" for name in moved))
    return _trace(subject, compute, Outputs(names, labels=True, gradients=True, extras=extras))


def trainable_sets(
    subject: FunctionalModule, objective: str, sets: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The tunable sets of which every tensor influences the objective. `sets`: name -> tensor names."""
    extras = OBJECTIVES[objective].extras(output_sizes(subject))
    outputs, tensors = Outputs((), labels=True, extras=extras), stored_tensors(subject.module)
    x, y, values, _ = _arguments(subject, subject.example, outputs, tensors)
    inputs = GraphInputs(
        x, y, {extra.name: value for extra, value in zip(extras, values, strict=True)}, tensors
    )
    together = tuple(dict.fromkeys(name for names in sets.values() for name in names))
    influences = influencing_tensors(subject, objective, inputs, together)
    return {tunable: names for tunable, names in sets.items() if influences.issuperset(names)}


def _trace(subject: FunctionalModule, compute: Callable[[GraphInputs], Any], outputs: Outputs) -> Traced:
    tensors = stored_tensors(subject.module)
    extras = {extra.name: extra for extra in outputs.extras}
    if clash := tensors.keys() & {"x", "y", *extras, *outputs.names}:
        raise ExportError(
            f"the module's tensor {min(clash)} has the name of an input or output of the graph; rename it"
        )

    def flat(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        y = rest[0] if outputs.labels else x
        values = dict(zip(extras, rest[1], strict=True)) if extras else {}
        return tuple(compute(GraphInputs(x, y, values, dict(zip(tensors, rest[-1], strict=True)))))

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    x = _fake_input(mode, subject.example)
    with mode:
        fakes = _arguments(subject, x, outputs, tensors)
    with _tracing(mode):
        table = _decompositions(outputs.gradients)
        graph = make_fx(flat, decomposition_table=table, _allow_non_fake_inputs=True)(*fakes)
    if not isinstance(x.shape[0], torch.SymInt) or x.shape[0].node.expr.is_number:
        raise ExportError(
            "the number of samples becomes a constant: write x.shape[0] for len(x), and take no int() of it"
        )
    graph.graph.eliminate_dead_code()
    graph.recompile()
    names = ("x", *(["y"] if outputs.labels else []), *extras, *tensors)
    return Traced(graph.eval(), _arguments(subject, subject.example, outputs, tensors), names, outputs)


def _arguments(
    subject: FunctionalModule, x: Tensor, outputs: Outputs, tensors: Mapping[str, Tensor]
) -> tuple[Any, ...]:
    """Arguments x, [y], [extra inputs], tensors of the right shapes; all but x are zeros or ones."""
    batch = x.shape[0]
    y = [subject.loss.example(batch)] if outputs.labels else []
    extras = [torch.ones((batch, *e.shape) if e.per_sample else e.shape) for e in outputs.extras]
    return (x, *y, *([extras] if extras else []), [torch.zeros_like(tensor) for tensor in tensors.values()])


def _fake_input(mode: FakeTensorMode, example: Tensor) -> Tensor:
    sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (example.dim() - 1)
    context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * example.dim())
    return mode.from_tensor(example, symbolic_context=context, source=ConstantSource("x"))


@contextmanager
def _tracing(mode: FakeTensorMode) -> Iterator[None]:
    """Sets torch up for tracing; without the python dispatcher the batch size becomes the example's."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="TF32 acceleration")  # from torch's own mkldnn switch
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mode)
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(Substitutes())
        stack.enter_context(_no_look_at_masks())
        yield


@contextmanager
def _no_look_at_masks() -> Iterator[None]:
    """Keeps nn.TransformerEncoder from looking at the values of a mask, to find out whether it is causal.

    It may use another kernel then, with the same result.
    """
    look = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = look


def _decompositions(gradients: bool) -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = dict(_core_aten_decompositions_post_autograd())
    table.update(get_decompositions(_MORE))
    for operator in _KEPT:
        table.pop(operator, None)
    table.update(RULES)
    for operator in () if gradients else GRADIENTS_ONLY:
        del table[operator]
    return table
