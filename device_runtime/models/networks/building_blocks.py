"""Normalisation layers that networks may be built with, widths of their layers, and initial weights."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable

from torch import nn

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
