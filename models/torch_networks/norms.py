"""The normalisation layers that networks may be built with."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable

from torch import nn

GROUP_SIZE = 8  # channels that GroupNorm normalises together

MakeNorm = Callable[[int], nn.Module]
"""From a number of channels to a layer."""


def norm_of(kind: str) -> MakeNorm:
    """`group` or `batch`. Raises ValueError for another."""
    norms: dict[str, MakeNorm] = {
        "group": lambda channels: nn.GroupNorm(channels // GROUP_SIZE, channels),
        "batch": nn.BatchNorm2d,
    }
    if kind not in norms:
        raise ValueError(f"norm is {kind!r}, expected one of {', '.join(norms)}")
    return norms[kind]
