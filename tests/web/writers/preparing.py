"""Pictures and sounds made into a bundle's input. Long ones are drawn by `noise`, which is written twice."""

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import WindowInput
from device_runtime.models.bundles.manifest import InputSpec
from device_runtime.models.data import sound as wav
from device_runtime.models.data.pictures import Picture
from device_runtime.models.data.row_reader import TimeStep, WindowCutter
from device_runtime.models.data.units import RawSamples

DIGITS = InputSpec(shape=(1, 8, 8), scale=0.0625, mean=(0.305,), std=(0.376,))
COLOUR = InputSpec(
    shape=(3, 12, 10), scale=1 / 255, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)
)
SPEECH = InputSpec(shape=(1, 61, 40), scale=1 / 255, mean=(0.4,), std=(0.2,))
NEAR = {"raw": 1e-5}
"""A value of a picture is two sums of at most 16 float32 products each, added in an order of its BLAS's own:
32 roundings of 6e-8 are 2e-6 of the value."""
ROUNDED = {"levels"}

Bytes = NDArray[np.uint8]


def noise(seed: int, count: int) -> NDArray[np.int64]:
    """`count` numbers from 0 to 65536: x <- (75 x + 74) mod 65537."""
    values = []
    for _ in range(count):
        seed = (75 * seed + 74) % 65537
        values.append(seed)
    return np.array(values)


def vectors() -> dict[str, Any]:
    return {
        "prepare": [_prepared(spec, seed) for seed, spec in enumerate((DIGITS, COLOUR, SPEECH), 1)],
        "pictures": [
            _picture(DIGITS, 64, 64, 1),
            _picture(DIGITS, 5, 7, 3),
            _picture(COLOUR, 40, 31, 3),
            _picture(COLOUR, 12, 10, 1),
        ],
        "sounds": [
            _sound(rate, count)
            for rate, count in ((16_000, 20_000), (44_100, 30_000), (22_050, 22_050), (8_000, 8_000))
        ],
        "wav": [_wav(kind, bits, channels) for kind, bits, channels in FORMS],
        "npz": _npz(),
        "motion": [_motion(("x", "y", "z"), 0.8), _motion(("acc_z", "acc_x", "acc_y"), 1.0)],
    }


def _spec(spec: InputSpec) -> dict[str, Any]:
    return {
        "shape": spec.shape,
        "scale": spec.scale,
        "mean": spec.mean,
        "std": spec.std,
        "dtype": "float32",
        "vocabulary": None,
    }


def _prepared(spec: InputSpec, seed: int) -> dict[str, Any]:
    count = int(np.prod(spec.shape))
    raw = (noise(seed, count) % 256).reshape(1, *spec.shape)
    x = spec.prepare(raw)
    return {"input": _spec(spec), "seed": seed, "x": x.astype("<f4").tobytes()}


def _picture(spec: InputSpec, height: int, width: int, channels: int) -> dict[str, Any]:
    pixels = (noise(7, height * width * channels) % 256).astype(np.uint8).reshape(height, width, channels)
    raw = Picture(pixels).raw(spec)
    size = {"height": height, "width": width, "channels": channels}
    numbers = {"levels": raw.tobytes()} if raw.dtype == np.uint8 else {"raw": raw.ravel().tolist()}
    return {"input": _spec(spec), **size, **numbers}


def _sound(rate: int, count: int) -> dict[str, Any]:
    loud = np.arange(count) * 7 % 997
    samples = (noise(rate, count) - 32768) * loud // 1024
    sound = wav.Sound(samples.astype("<i2").tobytes(), wav.PCM, 1, rate, 16)
    return {"input": _spec(SPEECH), "rate": rate, "count": count, "levels": sound.raw(SPEECH).tobytes()}


def _motion(columns: tuple[str, ...], unit: float) -> dict[str, Any]:
    """Windows of 7 of 17 readings of x, y, z, which come to the device in `columns`, in units of g."""
    length, count = 7, 17
    window = WindowInput(length, columns)
    spec = InputSpec((3, length), 1.0, (0.1 * unit, 0.2, 0.9 * unit), (0.5, 0.25, 0.3), window=window)
    readings = ((noise(5, 3 * count) - 32768) / 1024).reshape(count, 3)
    cutter = WindowCutter.of(spec)
    assert cutter is not None
    order = cutter.columns(["x", "y", "z"] if columns[0] == "x" else ["acc_x", "acc_y", "acc_z"], 3)
    rows = (readings[:, order] / 9.80665).astype(np.float32)
    cut = cutter.cut((TimeStep("walking", row) for row in rows), "recording", "walk.csv")
    raw = np.concatenate([part.x for part in cut if isinstance(part, RawSamples)])
    numbers = {"raw": raw.astype("<f4").tobytes(), "x": spec.prepare(raw).astype("<f4").tobytes()}
    fields = {**_spec(spec), "window": {"step": length, "columns": columns}}
    return {"input": fields, "readings": readings.tolist(), **numbers}


FORMS = ((1, 8, 1), (1, 16, 2), (1, 24, 1), (1, 32, 1), (3, 32, 1), (3, 64, 2))
VALUES = (-1.0, -0.5, -0.001, 0.0, 0.25, 0.9)


def _wav(kind: int, bits: int, channels: int) -> dict[str, Any]:
    values = [value * (0.5 if channel else 1) for value in VALUES for channel in range(channels)]
    data = b"".join(_value(value, kind, bits) for value in values)
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, 11_025, 11_025 * frame, frame, bits)
    chunks = (
        b"fmt "
        + struct.pack("<I", 16)
        + form
        + b"LIST\x03\0\0\0abc\0"
        + b"data"
        + struct.pack("<I", len(data))
        + data
    )
    file = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    return {"file": file, "rate": 11_025, "samples": wav.decode(file).samples().astype("<f4").tobytes()}


def _value(value: float, kind: int, bits: int) -> bytes:
    if kind == 3:
        return struct.pack("<f" if bits == 32 else "<d", value)
    whole = round(value * (2 ** (bits - 1) - 1))
    return bytes([whole + 128]) if bits == 8 else whole.to_bytes(bits // 8, "little", signed=True)


def _npz() -> dict[str, Any]:
    """A file of four samples, whose classes have names."""
    x, y, file = np.arange(16, dtype=np.uint8).reshape(4, 2, 2), np.array([0, 1, 1, 0]), io.BytesIO()
    np.savez(file, x=x, y=y, class_names=np.array(["no", "ja ✓"]))
    return {"file": file.getvalue(), "x": x.ravel().tolist(), "labels": ["no", "ja ✓", "ja ✓", "no"]}
