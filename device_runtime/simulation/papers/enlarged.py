"""Images and spectra of another size than they come in, for the networks that are to take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.data import files as cache
from device_runtime.simulation.data.files import told
from device_runtime.simulation.errors import DataSetError


def enlarged(spec: DataSpec, pixels: int) -> Path:
    """A folder of .npy files with the same images, bilinear, uint8 (n, 1 or 3, pixels, pixels).

    Made once, then in the user's cache. Raises DataSetError.
    """
    path = Path(spec.path).expanduser()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    key = cache.content_key(files, "enlarged", spec.source, spec.classes, pixels)
    cache.kept(key, lambda: _made(spec, pixels))
    folder = cache.folder() / key
    if not folder.is_dir():
        raise DataSetError(f"enlarged images cannot be kept in {cache.folder()}")
    return folder


def _made(spec: DataSpec, pixels: int) -> dict[str, NDArray[Any]]:
    data = load(spec, seed=0)
    whose = {} if data.groups is None else {"groups": data.groups}
    return {
        **whose,
        "x_train": _images(data.train_x, pixels, "training images"),
        "y_train": data.train_y,
        "x_test": _images(data.test_x, pixels, "test images"),
        "y_test": data.test_y,
        "class_names": np.array(data.labels),
    }


def _images(x: NDArray[Any], pixels: int, what: str) -> NDArray[np.uint8]:
    from PIL import Image

    sized = np.empty((*x.shape[:2], pixels, pixels), np.uint8)
    for number in told(range(len(x)), f"{what} to {pixels} pixels"):
        for channel, plane in enumerate(np.asarray(x[number])):
            square = Image.fromarray(plane).resize((pixels, pixels), Image.Resampling.BILINEAR)
            sized[number, channel] = np.asarray(square)
    return sized
