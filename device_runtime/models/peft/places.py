"""The settings of tunable sets, and the layers and blocks of a network to which they can add parameters.

Places are recognised by the names and types of modules.
"""
# mypy: allow-any-unimported, allow-untyped-calls

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from device_runtime.models.errors import ExportError

PROBES = (32, 64, 224)  # sizes of images and windows that a convolutional network is tried with
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True)
class PeftPlace:
    """A module whose output is changed, and the width of that output.

    axes: of a feature map besides its channels, 1 or 2; 0 if the width is the last axis.
    """

    name: str
    module: nn.Module
    width: int
    axes: int = 0


def weighted_layers(module: nn.Module, head: str) -> dict[str, nn.Module]:
    """Every nn.Linear, nn.Conv1d and nn.Conv2d but the head, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS)) and name != head
    }


BLOCKS = (
    "blocks with attn.qkv, attn.proj, attn.num_heads and mlp, as in timm's VisionTransformer, or a text "
    "network of this project"
)


def transformer_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """The layers of a text network (`transformer_layers`), or blocks like those of timm's VisionTransformer.

    The latter are attn with qkv, proj and num_heads, then mlp. Attention over windows of an image (Swin) is
    not included, since it takes only the image's tokens.
    """
    if names := getattr(module, "transformer_layers", ()):
        return {name: module.get_submodule(name) for name in names}
    return {name: block for name, block in module.named_modules() if _is_transformer_block(block)}


def _is_transformer_block(block: nn.Module) -> bool:
    attention = getattr(block, "attn", None)
    return (
        hasattr(block, "mlp")
        and isinstance(getattr(attention, "qkv", None), nn.Linear)
        and hasattr(attention, "proj")
        and hasattr(attention, "num_heads")
        and not hasattr(attention, "relative_position_bias_table")
    )


def feed_forward_blocks(module: nn.Module, head: str) -> list[PeftPlace]:
    """The modules that give the result of each feed-forward block, before the shortcut is added.

    They are `mlp` (timm, torchvision), `ffn` (DistilBERT), or `output.dense` next to `intermediate` (BERT,
    RoBERTa).
    """
    places = []
    for name, block in module.named_modules():
        linear = [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
        if linear and _is_feed_forward(module, name) and not f"{head}.".startswith(f"{name}."):
            places.append(PeftPlace(name, block, linear[-1].out_features))
    return places


def _is_feed_forward(module: nn.Module, name: str) -> bool:
    *outer, last = name.split(".")
    if last in ("mlp", "ffn"):
        return True
    if last != "dense" or outer[-1:] != ["output"]:
        return False
    return hasattr(module.get_submodule(".".join(outer[:-1])), "intermediate")


def convolutional_blocks(module: nn.Module, head: str) -> list[PeftPlace]:
    """The outermost modules with two or more convolutions in a Sequential or ModuleList.

    These are the residual blocks of ResNets and MobileNets and the fire modules of SqueezeNet. A network
    without any has the modules named by `level_outputs` instead. Widths come from a pass with zeros.
    """
    names: list[str] = []
    for name, block in module.named_modules():
        parent = module.get_submodule(name.rpartition(".")[0])
        inside = any(name.startswith(f"{outer}.") for outer in names)
        if isinstance(parent, nn.Sequential | nn.ModuleList) and _is_block(block) and not inside:
            names.append(name)
    if not names:
        names = list(getattr(module, "level_outputs", {}).values())
    maps = _maps(module, names) if names else {}
    return [
        PeftPlace(name, module.get_submodule(name), shape[1], len(shape) - 2) for name, shape in maps.items()
    ]


def _is_block(block: nn.Module) -> bool:
    convolutions = [layer for layer in block.modules() if isinstance(layer, CONVOLUTIONS)]
    return len(convolutions) > 1 and not isinstance(block, nn.Sequential | nn.ModuleList)


def _maps(module: nn.Module, names: list[str]) -> dict[str, torch.Size]:
    """Shapes of the feature maps that these modules give, by the first size of image or window that fits."""
    first = next((layer for layer in module.modules() if isinstance(layer, CONVOLUTIONS)), None)
    if first is None:
        return {}
    axes = len(first.kernel_size)
    shapes: dict[str, torch.Size] = {}
    probed = copy.deepcopy(module).eval()

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if isinstance(output, Tensor) and output.dim() == 2 + axes:
                shapes[name] = output.shape

        return hook

    for name in names:
        probed.get_submodule(name).register_forward_hook(keep(name))
    for size in PROBES:
        try:
            with torch.no_grad():
                probed(first.weight.new_zeros(1, first.in_channels, *[size] * axes))
        except (RuntimeError, ValueError, AssertionError):
            continue
        return {name: shapes[name] for name in names if name in shapes}
    what = "image" if axes == 2 else "window"
    sizes = ", ".join("x".join([str(size)] * axes) for size in PROBES)
    raise ExportError(
        f"{type(module).__name__} takes no {what} of {sizes}, so the widths of its blocks are unknown"
    )


def no_place_error(module: nn.Module, name: str, looked_for: str) -> ExportError:
    """The error about a network without a place for a tunable set."""
    kinds = Counter(type(layer).__name__ for layer in module.modules() if not list(layer.children()))
    has = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    return ExportError(
        f"{type(module).__name__} has no place for tunable set {name}, which needs {looked_for}; it has {has}"
    )


Value = int | float | str


@dataclass(frozen=True)
class IntegerSetting:
    """An integer of at least `least`."""

    default: int
    least: int = 1

    def read(self, value: Value) -> Value | None:
        """The value, or None if it is not allowed."""
        right = isinstance(value, int) and not isinstance(value, bool)
        return value if right and self.least <= value < 1 << 63 else None  # type: ignore[operator]

    def __str__(self) -> str:
        return f"an integer of at least {self.least}"


@dataclass(frozen=True)
class NumberSetting:
    """A number above 0 and at most `most`."""

    default: float | None
    most: float

    def read(self, value: Value) -> Value | None:
        """The value as float, or None if it is not allowed."""
        right = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if right and 0 < value <= self.most else None  # type: ignore[operator]

    def __str__(self) -> str:
        return f"a number above 0 and at most {self.most:g}"


@dataclass(frozen=True)
class ChoiceSetting:
    """One of several words; the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        """The first word."""
        return self.words[0]

    def read(self, value: Value) -> Value | None:
        """The value, or None if it is not allowed."""
        return value if value in self.words else None

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


