"""Wide residual networks for images of 32x32 and smaller (Zagoruyko and Komodakis 2016, table 1)."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from torch import Tensor, nn
from torch.nn import functional

from .building_blocks import GROUP_SIZE, MakeNorm, initialise_convolutions, norm_of, scaled_channels

WIDTHS = (16, 32, 64)  # channels of the three groups at width 1
STEM = 16  # channels of the first convolution, at width 1 or more


class ResidualBlock(nn.Module):
    """Pre-activation block: norm, ReLU, convolution, twice; a 1x1 shortcut where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.norm1 = norm(inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.norm2 = norm(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        same = inner == outer and stride == 1
        self.shortcut = None if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inner, h, w) -> (n, outer, h / stride, w / stride)."""
        active = functional.relu(self.norm1(x))
        bypass = x if self.shortcut is None else self.shortcut(active)
        return bypass + self.conv2(functional.relu(self.norm2(self.conv1(active))))


class WideResNet(nn.Module):
    """Three groups of (depth - 4) / 6 blocks; the head takes the globally averaged features."""

    levels = {  # noqa: RUF012  # prefix of the parameter name -> level
        "conv1": "low",
        "group1": "low",
        "group2": "mid",
        "group3": "up",
        "norm": "up",
        "head": "head",
    }
    level_outputs = {"low": "group1", "mid": "group2", "up": "group3"}  # noqa: RUF012

    def __init__(self, depth: int, width: float, in_channels: int, classes: int, make_norm: MakeNorm) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth is {depth}, expected 6 n + 4: 10, 16, 22, 28, 34, 40")
        blocks = (depth - 4) // 6
        channels = scaled_channels(STEM, min(1, width))
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        for number, base in enumerate(WIDTHS, start=1):
            group = nn.Sequential()
            outer = scaled_channels(base, width)
            for index in range(blocks):
                stride = 2 if number > 1 and index == 0 else 1
                group.append(ResidualBlock(channels, outer, stride, make_norm))
                channels = outer
            self.add_module(f"group{number}", group)
        self.norm = make_norm(channels)
        self.head = nn.Linear(channels, classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, height, width) -> (n, classes)."""
        x = self.group3(self.group2(self.group1(self.conv1(x))))
        return self.head(functional.relu(self.norm(x)).mean((2, 3)))


def wrn(
    depth: int = 10,
    width: float = 1,
    in_channels: int = 3,
    classes: int = 10,
    norm: str = "group",
    group_size: int = GROUP_SIZE,
) -> WideResNet:
    """WRN-depth-width; norm is "group" or "batch". Random weights come from torch's global generator.

    Below width 1 the first convolution is narrower too. So every tensor of the network is the leading part of
    a tensor of WRN-depth-1, and every group of `group_size` channels that group norm normalises is a group of
    that network. The same holds between any two widths up to 1, and between any two above 1; up to width 1,
    the first block has no convolution in its shortcut. Groups must fill the narrowest layer: a `group_size`
    of 8 works down to width 0.5, 4 down to 0.25; it must be the same in all networks of a family.
    """
    return WideResNet(depth, width, in_channels, classes, norm_of(norm, group_size))
