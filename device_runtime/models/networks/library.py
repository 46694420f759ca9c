"""Networks from torchvision, which is imported when one is built."""
# mypy: allow-untyped-calls, allow-any-unimported

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from device_runtime.models.errors import ExportError, one_line


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