_SEED = IntegerSetting(0, least=0)

SETTINGS: Mapping[str, Mapping[str, IntegerSetting | NumberSetting | ChoiceSetting]] = {
    "bias": {"head": ChoiceSetting(("with", "without")), "norms": ChoiceSetting(("biases", "affine"))},
    "adapter": {"reduction": IntegerSetting(8), "seed": _SEED},
    "prompt": {"tokens": IntegerSetting(10), "seed": _SEED},
    "prefix": {"tokens": IntegerSetting(10), "blocks": IntegerSetting(0, least=0), "seed": _SEED},
    "lora": {
        "rank": IntegerSetting(8),
        "alpha": NumberSetting(None, most=1e6),  # by default the rank
        "targets": ChoiceSetting(("attention", "all")),
        "seed": _SEED,
    },
    "sparse": {"density": NumberSetting(0.1, most=1.0), "seed": _SEED},
}


def completed(name: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """All settings of a set. Raises ExportError for an unknown set or setting, or a value out of range."""
    settings = settings_of(name)
    if unknown := sorted(values.keys() - settings.keys()):
        raise ExportError(f"tunable set {name} has no setting {unknown[0]!r}; it has {', '.join(settings)}")
    result: dict[str, Value] = {}
    for key, setting in settings.items():
        default = setting.default if setting.default is not None else result["rank"]
        value = setting.read(values.get(key, default))
        if value is None:
            raise ExportError(f"{key} of tunable set {name} is {values[key]!r}, expected {setting}")
        result[key] = value
    return result


def settings_of(name: str) -> Mapping[str, IntegerSetting | NumberSetting | ChoiceSetting]:
    """The settings that a set has. Raises ExportError for an unknown set."""
    if name not in SETTINGS:
        raise ExportError(f"there is no parameter-efficient set {name!r}; there are {', '.join(SETTINGS)}")
    return SETTINGS[name]
