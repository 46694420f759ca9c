"""The normalisation layers that networks may be built with."""

from collections.abc import Callable

from torch import nn

# mypy: allow-untyped-calls, allow-any-unimported


GROUP_SIZE = 8  # channels that GroupNorm normalises together

MakeNorm = Callable[[int], nn.Module]
"""From a number of channels to a layer."""


def norm_of(kind: str, group_size: int = GROUP_SIZE) -> MakeNorm:
    """`group`, of `group_size` channels each, or `batch`. Raises ValueError for another.

    The layer for channels that groups do not fill raises ValueError.
    """
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}, expected 1 or more")

    def group(channels: int) -> nn.Module:
        if channels % group_size:
            raise ValueError(f"{channels} channels are no multiple of group_size {group_size}")
        return nn.GroupNorm(channels // group_size, channels)

    norms: dict[str, MakeNorm] = {"group": group, "batch": nn.BatchNorm2d}
    if kind not in norms:
        raise ValueError(f"norm is {kind!r}, expected one of {', '.join(norms)}")
    return norms[kind]


# FROM widths: Channels of a network that is made wider or narrower.


def times(channels: int, width: float) -> int:
    """`channels` at this width. Raises ValueError where that is no whole number from 1 on."""
    wide = channels * width
    if not wide >= 1 or wide != int(wide):
        raise ValueError(f"width is {width}, which makes {wide:g} channels of {channels}")
    return int(wide)
