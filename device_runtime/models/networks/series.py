"""Small networks for windows of time series (channels, time): accelerometers, currents, ECG.

Both average over time before the head, so that the same network takes windows of any length from 16 steps.
"""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from torch import Tensor, nn
from torch.nn import functional

from .building_blocks import GROUP_SIZE, MakeNorm, initialise_convolutions, norm_of, scaled_channels

MAPS = (32, 64, 64)  # channels of the three convolutions at width 1
KERNEL = 5
SEPARABLE = 64  # channels of every layer at width 1
FIRST_KERNEL, FIRST_STRIDE = 9, 2


class Cnn1d(nn.Module):
    """Three convolutions along time, each with norm, ReLU and max pooling over 2; the mean over time."""

    levels = {"conv1": "low", "conv2": "mid", "conv3": "up", "head": "head"}  # noqa: RUF012
    level_outputs = {"low": "conv1", "mid": "conv2", "up": "conv3"}  # noqa: RUF012

    def __init__(self, in_channels: int, classes: int, width: float, make_norm: MakeNorm) -> None:
        super().__init__()
        inner = in_channels
        for number, channels in enumerate(MAPS, start=1):
            outer = scaled_channels(channels, width)
            convolution = nn.Conv1d(inner, outer, KERNEL, padding=KERNEL // 2, bias=False)
            layers = (convolution, make_norm(outer), nn.ReLU(), nn.MaxPool1d(2))
            self.add_module(f"conv{number}", nn.Sequential(*layers))
            inner = outer
        self.head = nn.Linear(inner, classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, length) -> (n, classes)."""
        return self.head(self.conv3(self.conv2(self.conv1(x))).mean(2))


class Separable1d(nn.Module):
    """A depthwise convolution of stride 1 or 2, then a pointwise one, each with norm and ReLU."""

    def __init__(self, channels: int, stride: int, make_norm: MakeNorm) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(
            channels, channels, KERNEL, stride, padding=KERNEL // 2, groups=channels, bias=False
        )
        self.norm1 = make_norm(channels)
        self.pointwise = nn.Conv1d(channels, channels, 1, bias=False)
        self.norm2 = make_norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, length) -> (n, channels, ceil(length / stride))."""
        x = functional.relu(self.norm1(self.depthwise(x)))
        return functional.relu(self.norm2(self.pointwise(x)))


class DsCnn1d(nn.Module):
    """A convolution of stride 2, four separable ones of strides 1, 2, 1, 2, the mean over time, the head."""

    levels = {  # noqa: RUF012
        "conv": "low",
        "norm": "low",
        "blocks.0": "low",
        "blocks.1": "mid",
        "blocks.2": "mid",
        "blocks.3": "up",
        "head": "head",
    }
    level_outputs = {"low": "blocks.0", "mid": "blocks.2", "up": "blocks.3"}  # noqa: RUF012

    def __init__(self, in_channels: int, classes: int, width: float, make_norm: MakeNorm) -> None:
        super().__init__()
        channels = scaled_channels(SEPARABLE, width)
        self.conv = nn.Conv1d(
            in_channels, channels, FIRST_KERNEL, FIRST_STRIDE, padding=FIRST_KERNEL // 2, bias=False
        )
        self.norm = make_norm(channels)
        self.blocks = nn.Sequential(*(Separable1d(channels, stride, make_norm) for stride in (1, 2, 1, 2)))
        self.head = nn.Linear(channels, classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, length) -> (n, classes)."""
        return self.head(self.blocks(functional.relu(self.norm(self.conv(x)))).mean(2))


def cnn1d(
    in_channels: int = 3,
    classes: int = 6,
    width: float = 1,
    norm: str = "group",
    group_size: int = GROUP_SIZE,
) -> Cnn1d:
    """Three convolutions along time; 31,910 parameters for 3 channels and 6 classes.

    `width` multiplies the channels of all layers; a narrower network is the leading part of a wider one.
    norm is "group", with groups of `group_size` channels, or "batch". Random weights come from torch's global
    generator.
    """
    return Cnn1d(in_channels, classes, width, norm_of(norm, group_size, nn.BatchNorm1d))


def dscnn1d(
    in_channels: int = 3,
    classes: int = 6,
    width: float = 1,
    norm: str = "group",
    group_size: int = GROUP_SIZE,
) -> DsCnn1d:
    """Depthwise separable convolutions along time, two thirds of the work of `cnn1d`; settings as there.

    20,934 parameters for 3 channels and 6 classes.
    """
    return DsCnn1d(in_channels, classes, width, norm_of(norm, group_size, nn.BatchNorm1d))
