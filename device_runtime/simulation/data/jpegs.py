"""JPEG images in one .npz file.

Arrays: jpeg_train (all bytes), off_train (n + 1 offsets), y_train, and the same for test.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.extras import extra_needed
from device_runtime.simulation.errors import DataSetError

from .arrays import integers, names, read
from .dataset import DataSet
from .files import SkippedFiles, cached, content_key, existing, with_progress
from .spec import DataSpec

Images = NDArray[np.uint8]


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads images uint8 (n, 3, height, width); images of another size than the first are skipped.

    They are decoded once and then kept in the user's cache. Raises DataSetError.
    """
    path = existing(spec)
    if not path.is_file():
        raise DataSetError(f"{path} is a folder, expected a .npz file")
    arrays = cached(content_key([path], "jpeg-npz"), lambda: _decoded(path))
    y, test_y = (np.asarray(arrays[f"y_{part}"], np.int64) for part in ("train", "test"))
    return DataSet(arrays["x_train"], y, arrays["x_test"], test_y, names(arrays, (y, test_y)))


def _decoded(path: Path) -> dict[str, NDArray[Any]]:
    stored = read(path)
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        needed = [f"{kind}_{part}" for kind in ("jpeg", "off", "y")]
        if missing := [name for name in needed if name not in stored]:
            raise DataSetError(f"{path} has no {', '.join(missing)}; it has {', '.join(stored)}")
        data, ends, y = (stored[name] for name in needed)
        y, ends = integers(y, path, f"y_{part}"), integers(ends, path, f"off_{part}")
        if len(ends) != len(y) + 1 or (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > len(data):
            raise DataSetError(
                f"{path}: off_{part} are {len(ends)} offsets, expected {len(y) + 1} ascending, "
                f"from 0 to {len(data)}"
            )
        whole = data.tobytes()
        files = [whole[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        x, good = decoded(files, f"{part} images of {path.name}")
        arrays[f"x_{part}"], arrays[f"y_{part}"] = x, y[good]
    return {**arrays, **{name: stored[name] for name in ("class_names", "labels") if name in stored}}


def decoded(files: list[bytes], what: str) -> tuple[Images, NDArray[np.int64]]:
    """Decodes files to images (n, 3, height, width), and the numbers of the files that could be decoded.

    Raises DataSetError when none could.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataSetError(extra_needed("source jpeg-npz", "images", "PIL")) from None

    skipped = SkippedFiles(what)
    good: list[int] = []
    images: Images | None = None
    for number, file in enumerate(with_progress(files, what)):
        try:
            image = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).transpose(2, 0, 1)
            if images is None:
                images = np.empty((len(files), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(f"{image.shape}, expected {images.shape[1:]} as the first")
        except Exception as error:  # Pillow's decoders let out whatever they meet
            skipped.add(f"number {number}", error)
            continue
        images[len(good)] = image
        good.append(number)
    skipped.report(len(files))
    if images is None:
        raise DataSetError(f"no {what}")
    return images[: len(good)], np.array(good, np.int64)
