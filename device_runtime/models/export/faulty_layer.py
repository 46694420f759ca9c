"""Finds the layer that cannot be exported, by exporting each layer alone."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    SampleLoss,
    run,
    stored_tensors,
)

from .graph import convert
from .trace import trace_forward, trace_training

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
