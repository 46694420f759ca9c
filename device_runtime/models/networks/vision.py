"""A Vision Transformer, and networks of torchvision.

Vision Transformer for images (Dosovitskiy et al. 2021, section 3.1), with timm's parameter names.

Networks from torchvision, which is imported when one is built.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_runtime.models.errors import ExportError, one_line

from .convolutional import thirds

MLP_RATIO = 4
EPSILON = 1e-6  # of every LayerNorm, as in timm


@dataclass(frozen=True)
class Size:
    """Width of a token, number of blocks, number of attention heads in each block."""

    dim: int
    depth: int
    heads: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(192, 12, 3),
    "small": Size(384, 12, 6),
    "base": Size(768, 12, 12),
}
"""Touvron et al. 2021, table 1 (tiny, small); Dosovitskiy et al. 2021, table 1 (base)."""


class PatchEmbed(nn.Module):
    """Embeds each patch of an image as one token."""

    def __init__(self, in_channels: int, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> (n, h / patch * w / patch, dim).

        The convolution is computed as one matrix product, since its patches do not overlap; so the gradient
        has one node instead of one for each place in the patch.
        """
        n, channels, height, width = x.shape
        patch = self.proj.kernel_size[0]
        x = x.reshape(n, channels, height // patch, patch, width // patch, patch)
        patches = x.permute(0, 2, 4, 1, 3, 5).reshape(n, height // patch * (width // patch), -1)
        return functional.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Attention(nn.Module):
    """Multi-head self-attention in plain matrix products, which ONNX Runtime runs and trains fast."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, dim) -> the same shape."""
        n, tokens, dim = x.shape
        heads, width = self.num_heads, dim // self.num_heads
        parts = self.qkv(x).reshape(n, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        q, k, v = parts.reshape(3, n * heads, tokens, width).unbind(0)
        weights = torch.bmm(q * width**-0.5, k.transpose(1, 2)).softmax(2)
        mixed = torch.bmm(weights, v).reshape(n, heads, tokens, width).transpose(1, 2)
        return self.proj(mixed.reshape(n, tokens, dim))


class FeedForward(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, MLP_RATIO * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(MLP_RATIO * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, dim) -> the same shape."""
        return self.fc2(self.act(self.fc1(x)))


class EncoderBlock(nn.Module):
    """Pre-norm attention and MLP, each with a shortcut (equations 2 and 3)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPSILON)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPSILON)
        self.mlp = FeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, dim) -> the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """A Vision Transformer: the head takes the normalised class token; levels are thirds of the blocks."""

    def __init__(self, size: Size, patches: int, patch: int, in_channels: int, classes: int) -> None:
        super().__init__()
        dim = size.dim
        self.patch_embed = PatchEmbed(in_channels, patch, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + patches, dim))
        self.blocks = nn.Sequential(*(EncoderBlock(dim, size.heads) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.head = nn.Linear(dim, classes)
        self.level_outputs, of_blocks = thirds([f"blocks.{index}" for index in range(size.depth)])
        self.levels = {"patch_embed": "low", "cls_token": "low", "pos_embed": "low", **of_blocks}
        self.levels.update(norm="up", head="head")
        self._initialise()

    def _initialise(self) -> None:
        """Draws weights as timm does: normal of deviation 0.02, biases 0, the class token close to 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, image, image) -> (n, classes)."""
        tokens = self.patch_embed(x)
        first = self.cls_token + tokens.new_zeros(tokens.shape[0], 1, tokens.shape[2])
        tokens = torch.cat([first, tokens], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


def vit(
    size: str = "tiny",
    classes: int = 10,
    image: int = 224,
    patch: int = 16,
    depth: int = 0,
    dim: int = 0,
    heads: int = 0,
    in_channels: int = 3,
) -> VisionTransformer:
    """ViT of a named size; depth, dim and heads other than 0 replace those of the size.

    Random weights come from torch's global generator. Raises ValueError for an unknown size, an image that
    patches do not fill, heads that do not divide dim, or fewer than three blocks.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size!r}, expected one of {', '.join(SIZES)}")
    chosen = SIZES[size]
    chosen = Size(dim or chosen.dim, depth or chosen.depth, heads or chosen.heads)
    if image % patch:
        raise ValueError(f"patches of {patch} do not fill an image of {image}")
    if chosen.dim % chosen.heads:
        raise ValueError(f"{chosen.heads} heads do not divide a width of {chosen.dim}")
    if chosen.depth < len(("low", "mid", "up")):
        raise ValueError(f"depth is {chosen.depth}, expected at least 3, one block for each level")
    return VisionTransformer(chosen, (image // patch) ** 2, patch, in_channels, classes)


@dataclass(frozen=True)
class NetworkLevels:
    """The levels of a network: prefixes of each level's names, the submodule that ends it, the head."""

    prefixes: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, str]
    head: str


def _numbered(low: int, mid: int, up: int, head: str) -> NetworkLevels:
    """Levels that end with these submodules of `features`; the classifier without the head belongs to up."""
    bounds = {"low": (0, low), "mid": (low + 1, mid), "up": (mid + 1, up)}
    prefixes = {level: tuple(f"features.{i}" for i in range(a, b + 1)) for level, (a, b) in bounds.items()}
    prefixes["up"] = (*prefixes["up"], "classifier")
    return NetworkLevels(prefixes, {level: f"features.{last}" for level, (_, last) in bounds.items()}, head)


NETWORK_LEVELS = {
    "resnet18": NetworkLevels(
        {"low": ("conv1", "bn1", "layer1", "layer2"), "mid": ("layer3",), "up": ("layer4",)},
        {"low": "layer2", "mid": "layer3", "up": "layer4"},
        "fc",
    ),
    "shufflenet_v2_x0_5": NetworkLevels(
        {"low": ("conv1", "stage2"), "mid": ("stage3",), "up": ("stage4", "conv5")},
        {"low": "stage2", "mid": "stage3", "up": "conv5"},
        "fc",
    ),
    "mobilenet_v3_small": _numbered(3, 8, 12, "classifier.3"),
    "efficientnet_b0": _numbered(3, 5, 8, "classifier.1"),
}
"""Short name -> levels. Layers down to a stride of 8 are level low, stride 16 mid, stride 32 up."""


def resnet18(classes: int = 1000) -> nn.Module:
    """ResNet-18 (He et al. 2016, table 1). Raises ExportError where torchvision does not load."""
    return _build("resnet18", classes)


def mobilenet_v3_small(classes: int = 1000) -> nn.Module:
    """MobileNetV3-Small (Howard et al. 2019, table 2). Raises ExportError where torchvision does not load."""
    return _build("mobilenet_v3_small", classes)


def shufflenet_v2_x0_5(classes: int = 1000) -> nn.Module:
    """ShuffleNetV2 0.5x (Ma et al. 2018, table 5). Raises ExportError where torchvision does not load."""
    return _build("shufflenet_v2_x0_5", classes)


def efficientnet_b0(classes: int = 1000) -> nn.Module:
    """EfficientNet-B0 (Tan and Le 2019, table 1). Raises ExportError where torchvision does not load."""
    return _build("efficientnet_b0", classes)


def _build(name: str, classes: int) -> nn.Module:
    try:
        models = importlib.import_module("torchvision.models")
    except ModuleNotFoundError as error:
        hint = f"pip install {error.name}"
        raise ExportError(f"{name} needs {error.name}, which is not installed: {hint}") from error
    except Exception as error:  # its compiled part is checked when it is imported
        raise ExportError(
            f"{name} needs torchvision, which does not load with torch {torch.__version__}: "
            f"{one_line(error)}; install the torchvision built for this torch, from the same index"
        ) from error
    module: nn.Module = getattr(models, name)(num_classes=classes)
    plan = NETWORK_LEVELS[name]
    module.levels = {p: level for level, prefixes in plan.prefixes.items() for p in prefixes}
    module.levels[plan.head] = "head"
    module.level_outputs = dict(plan.outputs)
    return out_of_place(module)


def out_of_place(module: nn.Module) -> nn.Module:
    """Changes the module so that activations do not overwrite values that gradients need; returns it."""
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False
    return module
