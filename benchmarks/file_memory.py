"""Peak memory of reading samples, in multiples of the file's size, on a device and in a simulation.

python benchmarks/file_memory.py [--mb 80] [CASE ..]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tabulate import tabulate

from device_runtime.machine_readings import resident_bytes
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.inputs import File as FileEntry
from device_runtime.models.bundles.inputs import InputSpec, TextInput, Texts
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.data import LocalSamples, SampleSource, Selection
from device_runtime.models.text.file import BPE, SYMBOLS, ByteLevel, TokenizerFile
from device_runtime.simulation.data import text
from device_runtime.simulation.data.loading import load
from device_runtime.simulation.data.spec import DataSpec

TOKENS = 32
BYTES = TextInput("byte-pairs/1", FileEntry("tokenizer.json", "", 0), (), (), 0)
PIXELS = InputSpec((3, 32, 32), 1 / 255)
EVERY_SYMBOL = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def _columns(count: int, cell: Callable[[np.random.Generator], str]) -> Callable[[Path, int], InputSpec]:
    def write(path: Path, size: int) -> InputSpec:
        rng = np.random.default_rng(0)
        lines = [f"{','.join(cell(rng) for _ in range(count))},{k % 10}\n" for k in range(1000)]
        block = "".join(lines)
        path.write_text(block * max(1, size // len(block)))
        return InputSpec((count,))

    return write


def _wide_cell(path: Path, _size: int) -> InputSpec:
    rows = ["a,b,c,label\n", *(f"{k % 97},{k % 89},{k % 83},{k % 10}\n" for k in range(270_000))]
    path.write_text("".join(rows) + f"1,2,{'9' * 1500},3\n")
    return InputSpec((3,))


def _sentences(characters: int) -> Callable[[Path, int], InputSpec]:
    def write(path: Path, size: int) -> InputSpec:
        with path.open("w") as file:
            file.write("text\tlabel\n")
            for k in range(size // (characters + 3)):
                file.write(f"{(f'{k} ' * characters)[:characters]}\t{k % 10}\n")
        return InputSpec((TOKENS,), dtype="int64", vocabulary=30_000, text=BYTES)

    return write


def _arrays(path: Path, size: int) -> InputSpec:
    count = size // PIXELS_BYTES
    x = np.random.default_rng(0).integers(0, 256, (count, *PIXELS.shape), np.uint8)
    np.savez(path, x=x, y=np.arange(count) % 10)
    return PIXELS


PIXELS_BYTES = 3 * 32 * 32


def _pictures(path: Path, size: int) -> InputSpec:
    rng = np.random.default_rng(0)
    for k in range(size // PIXELS_BYTES):
        (folder := path / str(k % 10)).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
        header = b"P6 32 32 255\n"
        (folder / f"{k}.ppm").write_bytes(header + pixels.tobytes())
    return PIXELS


def _with_clients(path: Path, size: int) -> InputSpec:
    block = "".join(f"{k % 7},{k % 5},{k % 3},{k % 2},{k % 9}\n" for k in range(1000))
    path.write_text("a,b,c,label,client\n" + block * (size // len(block)))
    return InputSpec((3,))


def _targets(path: Path, size: int) -> InputSpec:
    block = "".join(f"{k % 7},{k % 5},{k % 3},{k % 9}\n" for k in range(1000))
    path.write_text("a,b,c,price\n" + block * (size // len(block)))
    return InputSpec((3,))


PRICE = TargetSpec("mse", "values", ("price",))

CASES: dict[str, tuple[str, str, Callable[[Path, int], InputSpec]]] = {
    "64 columns": ("table", ".csv", _columns(64, lambda rng: f"{rng.normal():.4f}")),
    "4 columns of one digit": ("table", ".csv", _columns(4, lambda rng: str(rng.integers(10)))),
    "1 column of one digit": ("table", ".csv", _columns(1, lambda rng: str(rng.integers(10)))),
    "3 columns of one digit": ("table", ".csv", _columns(3, lambda rng: str(rng.integers(10)))),
    "3 columns and a client": ("table", ".csv", _with_clients),
    "3 columns and a target of a bundle": ("table", ".csv", _targets),
    "a cell of 1,500 characters": ("table", ".csv", _wide_cell),
    "texts of 64 characters": ("text", ".tsv", _sentences(64)),
    "texts of 20 characters": ("text", ".tsv", _sentences(20)),
    "npz of pictures": ("npz", ".npz", _arrays),
    "folder of pictures": ("images", "", _pictures),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=80, help="size of each file (default: 80)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_grown(*json.loads(options.one))))
        return
    rows = list(_rows(options.cases or list(CASES), int(options.mb * 1e6)))
    print(tabulate(rows, headers=("file", "MB", "device, times", "simulation, times"), floatfmt=".2f"))


def _rows(cases: list[str], size: int) -> Iterator[tuple[object, ...]]:
    for case in cases:
        _, ending, write = CASES[case]
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / f"samples{ending}"
            write(path, size)
            stored = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*.*")))
            grown = []
            for where in ("device", "simulation"):
                job = json.dumps([case, where, str(path)])
                command = [sys.executable, __file__, "--one", job]
                environment = {"XDG_CACHE_HOME": home, "PATH": "/usr/bin:/bin"}
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    raise SystemExit(done.stderr)
                grown.append(json.loads(done.stdout.splitlines()[-1]) / stored)
            yield (case, stored / 1e6, *grown)


def _grown(case: str, where: str, path: str) -> int:
    """Bytes by which the peak of this process grows as it reads a file."""
    source, _, write = CASES[case]
    with tempfile.TemporaryDirectory() as home:  # a small file, for imports and buffers
        small = Path(home) / Path(path).name
        spec = write(small, 200_000)
        manifest = replace(Bundle.open(find_bundle("digits-wrn-10-1")).manifest, input=spec)
        if "target" in case:
            manifest = replace(manifest, loss=PRICE, labels=PRICE.columns)
        _read(where, source, small, manifest)
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    samples = _read(where, source, Path(path), manifest)
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert peak and samples is not None
    return 1024 * int(peak[1]) - before


def _read(where: str, source: str, path: Path, manifest: Manifest) -> object:
    texts = None
    if source == "text":
        tokenizer = TokenizerFile(BPE(EVERY_SYMBOL, []), None, ByteLevel()).tokenizer()
        texts = Texts(manifest.input.text, tokenizer, TOKENS)
    if where == "device":
        samples = LocalSamples(SampleSource(path), manifest, Selection(held_out=None), texts)
        samples.refresh()
        if not len(samples.training):
            raise SystemExit(f"no samples: {[*map(str, samples.skipped)]}")
        return samples
    spec = DataSpec(source=source, path=str(path))
    if texts is not None:
        return text.read_texts(spec, 0, texts, manifest)
    return load(spec, 0, _Named(manifest))


class _Named:
    """Stands for a bundle where only its manifest is read."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.texts = manifest, None


if __name__ == "__main__":
    main()
