"""Speech in one .npz: log-mel uint8 (n, 61, 40), or 16-bit waveforms (n, samples) with sample_rate.

Arrays: x_train, y_train, speaker_train, the same for test, class_names; speaker_ids names the speakers, ""
is no speaker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.data.sound import log_mel
from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.partition.methods import NOBODY

from .arrays import Arrays, integers, names, read
from .dataset import DataSet
from .files import existing
from .spec import DataSpec

NEEDED = ("x_train", "y_train", "x_test", "y_test")
PART = 256  # clips that are converted at once


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads log-mel features uint8 (n, 1, frames, 40) with speakers as groups. Raises DataSetError."""
    path = existing(spec)
    arrays = read(path)
    if missing := [name for name in NEEDED if name not in arrays]:
        raise DataSetError(f"{path} has no {', '.join(missing)}; it has {', '.join(arrays)}")
    y, test_y = (integers(arrays[name], path, name) for name in ("y_train", "y_test"))
    x, test_x = (_features(arrays, name, path) for name in ("x_train", "x_test"))
    return DataSet(x, y, test_x, test_y, names(arrays, (y, test_y)), _speakers(arrays, path))


def _features(arrays: Arrays, name: str, path: Path) -> NDArray[Any]:
    x = arrays[name]
    if x.ndim == 3 and x.dtype == np.uint8:
        return x[:, None]
    if x.ndim != 2 or x.dtype != np.int16 or "sample_rate" not in arrays:
        raise DataSetError(
            f"{path}: {name} is {x.dtype} {x.shape}, expected uint8 (n, frames, bands) or int16 (n, samples) "
            "with sample_rate"
        )
    rate = int(arrays["sample_rate"])
    parts = [log_mel(x[begin : begin + PART], rate) for begin in range(0, max(len(x), 1), PART)]
    return np.concatenate(parts)[:, None]


def _speakers(arrays: Arrays, path: Path) -> NDArray[np.int64] | None:
    if "speaker_train" not in arrays:
        return None
    speakers = integers(arrays["speaker_train"], path, "speaker_train")
    if "speaker_ids" in arrays:
        nobody = np.flatnonzero(arrays["speaker_ids"] == "")
        speakers[np.isin(speakers, nobody)] = NOBODY
    return speakers
