"""What reading local data costs a device: seconds and memory of each kind, and of a folder that grows.

python benchmarks/local_data.py
"""

from __future__ import annotations

import io
import tempfile
import time
import wave
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from msgspec.structs import replace
from tabulate import tabulate

from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.data import LocalSamples, SampleSource, Selection, png, sound
from device_runtime.models.data.pictures import Picture

SPEECH, PHOTO, COLOURS = (
    InputSpec((1, 61, 40)),
    InputSpec((3, 128, 128), 1 / 255),
    InputSpec((3, 32, 32), 1 / 255),
)
REPEATS = 5


def main() -> None:
    rng = np.random.default_rng(0)
    photo = np.cumsum(rng.integers(0, 3, (1000, 1000, 3)), 1).astype(np.uint8)
    large = Picture(np.zeros((3000, 4000, 3), np.uint8))
    work: dict[str, Callable[[], object]] = {
        "PNG, 32x32 RGB": partial(png.decode, _png(photo[:32, :32])),
        "PNG, 1000x1000 RGB": partial(png.decode, _png(photo)),
        "12 million pixels to 128x128": partial(large.raw, PHOTO),
        "wav, 1 s at 16 kHz": partial(_features, _wav(16000)),
        "wav, 1 s at 44.1 kHz, stereo": partial(_features, _wav(44100, 2)),
    }
    rows = [(what, _ms(done)) for what, done in work.items()]
    print(tabulate(rows, headers=("one sample", "ms"), floatfmt=".1f"))
    print()
    print(
        tabulate(
            _growing(rng), headers=("folder of .npz", "s", "samples MB", "process grew by MB"), floatfmt=".2f"
        )
    )


def _growing(rng: np.random.Generator) -> list[tuple[str, float, float, float]]:
    """10,000 images of 3x32x32 in four files; then 1,000 more; then nothing new."""
    manifest: Manifest = replace(Bundle.open(find_bundle("digits-wrn-10-1")).manifest, input=COLOURS)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(4):
            _save(folder / f"{number}.npz", rng, 2500)
        before = psutil.Process().memory_info().rss
        samples = LocalSamples(SampleSource(folder), manifest, Selection(0.1))
        for what in ("10,000 images read", "1,000 more in a new file", "nothing new"):
            began = time.perf_counter()
            samples.refresh()
            seconds = time.perf_counter() - began
            grown = psutil.Process().memory_info().rss - before
            rows.append((what, seconds, samples.memory_bytes / 1e6, grown / 1e6))
            if what.startswith("10"):
                _save(folder / "new.npz", rng, 1000)
    return rows


def _save(path: Path, rng: np.random.Generator, count: int) -> None:
    x = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    np.savez(path, x=x, y=rng.integers(0, 10, count))


def _features(data: bytes) -> object:
    return sound.decode(data).raw(SPEECH)


def _ms(work: Callable[[], object]) -> float:
    """The least of a few repeats."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds)


def _png(pixels: np.ndarray) -> bytes:
    """With Paeth's filter on every line, the slowest to undo."""
    height, width, channels = pixels.shape
    lines = np.full((height, 1 + width * channels), 4, np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    chunks = (
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in parts
    )
    return png.SIGNATURE + b"".join(chunks)


def _wav(rate: int, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((channels, 2, rate, 0, "NONE", ""))
        written.writeframes(np.random.default_rng(0).bytes(2 * channels * rate))
    return file.getvalue()


if __name__ == "__main__":
    main()
