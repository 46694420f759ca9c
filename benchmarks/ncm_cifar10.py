"""One pass over the data, no training: nearest class mean on SqueezeNet 1.0 features of CIFAR-10.

    .venv/bin/python benchmarks/ncm_cifar10.py                 # 10,000 + 2,000 images, some minutes
    .venv/bin/python benchmarks/ncm_cifar10.py --train 1000    # a look
    .venv/bin/python benchmarks/ncm_cifar10.py --clients 100   # and FedNCM: one round of so many devices
    .venv/bin/python benchmarks/ncm_cifar10.py --heads --cache features.npz   # closed-form heads

Pre-trained weights become a bundle with a head of ten classes; ONNX Runtime computes the features, which are
the averages of the last feature maps, from images enlarged from 32 to 128 pixels (--size 224: to 224). A row
of the head is the mean of its class at length 1, the bias is 0. With --clients the images are divided by
Dirichlet(0.1) and a simulated fleet sends class means; what it serves is evaluated. --heads compares heads in
closed form, by the number of devices: of class means alone, of the covariance that these give (FedCOF), of
second moments of one device, and of all; means as int8, three seeds. --cache keeps the features. Real data is
read from ../shared/data.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.training.heads import SoftmaxHead, accuracy_and_loss
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.partition import dirichlet_by_class
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics.class_statistics import (
    Statistics,
    decode,
    encode,
    measure_statistics,
)
from device_runtime.strategies.statistics.closed_form import RoundStatistics, solve_head

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


FLEETS, ALPHAS, SEEDS = (10, 20, 100, 400), (0.1, 0.3, 1000.0), 3
MEANS = ClassStatistics(numbers="int8", moments=False)


def heads(bundle: Bundle, cached: Mapping[str, NDArray[Any]]) -> list[tuple[float | str, ...]]:
    """Accuracy in % by Dirichlet's alpha and number of devices, and FedCOF's share of the way."""
    rows, labels = [], len(bundle.manifest.labels)
    whole = measure_statistics(cached["train"], cached["train_y"], labels, MEANS.smallest_count)
    moments = 100 * _accuracy(bundle, _head(bundle.manifest, *solve_head(whole)), cached)
    for alpha, devices in product(ALPHAS, FLEETS):
        runs = [_accuracies(bundle, cached, alpha, devices, seed) for seed in range(SEEDS)]
        means, of_means, one_device = 100 * np.mean(runs, axis=0)
        share = (of_means - means) / (moments - means)
        rows.append((f"{alpha:g}", devices, means, of_means, one_device, moments, f"{share:.0%}"))
    return rows


def _accuracies(
    bundle: Bundle, cached: Mapping[str, NDArray[Any]], alpha: float, devices: int, seed: int
) -> list[float]:
    """With class means alone, FedCOF, and the same with second moments of the first device."""
    x, y = cached["train"], cached["train_y"]
    parts = dirichlet_by_class(y, devices, alpha, np.random.default_rng(seed))
    manifest, labels = bundle.manifest, len(bundle.manifest.labels)
    nearest = Statistics.none(labels, x.shape[1]).sums
    served = []
    for with_moments in (0, 1):
        pooling = RoundStatistics(manifest, bundle.weights(), MEANS)
        for number, part in enumerate(parts):
            sent = measure_statistics(x[part], y[part], labels, MEANS.smallest_count)
            settings = replace(MEANS, moments=number < with_moments)
            sent = decode(encode(sent, settings), (labels, x.shape[1]))
            nearest = nearest if with_moments else nearest + sent.sums
            pooling.add(sent, None)
        served.append(pooling.closed({})[1])
    rows = nearest.means()
    of_means = _head(manifest, rows, -np.square(rows).sum(axis=1) / 2)
    return [_accuracy(bundle, each, cached) for each in (of_means, *served)]


def _head(manifest: Manifest, weights: NDArray[Any], bias: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {
        manifest.head.weight: weights.astype(np.float32),
        str(manifest.head.bias): bias.astype(np.float32),
    }


def _accuracy(
    bundle: Bundle, weights: Mapping[str, NDArray[Any]], cached: Mapping[str, NDArray[Any]]
) -> float:
    logits = SoftmaxHead(bundle.manifest, weights).logits(cached["test"])
    return accuracy_and_loss(logits, cached["test_y"]).eval_acc


def _cached(path: Path | None, bundle: Bundle, train: Photos, test: Photos) -> Mapping[str, NDArray[Any]]:
    """Features and classes of both parts, from the file if it exists, which else is written."""
    if path is not None and path.exists():
        return dict(np.load(path))
    model = OnnxModel(bundle, threads=1)
    parts = {"train": features(model, train), "test": features(model, test)}
    parts |= {"train_y": train.y, "test_y": test.y}
    if path is not None:
        np.savez(path, **parts)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=int, help="train images (default: all 10,000)")
    parser.add_argument("--size", type=int, default=SIZE, help="pixels of a side (default: 128)")
    parser.add_argument("--clients", type=int, help="devices that hold the images, for FedNCM besides")
    parser.add_argument("--heads", action="store_true", help="compare heads in closed form, and nothing else")
    parser.add_argument("--cache", type=Path, help="file of features for --heads")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    train, test = read("train", options.train, options.size), read("test", size=options.size)
    with tempfile.TemporaryDirectory() as folder:
        bundle = backbone(Path(folder) / "bundle", options.size)
        if options.heads:
            compared = heads(bundle, _cached(options.cache, bundle, train, test))
            names = ("alpha", "devices", "class means", "FedCOF", "moments of one", "of all", "of the way")
            print(tabulate(compared, names, floatfmt=".1f"))
            return
        results = [nearest_class_mean(bundle, train, test, options.threads)]
        if options.clients:
            results.append(federated(bundle, train, test, options.clients))
    rows = [(each.how, len(train.files), len(test.files), each.accuracy, each.seconds) for each in results]
    head = ("class means", "train", "test", "accuracy", "s per 1000 images")
    print(tabulate(rows, head, floatfmt=("", "", "", ".4f", ".1f")))


if __name__ == "__main__":
    main()
