"""What accuracies are measured on: SqueezeNet 1.0 of ImageNet, as features with a head, or whole.

Features are the averages of the last maps, computed once and kept in a folder: of the first 4,000 images of
CIFAR-10 enlarged to 128 pixels, of Speech Commands' log-mel pictures likewise. A bundle of a head alone then
learns from them. The whole network takes CIFAR-10 at any size; its layers are balanced first, which changes
no output but by one factor: every activation has a root mean square of 1, so that no layer's biases are lost
beside the others'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.data import DataSet, DataSpec

DATA = Path(os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data"))
WEIGHTS = DATA / "squeezenet1_0_imagenet.npz"
FILES = {
    "cifar10": ("jpeg-npz", "cifar10_10k_2k_jpegbytes.npz"),
    "speech": ("speech-npz", "speech_commands12_logmel_u8.npz"),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 128
PART = 100  # samples in memory at a time
MOST = 4000  # training samples whose features are kept, the first; that takes a minute
CALIBRATION = 200  # images that say how large activations are


@dataclass(frozen=True)
class Subject:
    """A bundle, and the [data] table of a scenario with what it learns from."""

    bundle: Path
    data: dict[str, Any]


def subject(data: str, subset: str, folder: Path, size: int = 32) -> Subject:
    """The network and samples of "cifar10" or "speech".

    subset: "head" or "scaled-head" on features; anything else: the whole network, on images of this `size`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if subset not in ("head", "scaled-head"):
        source, name = FILES["cifar10"]
        path = folder / f"whole-{size}"
        if not path.exists():
            _whole(path, size)
        return Subject(path, {"source": source, "path": str(DATA / name), "size": size})
    store, path = folder / f"{data}-features.npz", folder / f"{data}-{subset}"
    if not store.exists():
        _keep_features(data, store)
    if not path.exists():
        with np.load(store) as file:
            scale = 1 / float(np.sqrt(np.square(file["x_train"], dtype=np.float64).mean()))
            _head(path, tuple(map(str, file["labels"])), scale, subset == "scaled-head")
    return Subject(path, {"source": "npz", "path": str(store)})


def loaded(data: str, size: int = 32) -> DataSet:
    source, name = FILES[data]
    return data_sets.load(DataSpec(source=source, path=str(DATA / name), size=size), 0)


def backbone(classes: int) -> Any:
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.parameters import load_weights

    module = build("squeezenet", {"version": "1.0", "classes": classes})
    load_weights(module, WEIGHTS, skip_head="classifier.1")
    return module.eval()


def _keep_features(data: str, path: Path) -> None:
    """x_train, x_test float32 (n, 512), y_train, y_test int64 (n,), labels."""
    import torch

    module, whole = backbone(2), loaded(data)
    arrays = {}
    with torch.no_grad():
        for part, x in (("train", whole.train_x[:MOST]), ("test", whole.test_x)):
            tensors = (torch.from_numpy(prepared(each)) for each in pictures(x))
            arrays[f"x_{part}"] = np.concatenate([module.features(p).mean((2, 3)).numpy() for p in tensors])
    labels = np.array(whole.labels)
    np.savez(path, **arrays, y_train=whole.train_y[:MOST], y_test=whole.test_y, labels=labels)


def pictures(x: NDArray[Any], size: int = SIZE) -> Iterator[NDArray[np.uint8]]:
    """Of uint8 (n, 1 or 3, height, width), resized: uint8 (up to PART, 3, size, size)."""
    for start in range(0, len(x), PART):
        part = x[start : start + PART].transpose(0, 2, 3, 1)
        images = [Image.fromarray(each[..., 0] if each.shape[-1] == 1 else each) for each in part]
        sized = [image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR) for image in images]
        yield np.stack([np.asarray(image) for image in sized]).transpose(0, 3, 1, 2)


def prepared(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    return InputSpec(x.shape[1:], 1 / 255, MEAN, STD).prepare(x)


def _head(folder: Path, names: tuple[str, ...], scale: float, scaled: bool) -> Bundle:
    """A linear layer whose inputs have a root mean square of 1."""
    import torch

    from device_runtime.models.export.export import ExportSpec, export

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(512, len(names)))
    spec = InputSpec((512,), scale)
    return export(module, ExportSpec("features", spec, names, sets={"head": {}}, scaled=scaled), folder)


def _whole(folder: Path, size: int) -> Bundle:
    import torch

    from device_runtime.models.export.export import ExportSpec, export

    torch.manual_seed(0)
    images = loaded("cifar10", size)
    spec = InputSpec((3, size, size), 1 / 255, MEAN, STD)
    module = backbone(len(images.labels))
    balance(module, torch.from_numpy(spec.prepare(images.train_x[:CALIBRATION])))
    sets = {"bias": {}, "head": {}}
    return export(module, ExportSpec("squeezenet", spec, tuple(images.labels), sets=sets), folder)


def balance(module: Any, x: Any) -> None:
    """Scale each layer so that what it gives has a root mean square of 1, rectified: ReLU lets factors by."""
    import torch

    def size(*maps: Any) -> float:
        return float(torch.cat(maps, 1).relu().square().mean().sqrt())

    def scaled(layer: Any, before: float, by: float) -> None:
        layer.weight.div_(by)
        layer.bias.div_(before * by)

    factor = 1.0
    with torch.no_grad():
        for layer in module.features:
            if hasattr(layer, "squeeze"):
                factor = _scale([layer.squeeze], x, factor, size, scaled)
                inner = layer.squeeze(x).relu()
                factor = _scale([layer.expand1x1, layer.expand3x3], inner, factor, size, scaled)
            elif hasattr(layer, "weight"):
                factor = _scale([layer], x, factor, size, scaled)
            x = layer(x)


def _scale(layers: list[Any], x: Any, factor: float, size: Any, scaled: Any) -> float:
    """`x` is 1 / factor of what these layers were made for; returns by what their output is smaller."""
    for layer in layers:
        scaled(layer, factor, 1.0)
    by = size(*(layer(x) for layer in layers))
    for layer in layers:
        scaled(layer, 1.0, by)
    return factor * by
