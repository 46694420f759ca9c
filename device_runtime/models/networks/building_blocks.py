"""What networks are built of: normalisation layers, widths, initial weights, levels of a stack."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

GROUP_SIZE = 8  # channels that GroupNorm normalises together

MakeNorm = Callable[[int], nn.Module]
"""A function from a number of channels to a normalisation layer."""


def norm_of(kind: str, group_size: int = GROUP_SIZE, batch: MakeNorm = nn.BatchNorm2d) -> MakeNorm:
    """The normalisation `group`, with groups of `group_size` channels, or `batch`, by the function given.

    Raises ValueError for another kind; so does the returned function for channels that do not fill groups.
    """
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}, expected 1 or more")

    def group(channels: int) -> nn.Module:
        if channels % group_size:
            raise ValueError(f"{channels} channels are no multiple of group_size {group_size}")
        return nn.GroupNorm(channels // group_size, channels)

    norms: dict[str, MakeNorm] = {"group": group, "batch": batch}
    if kind not in norms:
        raise ValueError(f"norm is {kind!r}, expected one of {', '.join(norms)}")
    return norms[kind]


def scaled_channels(channels: int, width: float) -> int:
    """Channels of a layer in a wider or narrower network: channels * width.

    Raises ValueError if that is not a whole number of 1 or more.
    """
    wide = channels * width
    if not wide >= 1 or wide != int(wide):
        raise ValueError(f"width is {width}, which makes {wide:g} channels of {channels}")
    return int(wide)


def initialise_convolutions(module: nn.Module) -> None:
    """Draws the weights of all convolutions for the fan-out of one group, and sets the head's bias to 0."""
    for part in module.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            part.weight.data *= part.groups**0.5  # the fan-out of a depthwise channel is its own weights only
    nn.init.zeros_(module.head.bias)


def mean_state(states: Tensor, where: Tensor) -> Tensor:
    """The mean of the chosen states: (n, length, width), bool (n, length) -> (n, width); zeros if none."""
    chosen = where.to(states.dtype)
    share = chosen / chosen.sum(1, keepdim=True).clamp(min=1.0)
    return torch.bmm(share.unsqueeze(1), states).squeeze(1)


def thirds(layers: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of a stack of 3 layers or more: the last layer of each level, and the level of each layer."""
    names, depth = ("low", "mid", "up"), len(layers)
    ends = (max(1, depth // 3), max(2, 2 * depth // 3), depth)
    outputs = {level: layers[end - 1] for level, end in zip(names, ends, strict=True)}
    levels = {layer: names[sum(index >= end for end in ends[:2])] for index, layer in enumerate(layers)}
    return outputs, levels
