"""A torch module as a function of its tensors, and its losses.

Runs a torch module as a pure function of its input and its tensors, to trace, compare or train it.

The losses that a bundle can have besides cross-entropy, and a user's own, of each sample in torch.

Outputs and targets are float32 (n, columns), results (n,): the mean over the columns.
"""
# mypy: allow-any-unimported, allow-untyped-calls

import copy
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec
from device_runtime.models.errors import EngineError, ExportError, one_line

from .rules import BatchNorm

Tensors = Mapping[str, Tensor]

STATISTICS = ("running_mean", "running_var")

Normalised = tuple[Tensor, Tensor, Tensor, Tensor]
"""What batch norm gives: y (n, channels, ..), mean and variance (channels,), and the number of values ().

The number is that of a channel. The variance is the biased one. Only y has a gradient.
"""
Normalise = Callable[[Tensor, Tensor, Tensor, float], Normalised]
"""Batch norm of x (n, channels, ..) by weight and bias (channels,) and eps."""


class HeadUnused(Exception):
    """Raised when a module returns its result without calling its head."""


@dataclass(frozen=True)
class SampleLoss:
    """A loss of each sample: outputs (n, outputs) and targets to (n,).

    Targets are y, float32 or int64 (n, *target.shape), or the flattened input, as `target` says.
    """

    target: TargetSpec
    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """The loss of each sample, (n,), in float32 also where the outputs are bfloat16."""
        outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
        return self.function(outputs, x.flatten(1) if self.target.compared == "input" else y)

    def example(self, batch: int) -> Tensor:
        """Targets y of `batch` samples, all 0."""
        return torch.zeros((batch, *self.target.shape), dtype=getattr(torch, self.target.dtype))


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample in nats, (n,); y: int64 (n,)."""
    return -functional.log_softmax(outputs, 1).gather(1, y.unsqueeze(1)).squeeze(1)


CROSS_ENTROPY_LOSS = SampleLoss(CROSS_ENTROPY, cross_entropy)


@dataclass(frozen=True)
class FunctionalModule:
    """A module in eval mode, its last linear layer, an example input (n, ...), and the ends of its levels."""

    module: nn.Module
    head: str  # name of the linear layer whose input is the features
    example: Tensor
    outputs: Mapping[str, str] = field(default_factory=dict)  # level -> submodule that gives its feature map
    loss: SampleLoss = CROSS_ENTROPY_LOSS


@dataclass(frozen=True)
class ForwardPass:
    """Logits (n, outputs), features (n, width), the feature map at the end of each level of `outputs`."""

    logits: Tensor
    features: Tensor
    maps: Tensors


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, then the buffers of state_dict, by name, detached.

    Batch norm's counters of batches are ignored; other integers are taken for indices.
    """
    state_names = {name for name in module.state_dict() if not name.endswith("num_batches_tracked")}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach() for name, tensor in tensors.items() if name in state_names}


def run(
    subject: FunctionalModule, x: Tensor, tensors: Tensors, replaced: tuple[str, Tensor] | None = None
) -> ForwardPass:
    """Runs one forward pass. `replaced` gives a level and a feature map that replaces its output.

    Raises HeadUnused.
    """
    maps: dict[str, Tensor] = {}

    def keep(level: str) -> Callable[..., Tensor]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            maps[level] = replaced[1] if replaced is not None and replaced[0] == level else output
            return maps[level]

        return hook

    with ExitStack() as hooks:
        head = subject.module.get_submodule(subject.head)
        hooks.callback(head.register_forward_pre_hook(lambda _, inputs: maps.update(head=inputs[0])).remove)
        for level, name in subject.outputs.items():
            hooks.callback(subject.module.get_submodule(name).register_forward_hook(keep(level)).remove)
        logits = functional_call(subject.module, _tied(subject.module, tensors), (x,), tie_weights=False)
    if "head" not in maps:
        raise HeadUnused(subject.head)
    return ForwardPass(logits, maps.pop("head"), maps)


