"""Convolutional networks, and what networks are built of.

What networks are built of: normalisation layers, widths, initial weights, levels of a stack.

SqueezeNet 1.0 and 1.1 (Iandola et al. 2016, table 1), under torchvision's parameter names.

MobileNetV2 (Sandler et al. 2018, table 2), under torchvision's parameter names.

Wide residual networks for images of 32x32 and smaller (Zagoruyko and Komodakis 2016, table 1).
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

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


STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels at width 1, blocks, stride of the first block."""

FIRST, LAST = 32, 1280  # channels at width 1 of the first and of the last convolution
MULTIPLE = 8  # every number of channels is a multiple of this
PADDINGS = ("torch", "same")


class SamePadded(nn.Conv2d):
    """A convolution with TensorFlow's padding "SAME": an odd row or column of zeros comes last."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, out, ceil(h / stride), ceil(w / stride))."""
        rows, columns = (_same(x.shape[2 + i], self.kernel_size[i], self.stride[i]) for i in range(2))
        padded = functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return functional.conv2d(padded, self.weight, self.bias, self.stride, 0, 1, self.groups)


def _same(size: int, kernel: int, stride: int) -> int:
    """Zeros to add along an axis, at both ends together, so that ceil(size / stride) places remain."""
    return max(0, (-(-size // stride) - 1) * stride + kernel - size)


@dataclass(frozen=True)
class ConvolutionShape:
    """The shape of a convolution that a batch norm follows."""

    inner: int
    outer: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1


def _convolution(shape: ConvolutionShape, padding: str) -> nn.Sequential:
    """Convolution, batch norm, ReLU6. The paddings differ only at stride 2."""
    same = padding == "same" and shape.stride > 1
    kind, pad = (SamePadded, 0) if same else (nn.Conv2d, shape.kernel // 2)
    convolution = kind(
        shape.inner, shape.outer, shape.kernel, shape.stride, pad, groups=shape.groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(shape.outer), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Inverted residual: a 1x1 convolution to many channels, 3x3 on each, 1x1 to few without activation."""

    def __init__(self, shape: ConvolutionShape, expansion: int, padding: str) -> None:
        super().__init__()
        wide = shape.inner * expansion
        self.conv = nn.Sequential()
        if expansion > 1:
            self.conv.append(_convolution(ConvolutionShape(shape.inner, wide), padding))
        self.conv.append(_convolution(ConvolutionShape(wide, wide, 3, shape.stride, wide), padding))
        self.conv.append(nn.Conv2d(wide, shape.outer, 1, bias=False))
        self.conv.append(nn.BatchNorm2d(shape.outer))
        self.residual = shape.stride == 1 and shape.inner == shape.outer

    def forward(self, x: Tensor) -> Tensor:
        """(n, inner, h, w) -> (n, outer, h / stride, w / stride)."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """A convolution, 17 blocks, a 1x1 convolution; the head takes the globally averaged features.

    Layers down to a stride of 8 are level low, stride 16 mid, stride 32 up.
    """

    levels = {  # noqa: RUF012  # prefix of the parameter name -> level
        **{f"features.{i}": "low" for i in range(7)},
        **{f"features.{i}": "mid" for i in range(7, 14)},
        **{f"features.{i}": "up" for i in range(14, 19)},
        "classifier": "head",
    }
    level_outputs = {"low": "features.6", "mid": "features.13", "up": "features.18"}  # noqa: RUF012

    def __init__(self, classes: int, width: float, padding: str, in_channels: int) -> None:
        super().__init__()
        if padding not in PADDINGS:
            raise ValueError(f"padding is {padding!r}, expected one of {', '.join(PADDINGS)}")
        if width <= 0:
            raise ValueError(f"width is {width}, expected more than 0")
        channels = _channels(FIRST * width)
        last = _channels(LAST * max(1.0, width))
        self.features = nn.Sequential(_convolution(ConvolutionShape(in_channels, channels, 3, 2), padding))
        for expansion, base, blocks, first_stride in STAGES:
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                shape = ConvolutionShape(channels, _channels(base * width), stride=stride)
                self.features.append(InvertedResidual(shape, expansion, padding))
                channels = shape.outer
        self.features.append(_convolution(ConvolutionShape(channels, last), padding))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))
        self._initialise()

    def _initialise(self) -> None:
        """Draws weights for the fan-out of one group, so that values do not fade in new networks."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight[:, 0].numel() // module.groups
                nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
        nn.init.normal_(self.classifier[1].weight, std=0.01)
        nn.init.zeros_(self.classifier[1].bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, height, width) -> (n, classes)."""
        return self.classifier(self.features(x).mean((2, 3)))


def _channels(width: float) -> int:
    """The nearest multiple of 8 that is at least nine tenths of `width`."""
    near = max(MULTIPLE, int(width + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
    return near + MULTIPLE if near < 0.9 * width else near


def mobilenet_v2(
    classes: int = 1000, width: float = 1.0, padding: str = "torch", in_channels: int = 3
) -> MobileNetV2:
    """MobileNetV2 with random weights from torch's global generator.

    Weights from TensorFlow need padding="same", which adds zeros at the right and below at stride 2.
    """
    return MobileNetV2(classes, width, padding, in_channels)


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
