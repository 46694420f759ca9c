"""Folders of images, one for each class: below train and test (or val), or in one tree to be split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, in_order, split
from .files import SkippedFiles, cached, existing, listing_key, with_progress
from .spec import DataSpec

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
TESTS = ("test", "val", "valid", "validation")

Arrays = dict[str, NDArray[Any]]


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads images uint8 (n, 3, size, size): the largest central square, resized (bilinear).

    Classes are the names of the folders, in order. Files that are not images are skipped and counted.
    Raises DataSetError.
    """
    root = existing(spec)
    train = root / "train"
    if not train.is_dir():
        labels = _classes(root)
        every = _read(root, labels, spec.size)
        return split(Samples(every["x"], np.asarray(every["y"]), labels), spec.test_share, seed)
    test = next((root / name for name in TESTS if (root / name).is_dir()), None)
    if test is None:
        raise DataSetError(f"{root} has a folder train, but none of {', '.join(TESTS)}")
    labels = _classes(train)
    if strange := sorted(set(_classes(test)) - set(labels)):
        raise DataSetError(f"{test} has the class {strange[0]!r}, which {train} does not have")
    known, asked = _read(train, labels, spec.size), _read(test, labels, spec.size)
    return DataSet(known["x"], np.asarray(known["y"]), asked["x"], np.asarray(asked["y"]), labels)


def _classes(folder: Path) -> tuple[str, ...]:
    names = in_order(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise DataSetError(f"{folder} has no folders, expected one for each class")
    return names


def _read(folder: Path, labels: tuple[str, ...], size: int) -> Arrays:
    files = [
        (path, label)
        for label, name in enumerate(labels)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    if not files:
        raise DataSetError(f"{folder} has no images below its {len(labels)} folders")
    key = listing_key((path for path, _ in files), "images", labels, size)
    return cached(key, lambda: _decoded(files, size, folder))


def _decoded(files: list[tuple[Path, int]], size: int, folder: Path) -> Arrays:
    from PIL import Image, ImageOps

    images = np.empty((len(files), 3, size, size), np.uint8)
    good: list[int] = []
    skipped = SkippedFiles(f"images of {folder}")
    for path, label in with_progress(files, f"images of {folder}"):
        try:
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
                square = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            skipped.add(path.name, error)
            continue
        images[len(good)] = np.asarray(square).transpose(2, 0, 1)
        good.append(label)
    skipped.report(len(files))
    return {"x": images[: len(good)], "y": np.array(good, np.int64)}
