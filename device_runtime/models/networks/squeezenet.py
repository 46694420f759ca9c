"""SqueezeNet 1.0 and 1.1 (Iandola et al. 2016, table 1), under torchvision's parameter names."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building_blocks import scaled_channels

STEMS = {"1.0": (96, 7), "1.1": (64, 3)}  # version -> channels and kernel of the first convolution
# version -> fire modules that a max pooling follows, as it also follows the first convolution
POOLED_AFTER = {"1.0": (4, 8), "1.1": (3, 5)}
# number of a fire module -> channels of its squeeze, and of each of its expand convolutions
FIRES = {
    2: (16, 64),
    3: (16, 64),
    4: (32, 128),
    5: (32, 128),
    6: (48, 192),
    7: (48, 192),
    8: (64, 256),
    9: (64, 256),
}
HEADS = ("linear", "conv")
LEVEL_OF_FIRE = {2: "low", 3: "low", 4: "mid", 5: "mid", 6: "up", 7: "up", 8: "up", 9: "up"}


class Fire(nn.Module):
    """A 1x1 convolution to few channels, then 1x1 and 3x3 convolutions side by side, each with ReLU."""

    def __init__(self, inner: int, squeezed: int, expanded: tuple[int, int]) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded[0], 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded[1], 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inner, h, w) -> (n, sum of expanded, h, w)."""
        x = functional.relu(self.squeeze(x))
        return functional.relu(torch.cat([self.expand1x1(x), self.expand3x3(x)], 1))


class SqueezeNet(nn.Module):
    """Eight fire modules, then the head on their feature maps.

    Head "conv" is the original's: a 1x1 convolution, ReLU, the average over places. Head "linear" is a linear
    layer on the averaged maps, which bundles need; it has the same name and the same number of parameters.
    Fire modules 2 and 3 are level low, 4 and 5 mid, 6 to 9 up, in both versions.

    A narrower network is the leading part of the whole one. The channels of `expand1x1` come first in the
    next layer's input, so `expand1x1` keeps all its channels, and the other layers are narrowed.
    """

    def __init__(self, version: str, classes: int, head: str, in_channels: int, width: float) -> None:
        super().__init__()
        if version not in STEMS:
            raise ValueError(f"version is {version!r}, expected one of {', '.join(STEMS)}")
        if head not in HEADS:
            raise ValueError(f"head is {head!r}, expected one of {', '.join(HEADS)}")
        channels, kernel = STEMS[version]
        channels = scaled_channels(channels, width)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, channels, kernel, stride=2), nn.ReLU(), _pooling()
        )
        self.levels = {"features.0": "low", "classifier": "head"}
        self.level_outputs: dict[str, str] = {}
        for number, (squeezed, expanded) in FIRES.items():
            place = f"features.{len(self.features)}"
            self.levels[place] = LEVEL_OF_FIRE[number]
            self.level_outputs[LEVEL_OF_FIRE[number]] = place
            sizes = expanded, scaled_channels(expanded, width)
            self.features.append(Fire(channels, scaled_channels(squeezed, width), sizes))
            if number in POOLED_AFTER[version]:
                self.features.append(_pooling())
            channels = sum(sizes)
        last = nn.Linear(channels, classes) if head == "linear" else nn.Conv2d(channels, classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), last)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.features.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.classifier[1].weight, std=0.01)
        nn.init.zeros_(self.classifier[1].bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, height, width) -> (n, classes)."""
        x = self.features(x)
        if isinstance(self.classifier[1], nn.Conv2d):
            return functional.relu(self.classifier(x)).mean((2, 3))
        return self.classifier(x.mean((2, 3)))


def _pooling() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def squeezenet(
    version: str | float = "1.0",
    classes: int = 1000,
    head: str = "linear",
    in_channels: int = 3,
    width: float = 1.0,
) -> SqueezeNet:
    """SqueezeNet 1.0 or 1.1. `width` multiplies all channels but those of `expand1x1`.

    Random weights come from torch's global generator.
    """
    return SqueezeNet(str(version), classes, head, in_channels, width)
