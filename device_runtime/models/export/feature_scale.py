"""A scale for each feature in front of the head, for class means to set: what the head takes is scaled."""
# mypy: allow-untyped-calls, allow-any-unimported

from typing import Any

import torch
from torch import Tensor, nn

from device_runtime.models.bundles.names import SCALE
from device_runtime.models.errors import ExportError


def scale_features(module: nn.Module, head: str) -> None:
    """Gives the layer `head` of `module`, in place, a scale of 1 for each feature: a buffer, never trained.

    Its other names stay as they are. Raises ExportError for a head that has one of that name.
    """
    layer = module.get_submodule(head)
    if hasattr(layer, SCALE):
        raise ExportError(f"head {head!r} has a {SCALE} of its own: its features cannot be given another")
    layer.register_buffer(SCALE, torch.ones(int(layer.in_features)))
    layer.register_forward_pre_hook(_scaled)


def _scaled(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return (given[0] * getattr(layer, SCALE), *given[1:])
