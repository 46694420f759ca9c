"""Small networks for comparisons: linear, MLP, CNN, keyword spotting and time series.

Networks for windows of time series (channels, time), such as accelerometers, currents and ECG, average over
time before the head, so that the same network takes windows of any length from 16 steps.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

from torch import Tensor, nn
from torch.nn import functional

from .convolutional import GROUP_SIZE, MakeNorm, initialise_convolutions, norm_of, scaled_channels

KERNEL = 3
MAPS = (32, 64)  # channels of the two convolutions at width 1
DENSE = 128
HIDDEN_LEVELS = ("low", "mid", "up")


class Linear(nn.Module):
    """The head alone: its features are the flattened input, and every tunable set is the head."""

    levels = {"head": "head"}  # noqa: RUF012
    level_outputs = {}  # type: ignore[var-annotated]  # noqa: RUF012

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, *shape) with `inputs` values a sample -> (n, classes)."""
        return self.head(x.flatten(1))


class Mlp(nn.Module):
    """Hidden layers with ReLU, then the head; thirds of the layers are level low, mid and up."""

    def __init__(self, inputs: int, hidden: int, depth: int, classes: int) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth is {depth}, expected 1 or more hidden layers")
        widths = [inputs] + [hidden] * depth
        layers = (nn.Sequential(nn.Linear(a, hidden), nn.ReLU()) for a in widths[:-1])
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, classes)
        by_layer = {f"hidden.{i}": HIDDEN_LEVELS[3 * i // depth] for i in range(depth)}
        self.levels = {**by_layer, "head": "head"}
        self.level_outputs = {level: name for name, level in by_layer.items()}

    def forward(self, x: Tensor) -> Tensor:
        """(n, *shape) with `inputs` values a sample -> (n, classes)."""
        return self.head(self.hidden(x.flatten(1)))


class Cnn(nn.Module):
    """Two 3x3 convolutions without padding, max pooling over 2x2, one dense layer, the head.

    The second ReLU comes after the pooling: the same function and gradient, on a quarter of the values.
    """

    levels = {"conv1": "low", "conv2": "mid", "dense": "up", "head": "head"}  # noqa: RUF012
    level_outputs = {"low": "conv1", "mid": "conv2", "up": "dense"}  # noqa: RUF012

    def __init__(self, in_channels: int, size: int, classes: int, width: float) -> None:
        super().__init__()
        first, second, dense = (scaled_channels(channels, width) for channels in (*MAPS, DENSE))
        pooled = (size - 2 * (KERNEL - 1)) // 2
        if pooled < 1:
            raise ValueError(f"size is {size}, expected images of 6x6 or larger")
        self.conv1 = nn.Sequential(nn.Conv2d(in_channels, first, KERNEL), nn.ReLU())
        self.conv2 = nn.Sequential(nn.Conv2d(first, second, KERNEL), nn.MaxPool2d(2), nn.ReLU())
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(second * pooled**2, dense), nn.ReLU())
        self.head = nn.Linear(dense, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, size, size) -> (n, classes)."""
        return self.head(self.dense(self.conv2(self.conv1(x))))


class Autoencoder(nn.Module):
    """An encoder to a few values, the code, and a decoder back to the input, with ReLU.

    Levels are low, mid (the code) and up. The head gives the reconstruction, flattened.
    """

    levels = {"encoder": "low", "code": "mid", "decoder": "up", "head": "head"}  # noqa: RUF012
    level_outputs = {"low": "encoder", "mid": "code", "up": "decoder"}  # noqa: RUF012

    def __init__(self, inputs: int, hidden: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
        self.code = nn.Sequential(nn.Linear(hidden, code), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, *shape) with `inputs` values a sample -> (n, inputs)."""
        return self.head(self.decoder(self.code(self.encoder(x.flatten(1)))))


def autoencoder(inputs: int = 784, hidden: int = 128, code: int = 16, width: float = 1) -> Autoencoder:
    """Reconstructs its input from `code` values, to find anomalies: samples that it reconstructs badly.

    Hinton and Salakhutdinov 2006, with one hidden layer on each side; 205,856 parameters for images of 28x28.
    `width` multiplies `hidden`; a narrower network is the leading part of a wider one.
    """
    return Autoencoder(inputs, scaled_channels(hidden, width), code)


def linear(inputs: int = 784, classes: int = 10) -> Linear:
    """Softmax (logistic) regression on all values of an input; 7,850 parameters for images of 28x28."""
    return Linear(inputs, classes)


def mlp(inputs: int = 784, hidden: int = 200, depth: int = 2, classes: int = 10, width: float = 1) -> Mlp:
    """The "2NN" of McMahan et al. 2017: 199,210 parameters for images of 28x28.

    `width` multiplies `hidden`; a narrower network is the leading part of a wider one.
    """
    return Mlp(inputs, scaled_channels(hidden, width), depth, classes)


def cnn(in_channels: int = 3, size: int = 32, classes: int = 10, width: float = 1) -> Cnn:
    """conv32-conv64-pool-dense128 on square images, as in Reddi et al. 2021 on EMNIST, without dropout.

    1,626,442 parameters for 3x32x32. `width` multiplies the channels of all three layers; a narrower network
    is the leading part of a wider one. Random weights come from torch's global generator.
    """
    return Cnn(in_channels, size, classes, width)


# Keyword spotting


BLOCKS = 4
FIRST_KERNEL = (10, 4)  # time, frequency


class DepthwiseSeparable(nn.Module):
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
    """The small DS-CNN for keyword spotting on log-mel spectrograms.

    Zhang et al. 2017, section 3.5, table 5: one convolution of stride 2, four separable ones, the mean over
    time and frequency, the head.
    """

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
        self.blocks = nn.Sequential(*(DepthwiseSeparable(channels, make_norm) for _ in range(BLOCKS)))
        self.head = nn.Linear(channels, classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, time, frequency) -> (n, classes)."""
        x = self.blocks(functional.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


def keywords(channels: int = 64, in_channels: int = 1, classes: int = 12, norm: str = "group") -> KeywordNet:
    """DS-CNN for spectrograms, of 61 frames and 40 bands or another size.

    64 channels give 23,180 parameters. norm is "group" or "batch". Random weights come from torch's global
    generator.
    """
    return KeywordNet(channels, in_channels, classes, norm)


SERIES_MAPS = (32, 64, 64)  # channels of the three convolutions at width 1
SERIES_KERNEL = 5
SEPARABLE = 64  # channels of every layer at width 1
LONG_KERNEL, LONG_STRIDE = 9, 2


class Cnn1d(nn.Module):
    """Three convolutions along time, each with norm, ReLU and max pooling over 2; the mean over time."""

    levels = {"conv1": "low", "conv2": "mid", "conv3": "up", "head": "head"}  # noqa: RUF012
    level_outputs = {"low": "conv1", "mid": "conv2", "up": "conv3"}  # noqa: RUF012

    def __init__(self, in_channels: int, classes: int, width: float, make_norm: MakeNorm) -> None:
        super().__init__()
        inner = in_channels
        for number, channels in enumerate(SERIES_MAPS, start=1):
            outer = scaled_channels(channels, width)
            convolution = nn.Conv1d(inner, outer, SERIES_KERNEL, padding=SERIES_KERNEL // 2, bias=False)
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
            channels, channels, SERIES_KERNEL, stride, padding=SERIES_KERNEL // 2, groups=channels, bias=False
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
            in_channels, channels, LONG_KERNEL, LONG_STRIDE, padding=LONG_KERNEL // 2, bias=False
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