def _tied(module: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors by name, each also by the other names that share it, of layers that are not the same.

    torch's own tying leaves the replaced tensors in a layer that has two names.
    """
    names: dict[int, str] = {}
    tied = dict(tensors)
    for layer, part in module.named_modules():
        for name, value in (*part._parameters.items(), *part._buffers.items()):
            if value is None:
                continue
            whole = f"{layer}.{name}" if layer else name
            first = names.setdefault(id(value), whole)
            if first in tensors:
                tied[whole] = tensors[first]
    return tied


def batch_norms(module: nn.Module) -> tuple[str, ...]:
    """Names of the batch normalisation layers that keep running statistics."""
    return tuple(n for n, m in module.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats)


def statistics(norms: Sequence[str]) -> tuple[str, ...]:
    """Names of the running statistics of these layers."""
    return tuple(f"{norm}.{name}" for norm in norms for name in STATISTICS)


def with_batch_statistics(subject: FunctionalModule, norms: Sequence[str]) -> FunctionalModule:
    """A copy with these layers in training mode: they use batch statistics and update the running ones."""
    if not norms:
        return subject
    module = copy.deepcopy(without_computed(subject.module))
    for norm in norms:
        module.get_submodule(norm).train()
    return replace(subject, module=module)


def without_computed(module: nn.Module) -> nn.Module:
    """The module; weights that old hooks such as weight_norm compute have no graph, so it can be copied."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                vars(part)[name] = value.detach()
    return module


def in_plain_operators(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """Batch norm that can be traced: the number of values is a tensor, as the batch size is not known."""
    count = torch.ones_like(x[:, :1]).sum()
    return (*BatchNorm.apply(x, weight, bias, eps), count)


@contextmanager
def recorded_statistics(
    subject: FunctionalModule, normalise: Normalise = in_plain_operators
) -> Iterator[dict[str, Tensor]]:
    """Makes layers with batch statistics compute by `normalise`; yields their next running statistics.

    torch's own operator changes its inputs in place, and the exporter turns it into a wrong graph without an
    error. Only the first pass of each layer counts. One value alone has no variance: torch raises then, this
    leaves the statistics as they are. Raises ExportError for a layer without momentum.
    """
    recorded: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in subject.module.named_modules():
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                if module.running_mean is not None and module.momentum is None:
                    raise ExportError(f"{name} has momentum None, the mean of all batches; give it a number")
                module.forward = _recording(name, module, recorded, normalise)
                stack.callback(delattr, module, "forward")
        yield recorded


def _recording(
    name: str, norm: nn.Module, recorded: dict[str, Tensor], normalise: Normalise
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        """Ioffe and Szegedy 2015, algorithm 1; the running variance is the unbiased one, as in torch."""
        channels = x.new_ones(x.shape[1])
        weight, bias = (channels, 0 * channels) if norm.weight is None else (norm.weight, norm.bias)
        y, mean, variance, count = normalise(x, weight, bias, norm.eps)
        others = count - 1
        unbiased = variance * (count / others.clamp(min=1))
        moves = others.clamp(max=1)  # 0 where there is one value
        for statistic, now in zip(STATISTICS, (mean, unbiased), strict=True):
            if (old := getattr(norm, statistic)) is not None:
                recorded.setdefault(f"{name}.{statistic}", old + norm.momentum * moves * (now.detach() - old))
        return y

    return forward


OwnLoss = Callable[[Tensor, Tensor], Tensor]


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error."""
    off = outputs - targets
    return (off * off).mean(1)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error."""
    return (outputs - targets).abs().mean(1)


def huber(outputs: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Half of the square up to `delta`, a straight line beyond (Huber 1964)."""
    off = (outputs - targets).abs()
    return torch.where(off <= delta, 0.5 * off * off, delta * (off - 0.5 * delta)).mean(1)


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy with logits, in nats; targets are 0 or 1."""
    return (outputs.relu() - outputs * targets + torch.log1p(torch.exp(-outputs.abs()))).mean(1)


def weighted_cross_entropy(outputs: Tensor, y: Tensor, weights: Sequence[float]) -> Tensor:
    """Cross-entropy of each sample times the weight of its label, in nats; y: int64 (n,)."""
    return cross_entropy(outputs, y) * outputs.new_tensor(weights).index_select(0, y)


def loss_of(target: TargetSpec, own: OwnLoss | None = None) -> SampleLoss:
    """The loss that a bundle names; `own` is the user's. Raises EngineError for an own loss without code."""
    if target.is_cross_entropy:
        if not target.class_weights:
            return CROSS_ENTROPY_LOSS
        return SampleLoss(target, partial(weighted_cross_entropy, weights=target.class_weights))
    if target.own and own is None:
        raise EngineError(
            f"loss {target.loss} is a function of whoever exported the bundle, and only the bundle's graphs "
            "have it: give the function too (simulate --own-loss), or choose engine onnxruntime"
        )
    shipped: dict[str, OwnLoss] = {
        "mse": mse,
        "mae": mae,
        "huber": partial(huber, delta=target.delta),
        "bce": bce,
    }
    return SampleLoss(target, own or shipped[target.loss])


def loss_from_file(where: str) -> OwnLoss:
    """The function that FILE.py:FUNCTION names. Raises ExportError."""
    file, colon, name = where.rpartition(":")
    if not (colon and name.isidentifier() and file.endswith(".py")):
        raise ExportError(f"loss {where!r} is not FILE.py:FUNCTION, as in losses.py:asymmetric")
    if not Path(file).is_file():
        raise ExportError(f"loss {where}: there is no file {file}")
    try:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, name)
    except Exception as error:  # the user's file runs here
        raise ExportError(
            f"loss {where} cannot be read: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not callable(function):
        raise ExportError(f"loss {where} is a {type(function).__name__}, expected a function")
    checked: OwnLoss = function
    return checked
