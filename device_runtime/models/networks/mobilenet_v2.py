"""MobileNetV2 (Sandler et al. 2018, table 2), under torchvision's parameter names."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels at width 1, blocks, stride of the first block."""

STEM, LAST = 32, 1280  # channels at width 1 of the first and of the last convolution
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
        channels = _channels(STEM * width)
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
