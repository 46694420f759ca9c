"""Checks that a module has what a bundle needs, and finds the layer that cannot be exported.

It says what to change. For a faulty layer, each layer is exported alone.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from device_runtime.models.errors import ExportError, one_line
from device_runtime.models.torch_modules.functional_module import (
    ForwardPass,
    FunctionalModule,
    SampleLoss,
    run,
    stored_tensors,
    without_computed,
)

from .graph import convert
from .trace import trace_forward, trace_training

logger = logging.getLogger(__name__)

KINDS: Mapping[str, Any] = {
    "log_softmax": lambda logits: torch.log_softmax(logits, 1),
    "softmax": lambda logits: torch.softmax(logits, 1),
    "sigmoid": torch.sigmoid,
    "log_sigmoid": nn.functional.logsigmoid,
    "softmin": lambda logits: torch.softmax(-logits, 1),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
    "exp": torch.exp,
    "normalize": nn.functional.normalize,
}
"""Functions that networks often apply to their logits; those of classes are in the loss already."""


def exportable_copy(module: nn.Module, example: Tensor) -> nn.Module:
    """A copy in eval mode, its lazy layers made by a pass of the example. Raises ExportError.

    A linear layer alone becomes the only layer of a network.
    """
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        module = nn.Sequential(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError(f"the module is a {kind} of torch.jit: give the nn.Module that it was made from")
    if hasattr(module, "_orig_mod") or isinstance(module, nn.DataParallel):
        inner = "_orig_mod" if hasattr(module, "_orig_mod") else "module"
        raise ExportError(f"the module is wrapped in {kind}: give what is inside, its attribute {inner}")
    _check_devices(module)
    _check_memory(module)
    _check_gradient_hooks(module)
    try:
        copied = copy.deepcopy(_materialised(module, example)).eval()
    except ExportError:
        raise
    except Exception as error:  # classes of the user's may refuse in any way
        raise ExportError(f"the module {kind} cannot be copied: {one_line(error)}") from error
    _check_types(copied)
    _check_hidden(copied)
    for name, part in copied.named_modules():
        if isinstance(part, nn.TransformerEncoder) and part.use_nested_tensor:
            part.use_nested_tensor = False  # in eval mode it makes zeros of what a mask of padding leaves out
            logger.info("%s computes padded places, as torch does in training", name or "the module")
    return copied


def _check_devices(module: nn.Module) -> None:
    for name, tensor in _tensors(module):
        if not _is_lazy(tensor) and tensor.device.type != "cpu":
            way = "build it with real weights" if tensor.is_meta else "give module.cpu()"
            raise ExportError(f"{name} is on device {tensor.device}, expected cpu: {way}")


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _is_lazy(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.parameter.UninitializedTensorMixin)


def _materialised(module: nn.Module, example: Tensor) -> nn.Module:
    """The module, whose lazy layers have their shapes after one pass in eval mode."""
    if not any(_is_lazy(tensor) for _, tensor in _tensors(module)):
        return without_computed(module)
    lazy = [
        name for name, part in module.named_modules() if isinstance(part, nn.modules.lazy.LazyModuleMixin)
    ]
    training = module.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()(example)
    except Exception as error:
        raise ExportError(
            f"layer {lazy[0]} has no shape before a first pass, and the module fails on "
            f"{tuple(example.shape)}: {one_line(error)}"
        ) from error
    finally:
        module.train(training)
    if left := [name for name, tensor in _tensors(module) if _is_lazy(tensor)]:
        raise ExportError(f"{left[0]} has no shape, as its layer is never called: remove the layer")
    return without_computed(module)


def _check_types(module: nn.Module) -> None:
    """Raises ExportError for tensors that a bundle cannot store."""
    if any("quantized" in type(part).__module__ for part in module.modules()):
        raise ExportError("the module is quantised: give the float32 module, and export --precision int8")
    parameters = dict(module.named_parameters())
    for name, tensor in stored_tensors(module).items():
        floating = name in parameters or tensor.is_floating_point()
        if tensor.dtype in (torch.float32, torch.int64) and floating == tensor.is_floating_point():
            continue
        way = (
            "give module.float()"
            if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16)
            else "keep real and imaginary parts as two tensors"
            if tensor.is_complex()
            else "register it as float32 or int64, or with persistent=False"
        )
        raise ExportError(
            f"{name} is {tensor.dtype}; only torch.float32 can be exported, and torch.int64 of buffers: {way}"
        )


def _check_hidden(module: nn.Module) -> None:
    """Raises ExportError for layers and tensors with gradients that the module has not registered."""
    registered = {id(tensor) for _, tensor in _tensors(module)}
    for layer, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules") or name in vars(nn.Module()):
                continue
            for hidden in _inside(value):
                tensors = hidden.parameters() if isinstance(hidden, nn.Module) else [hidden]
                if any(t.requires_grad and t.is_leaf and id(t) not in registered for t in tensors):
                    whole = f"{layer}.{name}" if layer else name
                    way = (
                        "keep layers in nn.ModuleList or nn.ModuleDict"
                        if isinstance(hidden, nn.Module)
                        else "make it an nn.Parameter"
                    )
                    raise ExportError(
                        f"attribute {whole} holds weights that torch does not know as the module's, so that "
                        f"devices would never train them: {way}"
                    )


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, nn.Module | Tensor):
        yield value
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _inside(item)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))


def _check_gradient_hooks(module: nn.Module) -> None:
    """Raises ExportError for hooks of parameters, which graphs do not have."""
    for name, tensor in module.named_parameters():
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise ExportError(
                f"{name} has a hook on its gradient, which devices would train without: remove it, and "
                "multiply the parameter by a mask in forward, or freeze it whole with requires_grad=False"
            )


def _check_memory(module: nn.Module) -> None:
    """Raises ExportError for two parameters that share a part of their memory, and would be trained apart."""
    spans = []
    for name, tensor in module.named_parameters():
        if not _is_lazy(tensor) and tensor.is_contiguous() and tensor.numel():
            start = tensor.data_ptr()
            spans.append((start, start + tensor.numel() * tensor.element_size(), name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ExportError(
                f"{other} shares memory with {name}, and a bundle trains them apart: clone one of them"
            )


def check_head(module: nn.Module, head: str) -> None:
    """Raises ExportError for a head whose weight is computed, or shared with another layer."""
    layer = module.get_submodule(head)
    if parametrize.is_parametrized(layer) or "weight" not in layer._parameters:
        raise ExportError(
            f"the weight of head {head} is computed from other tensors, as by weight_norm: the head must be "
            "a plain nn.Linear; remove that, or normalise the features before it"
        )
    for name, part in module.named_modules():
        if part is layer:
            continue
        for own, tensor in part._parameters.items():
            if tensor is not None and (tensor is layer.weight or tensor is layer.bias):
                kind = "weight" if tensor is layer.weight else "bias"
                raise ExportError(
                    f"head {head} shares its {kind} with {name}.{own}, and is trained without it: give the "
                    f"head its own, {head}.{kind} = nn.Parameter({head}.{kind}.clone())"
                )


def unused_head(subject: FunctionalModule) -> str:
    """Why the head is not called, and what to do."""
    called: list[str] = []
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, part in subject.module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    with torch.no_grad():
        result = subject.module(subject.example)
    for hook in hooks:
        hook.remove()
    if not isinstance(result, Tensor):
        return f"the module returns a {type(result).__name__}, expected the logits alone"
    other = f"name the one that gives the logits (--head {called[-1]}), or" if called else "it is to"
    return (
        f"the module never calls its head {subject.head}: {other} return {subject.head}(features); a weight "
        f"that is used by hand, as in a cosine head, is no head, but features may be normalised before it"
    )


def not_finite(subject: FunctionalModule) -> str:
    """Says which weights, or else that the outputs, are not finite."""
    broken = [name for name, t in stored_tensors(subject.module).items() if not torch.isfinite(t).all()]
    if broken:
        return f"{broken[0]} holds values that are not finite"
    return "the module gives logits that are not finite for standard normal inputs, as by a log or a root"


def other_than_logits(subject: FunctionalModule, passed: ForwardPass) -> str:
    """How the module's result differs from its head's, and what to do; empty if it is the same."""
    logits, head = passed.logits, subject.head
    with torch.no_grad():
        layer = subject.module.get_submodule(head)  # its own hooks or forward may add something
        from_head = nn.functional.linear(passed.features, layer.weight, layer.bias)
        if logits.shape == from_head.shape and torch.allclose(logits, from_head):
            return ""
        last = _last_layer(subject)
        for name, function in KINDS.items():
            result = function(from_head)
            if result.shape == logits.shape and torch.allclose(result, logits, atol=1e-6):
                where = f"its last layer {last}" if last else f"{name} at its end"
                return (
                    f"the module returns {name} of what its head {head} gives: return the logits, without "
                    f"{where}; the loss computes it where it needs it"
                )
        if logits.shape == from_head.shape:
            share = (logits * from_head).sum() / (from_head * from_head).sum()
            if torch.allclose(logits, share * from_head, rtol=1e-4, atol=1e-5):
                return (
                    f"the module returns {float(share):.4g} times what its head {head} gives: return the "
                    f"logits, and scale the features before the head"
                )
    if logits.shape == from_head.shape[:1]:
        return (
            f"the module returns {tuple(logits.shape)}, such as an argmax, expected the logits of head {head}"
        )
    return (
        f"the module returns something else than the logits of its head {head}"
        f"{f', after layer {last}' if last else ''}: return {head}(features), or name the right head; a "
        "weight that is used by hand, as in a cosine head, is none"
    )


def _last_layer(subject: FunctionalModule) -> str:
    """The layer that gives the module's result, as "3 (LogSoftmax)"; empty if it is a function."""
    results: list[tuple[str, nn.Module, Any]] = []
    parts = [(name, part) for name, part in subject.module.named_modules() if not list(part.children())]
    hooks = [
        part.register_forward_hook(lambda part, _, out, name=name: results.append((name, part, out)))
        for name, part in parts
    ]
    with torch.no_grad():
        result = run(subject, subject.example, stored_tensors(subject.module)).logits
    for hook in hooks:
        hook.remove()
    name, part, out = results[-1]
    if name == subject.head or out is not result:
        return ""
    return f"{name} ({type(part).__name__})"


