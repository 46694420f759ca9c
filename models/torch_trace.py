"""A module's forward, loss and gradients as flat torch graphs whose batch alone is symbolic."""
# mypy: allow-untyped-calls, allow-any-unimported

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .torch_rules import GRADIENTS_ONLY, RULES

aten = torch.ops.aten

TRACED_BATCH = 4  # any number above 1: torch makes constants of 0 and 1

# Beside torch's core table; the exporter knows the operators of KEPT better than their parts.
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


class HeadUnused(Exception):
    """Raised when a module gives its result without a call of its head."""


@dataclass(frozen=True)
class Subject:
    """What is traced: a module in eval mode, its last linear layer, and an example input (n, ...)."""

    module: nn.Module
    head: str  # name of the linear layer whose input is the features
    example: Tensor


@dataclass(frozen=True)
class Traced:
    """A torch graph and the names of its flat inputs and outputs, in order."""

    graph: torch.fx.GraphModule
    example: tuple[Any, ...]  # x, [y], list of parameters
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, then the float32 buffers that state_dict has, by name, detached."""
    kept = module.state_dict().keys()
    buffers = {n: b for n, b in module.named_buffers() if n in kept and b.dtype == torch.float32}
    return {name: tensor.detach() for name, tensor in {**dict(module.named_parameters()), **buffers}.items()}


def trace_forward(subject: Subject) -> Traced:
    """x, every tensor -> logits, features."""

    def run(x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return forward_with_features(subject, x, dict(zip(names, tensors, strict=True)))

    names = tuple(stored_tensors(subject.module))
    return _trace(subject, run, labels=False, outputs=("logits", "features"))


def trace_losses(subject: Subject) -> Traced:
    """x, y, every tensor -> cross-entropy of each sample."""

    def run(x: Tensor, y: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (losses_of(subject, x, y, dict(zip(names, tensors, strict=True))),)

    names = tuple(stored_tensors(subject.module))
    return _trace(subject, run, labels=True, outputs=("losses",))


def trace_gradients(subject: Subject, trainable: Sequence[str]) -> Traced:
    """x, y, every tensor -> mean cross-entropy and its gradient for each trainable tensor."""

    def run(x: Tensor, y: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        loss, grads = loss_and_gradients(subject, x, y, trainable, dict(zip(names, tensors, strict=True)))
        return (loss, *grads)

    names = tuple(stored_tensors(subject.module))
    return _trace(subject, run, labels=True, outputs=("loss", *(f"grad.{name}" for name in trainable)))


def forward_with_features(subject: Subject, x: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Logits (n, classes) and what the head was given (n, width). Raises HeadUnused."""
    seen: list[Tensor] = []
    head = subject.module.get_submodule(subject.head)
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        logits = functional_call(subject.module, dict(tensors), (x,))
    finally:
        hook.remove()
    if not seen:
        raise HeadUnused(subject.head)
    return logits, seen[-1]


def loss_of(subject: Subject, x: Tensor, y: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Mean cross-entropy in nats, shape ()."""
    return functional.cross_entropy(functional_call(subject.module, dict(tensors), (x,)), y)


def losses_of(subject: Subject, x: Tensor, y: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of each sample in nats, shape (n,); their mean depends on batches by rounding only."""
    logits = functional_call(subject.module, dict(tensors), (x,))
    return -functional.log_softmax(logits, 1).gather(1, y.unsqueeze(1)).squeeze(1)


def loss_and_gradients(
    subject: Subject, x: Tensor, y: Tensor, trainable: Sequence[str], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Loss () and the gradient of each trainable tensor. `autograd.grad` keeps fused backwards whole."""
    free = {name: tensors[name].detach().requires_grad_() for name in trainable}
    with torch.enable_grad():
        loss = loss_of(subject, x, y, {**tensors, **free})
        grads = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
    if idle := [name for name, grad in zip(trainable, grads, strict=True) if grad is None]:
        raise ValueError(f"{idle[0]} does not influence the loss; give it requires_grad=False")
    return loss.detach(), grads


def _trace(subject: Subject, run: Callable[..., Any], labels: bool, outputs: tuple[str, ...]) -> Traced:
    tensors = stored_tensors(subject.module)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    x = _fake_input(mode, subject.example)
    with mode:
        y = [torch.empty((x.shape[0],), dtype=torch.int64)] if labels else []
        fakes = [torch.empty_like(tensor) for tensor in tensors.values()]
    table = _decompositions(gradients=len(outputs) > 1 and labels)
    with _tracing(mode):
        graph = make_fx(run, decomposition_table=table, _allow_non_fake_inputs=True)(x, *y, fakes)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    example_y = [torch.zeros(len(subject.example), dtype=torch.int64)] if labels else []
    example = (subject.example, *example_y, [tensor.clone() for tensor in tensors.values()])
    return Traced(graph.eval(), example, ("x", *(["y"] if labels else []), *tensors), outputs)


def _fake_input(mode: FakeTensorMode, example: Tensor) -> Tensor:
    sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (example.dim() - 1)
    context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * example.dim())
    return mode.from_tensor(example, symbolic_context=context, source=ConstantSource("x"))


@contextmanager
def _tracing(mode: FakeTensorMode) -> Iterator[None]:
    """Without the python dispatcher the batch is silently frozen to that of the example."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="TF32 acceleration")  # said by torch's mkldnn switch itself
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mode)
        stack.enter_context(enable_python_dispatcher())
        yield


def _decompositions(gradients: bool) -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = dict(_core_aten_decompositions_post_autograd())
    table.update(get_decompositions(_MORE))
    for operator in _KEPT:
        table.pop(operator, None)
    table.update(RULES)
    for operator in () if gradients else GRADIENTS_ONLY:
        del table[operator]
    return table
