"""Keyword spotting on log-mel spectrograms: the small DS-CNN of Zhang et al. 2017 (section 3.5, table 5)."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from torch import Tensor, nn
from torch.nn import functional

from .norms import GROUP_SIZE, MakeNorm, norm_of

BLOCKS = 4
FIRST_KERNEL = (10, 4)  # time, frequency


class Block(nn.Module):
    """Depthwise 3x3, then pointwise 1x1 convolution, each with norm and ReLU."""

    def __init__(self, channels: int, norm: MakeNorm) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm1 = norm(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm2 = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, time, frequency) -> the same shape."""
        x = functional.relu(self.norm1(self.depthwise(x)))
        return functional.relu(self.norm2(self.pointwise(x)))


class KeywordNet(nn.Module):
    """One convolution of stride 2, four separable ones, the mean over time and frequency, the head."""

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

    def __init__(self, channels: int, in_channels: int, classes: int, norm: str) -> None:
        super().__init__()
        make_norm = norm_of(norm)
        if channels % GROUP_SIZE:
            raise ValueError(f"channels are {channels}, expected a multiple of {GROUP_SIZE}")
        self.conv = nn.Conv2d(in_channels, channels, FIRST_KERNEL, 2, padding=(4, 1), bias=False)
        self.norm = make_norm(channels)
        self.blocks = nn.Sequential(*(Block(channels, make_norm) for _ in range(BLOCKS)))
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                # a depthwise channel has its own 9 weights only
                module.weight.data *= module.groups**0.5
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, time, frequency) -> (n, classes)."""
        x = self.blocks(functional.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


def keywords(channels: int = 64, in_channels: int = 1, classes: int = 12, norm: str = "group") -> KeywordNet:
    """DS-CNN for spectrograms of 61 frames and 40 bands, or others; 64 channels are 23,180 parameters.

    norm is "group" or "batch". Random weights come from torch's global generator.
    """
    return KeywordNet(channels, in_channels, classes, norm)
