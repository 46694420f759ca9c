"""Traces a module's forward pass, loss and gradients into torch graphs with a symbolic batch size."""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import log, pi
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

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

LEAST = -3e38
"""Below every value of float32 that a sum may have, but finite."""


class Substitutes(TorchFunctionMode):
    """Calls a function's substitute, if it has one that fits the arguments."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (substitute := SUBSTITUTES.get(func)) is not None:
            result = substitute(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """A group norm with a group for each channel, or a batch norm by running statistics."""
    if use_input_stats:
        return functional.group_norm(x, x.shape[1], weight, bias, eps)
    return functional.batch_norm(x, running_mean, running_var, weight, bias, False, 0.0, eps)


def pad(x: Tensor, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor | None:
    """Padding by copies: parts of x beside x, axis by axis. None for a constant, which ONNX pads itself."""
    if mode == "constant":
        return None
    for place in range(len(pads) // 2):
        before, after = pads[2 * place : 2 * place + 2]
        axis = x.dim() - 1 - place
        size = int(x.shape[axis])
        parts = [x]
        if before > 0:
            parts.insert(0, _beside(x, axis, before, mode, first=True))
        if after > 0:
            parts.append(_beside(x, axis, after, mode, first=False))
        x = torch.cat(parts, axis)
        if min(before, after) < 0:
            start = max(0, -before)
            x = x.narrow(axis, start, size + before + after)
    return x


def _beside(x: Tensor, axis: int, count: int, mode: str, first: bool) -> Tensor:
    """The `count` values that come before the first one along `axis`, or after the last one."""
    size = int(x.shape[axis])
    if mode == "circular":
        return x.narrow(axis, size - count if first else 0, count)
    if mode == "reflect":
        return x.narrow(axis, 1 if first else size - 1 - count, count).flip(axis)
    edge = x.narrow(axis, 0 if first else size - 1, 1)
    return torch.cat([edge] * count, axis)


def adaptive_avg_pool(x: Tensor, output_size: Any) -> Tensor | None:
    """A product with a matrix of shares for each axis. None where the sizes divide those before."""
    axes = range(2, x.dim())
    sizes = [output_size] * len(axes) if isinstance(output_size, int) else list(output_size)
    new_sizes = [int(x.shape[axis]) if size is None else size for axis, size in zip(axes, sizes, strict=True)]
    if all(int(x.shape[axis]) % size == 0 for axis, size in zip(axes, new_sizes, strict=True)):
        return None
    for axis, size in zip(axes, new_sizes, strict=True):
        length = int(x.shape[axis])
        bounds = [(place * length // size, -(-(place + 1) * length // size)) for place in range(size)]
        shares = torch.tensor(
            [[(start <= row < end) / (end - start) for start, end in bounds] for row in range(length)]
        )
        x = (x.movedim(axis, -1) @ shares).movedim(-1, axis)
    return x


def bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (.., i), weight (o, i, j), b (.., j) -> (.., o)."""
    outs, left, right = weight.shape
    along = (a @ weight.permute(1, 0, 2).reshape(left, outs * right)).unflatten(-1, (outs, right))
    y = (along * b.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + bias


def embedding_bag(  # the arguments of torch's function
    x: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """The mean, sum or maximum of the words of each row. None for bags of other lengths than the row."""
    if offsets is not None or x.dim() != 2 or max_norm is not None:
        return None
    words = functional.embedding(x, weight)
    if per_sample_weights is not None:
        words = words * per_sample_weights.unsqueeze(2)
    if padding_idx is None:
        return words.amax(1) if mode == "max" else words.sum(1) if mode == "sum" else words.mean(1)
    counts = (x != padding_idx % weight.shape[0]).to(words.dtype).unsqueeze(2)  # 0 for padding
    if mode == "max":
        most = torch.where(counts > 0, words, torch.full((), LEAST)).amax(1)
        return most * counts.amax(1)  # 0 for padding alone
    total = (words * counts).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp(min=1)


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor | None:
    """A leaky ReLU with the mean slope. None in training, where slopes are drawn."""
    return None if training else functional.leaky_relu(x, (lower + upper) / 2)


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor | None:
    """Euclidean distances of the rows of a (.., n, width) and b (.., m, width); None for others."""
    if p != 2.0:
        return None
    squares = ((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0).to(a.dtype)


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x divided by (k + alpha * mean of squares over `size` channels around) ** beta (Krizhevsky 2012)."""
    channels = int(x.shape[1])
    around = functional.pad((x * x).movedim(1, -1), (size // 2, (size - 1) // 2)).movedim(-1, 1)
    total = around.narrow(1, 0, channels)
    for shift in range(1, size):
        total = total + around.narrow(1, shift, channels)
    return x / (k + alpha / size * total) ** beta


def one_hot(y: Tensor, num_classes: int = -1) -> Tensor | None:
    """1 at the label, else 0, without torch's look at the values. None if these say how many classes."""
    if num_classes < 0:
        return None
    return (y.unsqueeze(-1) == torch.arange(num_classes)).to(torch.int64)


def gaussian_nll_loss(
    outputs: Tensor,
    targets: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Half of log(var) + (output - target)^2 / var, without torch's look at whether variances are below 0."""
    var = torch.as_tensor(var, dtype=outputs.dtype)
    if var.shape != outputs.shape and var.dim() and var.dim() == outputs.dim() - 1:
        var = var.unsqueeze(-1)
    bounded = var + (var.clamp(min=eps) - var).detach()
    off = outputs - targets
    losses = 0.5 * (torch.log(bounded) + off * off / bounded) + (0.5 * log(2 * pi) if full else 0.0)
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


SUBSTITUTES: dict[Any, Callable[..., Tensor | None]] = {
    functional.instance_norm: instance_norm,
    functional.pad: pad,
    functional.adaptive_avg_pool1d: adaptive_avg_pool,
    functional.adaptive_avg_pool2d: adaptive_avg_pool,
    functional.bilinear: bilinear,
    functional.embedding_bag: embedding_bag,
    functional.local_response_norm: local_response_norm,
    functional.one_hot: one_hot,
    functional.rrelu: rrelu,
    torch.cdist: cdist,
    functional.gaussian_nll_loss: gaussian_nll_loss,
}


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
    sizes = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (subject.example.dim() - 1)
    context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * subject.example.dim())
    x = mode.from_tensor(subject.example, symbolic_context=context, source=ConstantSource("x"))
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