HEAD = "_head"


class _Alone(nn.Module):
    """One layer, with a factor before it and a mean after it, so that all its gradients are needed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.factor = nn.Parameter(torch.ones(()))
        self._head = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Any:
        result = self.layer(x * self.factor if x.is_floating_point() else x)
        while isinstance(result, tuple | list):
            result = result[0]
        return self._head(result.flatten(1).mean(1, keepdim=True))


def faulty_layer(subject: FunctionalModule) -> str:
    """The first layer that cannot be exported by itself, as "body.1 (MaxPool3d)"; empty if all can."""
    tried = set()
    for name, layer, x in _calls(subject):
        kind = (str(layer), tuple(x.shape))
        if kind not in tried and not _is_exported(layer, x, subject.loss):
            return f"{name} ({type(layer).__name__})"
        tried.add(kind)
    return ""


def _calls(subject: FunctionalModule) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The innermost layers with the input that each gets, in the order of the module's pass."""
    calls: list[tuple[str, nn.Module, Tensor]] = []

    def keep(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and len(inputs[0]) == len(subject.example):
            calls.append((name, layer, inputs[0].detach()))

    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs, name=name: keep(name, layer, inputs))
        for name, layer in subject.module.named_modules()
        if name and (not list(layer.children()) or type(layer).__module__.startswith("torch.nn.modules.act"))
    ]
    try:
        with torch.no_grad():
            run(subject, subject.example, stored_tensors(subject.module))
    finally:
        for hook in hooks:
            hook.remove()
    yield from calls


def _is_exported(layer: nn.Module, x: Tensor, loss: SampleLoss) -> bool:
    module = _Alone(layer).eval()
    first = replace(loss, function=lambda outputs, _: outputs[:, 0])
    names = [name for name, p in module.named_parameters() if p.requires_grad and not name.startswith(HEAD)]
    subject = FunctionalModule(module, HEAD, x, {}, first)
    if not x.is_floating_point():
        names.remove("factor")
    try:
        convert(trace_forward(subject))
        convert(trace_training(subject, "train", names))
    except Exception:  # whatever keeps the layer from being exported
        return False
    return True
