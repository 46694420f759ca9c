"""One pass over the data, no training: nearest class mean on SqueezeNet 1.0 features of CIFAR-10.

    .venv/bin/python benchmarks/ncm_cifar10.py                 # 10,000 + 2,000 images, some minutes
    .venv/bin/python benchmarks/ncm_cifar10.py --train 1000    # a look
    .venv/bin/python benchmarks/ncm_cifar10.py --clients 100   # and FedNCM: one round of so many devices

Pre-trained weights become a bundle with a head of ten classes; ONNX Runtime computes the features, which are
the averages of the last feature maps, from images enlarged from 32 to 128 pixels (--size 224: to 224). A row
of the head is the mean of its class at length 1, the bias is 0. With --clients the images are divided by
Dirichlet(0.1) and a simulated fleet sends class means; what it serves is evaluated. Real data is read from
../shared/data.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.training.heads import SoftmaxHead, accuracy_and_loss
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario

DATA = Path(__file__).parents[2] / "shared" / "data"
WEIGHTS, IMAGES = DATA / "squeezenet1_0_imagenet.npz", DATA / "cifar10_10k_2k_jpegbytes.npz"
SIZE = 128  # pixels
ALPHA = 0.1
PART = 100  # images in memory at a time

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Photos:
    """JPEG files and their classes, int64 (n,); `size` is what a side becomes, in pixels."""

    files: tuple[bytes, ...]
    y: NDArray[np.int64]
    size: int = SIZE

    def parts(self) -> Iterator[NDArray[np.uint8]]:
        """Enlarged images, (up to 100, 3, size, size)."""
        enlarged = partial(_enlarged, size=self.size)
        for start in range(0, len(self.files), PART):
            yield np.stack([enlarged(file) for file in self.files[start : start + PART]])

    def save(self, path: Path) -> None:
        """All of them as a .npy file, without holding them at once."""
        shape = (len(self.files), 3, self.size, self.size)
        images = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
        for number, part in enumerate(self.parts()):
            images[PART * number : PART * number + len(part)] = part


@dataclass(frozen=True)
class Result:
    """Accuracy on the test images, and seconds per 1000 images, decoding and enlarging included."""

    how: str
    accuracy: float
    seconds: float


def read(part: str, most: int | None = None, size: int = SIZE) -> Photos:
    """The images of "train" or "test", the first `most` of them."""
    with np.load(IMAGES) as file:
        data, ends = file[f"jpeg_{part}"].tobytes(), file[f"off_{part}"].tolist()
        files = tuple(data[a:b] for a, b in pairwise(ends))
        return Photos(files[:most], file[f"y_{part}"][:most].astype(np.int64), size)


def _enlarged(file: bytes, size: int) -> NDArray[np.uint8]:
    image = Image.open(io.BytesIO(file)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def backbone(folder: Path, size: int = SIZE) -> Bundle:
    """SqueezeNet 1.0 with the weights of ImageNet and a new head of ten classes, as a bundle."""
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.parameters import load_weights

    with np.load(IMAGES) as file:
        labels = tuple(str(name) for name in file["class_names"])
    module = build("squeezenet", {"version": "1.0", "classes": len(labels)})
    load_weights(module, WEIGHTS, skip_head="classifier.1")
    spec = InputSpec((3, size, size), 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return export(module, ExportSpec("squeezenet-ncm", spec, labels, sets={"head": {}}), folder)


def features(model: OnnxModel, photos: Photos) -> Matrix:
    """(n, 512), with progress on stderr."""
    parts: list[Matrix] = []
    for part in photos.parts():
        parts.append(model.features(model.manifest.input.prepare(part)))
        print(f"\r{PART * len(parts)} of {len(photos.files)} images", end="", file=sys.stderr)
    print(file=sys.stderr)
    return np.concatenate(parts)


def nearest_class_mean(bundle: Bundle, train: Photos, test: Photos, threads: int = 1) -> Result:
    """Rows of the head from the train images; its accuracy on the test images."""
    model = OnnxModel(bundle, threads=threads)
    began = time.perf_counter()
    train_features, test_features = features(model, train), features(model, test)
    seconds = 1000 * (time.perf_counter() - began) / (len(train_features) + len(test_features))
    rows = np.stack(
        [train_features[train.y == label].mean(0) for label in range(len(bundle.manifest.labels))]
    )
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    head = bundle.manifest.head
    weights = {head.weight: rows, head.bias: np.zeros(len(rows), np.float32)}
    logits = SoftmaxHead(bundle.manifest, weights).logits(test_features)
    return Result("pooled", accuracy_and_loss(logits, test.y).eval_acc, seconds)


def federated(bundle: Bundle, train: Photos, test: Photos, clients: int) -> Result:
    """FedNCM in one round of a simulated fleet; every class mean goes the way that it would from a device."""

    class Notes(NullObserver):
        def closed(self, line: SimulatedRound) -> None:
            lines.append(line)

    lines: list[SimulatedRound] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, photos in (("train", train), ("test", test)):
            photos.save(Path(folder) / f"x_{name}.npy")
            np.save(Path(folder) / f"y_{name}.npy", photos.y)
        data = {"source": "npz", "path": folder, "partition": "dirichlet", "alpha": ALPHA}
        kinds = [{"name": "class-means"}]
        task = {"bundle": str(bundle.path), "rounds": 1, "round_deadline_s": 1e6, "kinds": kinds}
        fleet = scenario.load("uniform", {"devices": clients, "data": data, "task": task})
        simulate(prepare(fleet, seed=0), observer=Notes())
    seconds = 1000 * (time.perf_counter() - began) / (len(train.files) + len(test.files))
    sent = f"FedNCM, {lines[0].participants} of {clients} devices"
    return Result(sent, lines[0].eval_acc, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=int, help="train images (default: all 10,000)")
    parser.add_argument("--size", type=int, default=SIZE, help="pixels of a side (default: 128)")
    parser.add_argument("--clients", type=int, help="devices that hold the images, for FedNCM besides")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    train, test = read("train", options.train, options.size), read("test", size=options.size)
    with tempfile.TemporaryDirectory() as folder:
        bundle = backbone(Path(folder) / "bundle", options.size)
        results = [nearest_class_mean(bundle, train, test, options.threads)]
        if options.clients:
            results.append(federated(bundle, train, test, options.clients))
    rows = [(each.how, len(train.files), len(test.files), each.accuracy, each.seconds) for each in results]
    head = ("class means", "train", "test", "accuracy", "s per 1000 images")
    print(tabulate(rows, head, floatfmt=("", "", "", ".4f", ".1f")))


if __name__ == "__main__":
    main()
