"""Exports the bundles and enlarges the images that tables need, once, and caches them."""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from device_runtime.cli.research import export as command
from device_runtime.models.bundles.bundle import MANIFEST, Bundle
from device_runtime.models.bundles.manifest import FORMAT, encode
from device_runtime.models.errors import ModelError
from device_runtime.models.export.network_factory import build
from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.data import files as cache
from device_runtime.simulation.data.files import with_progress
from device_runtime.simulation.errors import DataSetError

from .places import BundleEntry, DataEntry, DataFolder, Form, SharedTables


def folder() -> Path:
    """The folder of exported bundles; anything in it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("device-runtime")) / "bundles"


@dataclass(frozen=True)
class BundleSamples:
    """The samples that a bundle is made for: a data set, in the form that is there."""

    entry: DataEntry
    form: Form | None

    @property
    def words(self) -> str:
        """The words of `device-runtime export` that describe the samples."""
        return self.entry.export.format(pixels=self.form.pixels if self.form else 0)


def bundle(
    name: str, shared: SharedTables, samples: BundleSamples, where: DataFolder, learnt: Path | None = None
) -> str:
    """The path of the bundle of that name for such samples; for a shipped bundle, its name.

    Exports the bundle if it is missing. "NAME#1" is a copy of NAME that is called NAME-1, for a family that
    has several models of one size. `learnt` is a file of weights, for a bundle that has none in the data
    folder. Raises ModelError, with what to install where torch is missing; DataSetError for missing weights.
    """
    original, _, number = name.partition("#")
    if number:
        return _renamed(Path(bundle(original, shared, samples, where, learnt)), f"{original}-{number}")
    entry = shared.bundles.get(name)
    if entry is None:
        return name
    words = _words(name, entry, samples)
    files = {
        "--weights": where.file(entry.weights) if entry.weights else learnt,
        "--tokenizer": where.file(entry.tokenizer) if entry.tokenizer else None,
    }
    options = {option: file for option, file in files.items() if file is not None}
    path = folder() / f"{name}-{_key(words, options.values())}"
    if not _whole(path):
        _export([*words, *(word for option, file in options.items() for word in (option, str(file)))], path)
    return str(path)


def identity(name: str, shared: SharedTables, samples: BundleSamples) -> str:
    """The bundle's name and a hash of how it is made, which no file, path or version of a machine enters.

    For a shipped bundle its name. Pretrained weights are described by their training: another machine gives
    weights that differ in their last bits.
    """
    original, _, _ = name.partition("#")
    entry = shared.bundles.get(original)
    if entry is None:
        return name
    learnt: tuple[bytes, str] | None = None
    if entry.pretrain is not None:
        learnt = (
            msgspec.json.encode(entry.pretrain, order="sorted"),
            shared.bundles[entry.pretrain.bundle].export,
        )
    how = repr((_words(original, entry, samples), entry.weights, entry.tokenizer, learnt))
    return f"{name.replace('#', '-')}-{hashlib.sha256(how.encode()).hexdigest()[:10]}"


def _renamed(path: Path, name: str) -> str:
    """The path of a copy of the bundle under another name."""
    copy = path.with_name(f"{name}-{path.name.rpartition('-')[2]}")
    if not _whole(copy):
        making = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=path.parent))
        shutil.copytree(path, making, dirs_exist_ok=True)
        manifest = msgspec.structs.replace(Bundle.open(path).manifest, name=name)
        (making / MANIFEST).write_bytes(encode(manifest))
        shutil.rmtree(copy, ignore_errors=True)
        making.replace(copy)
    return str(copy)


def _words(name: str, entry: BundleEntry, samples: BundleSamples) -> list[str]:
    """The words of `device-runtime export`, without those for files and the output."""
    network = entry.export.format(channels=samples.entry.channels, classes=samples.entry.classes)
    return [*shlex.split(f"{network} {samples.words} {entry.input}"), "--name", name]


def _key(words: list[str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256(repr((words, FORMAT, metadata.version("device-runtime"))).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


def _whole(path: Path) -> bool:
    try:
        Bundle.open(path)
    except (ModelError, OSError):
        return False
    return True


def _export(words: list[str], path: Path) -> None:
    """Exports a bundle so that its folder appears whole or not at all."""
    parser = argparse.ArgumentParser(prog="export")
    command.add_arguments(parser)
    path.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
    try:
        options = parser.parse_args([*words, "--out", str(making)])
        texts, settings = command.texts_and_settings(options)
        module = build(options, settings)
        from device_runtime.models.export.export import export

        print(f"exporting bundle {path.name}", file=sys.stderr, flush=True)
        export(module, command.spec(options, texts, settings), making)
        shutil.rmtree(path, ignore_errors=True)
        making.replace(path)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def enlarged(spec: DataSpec, pixels: int, channels: int) -> Path:
    """A folder of .npy files with the images (or spectra) resized to uint8 (n, channels, pixels, pixels).

    Resizing is bilinear; for networks that take larger inputs. Where there is one channel, all get its
    values. It is done once and then kept in the user's cache. Raises DataSetError.
    """
    path = Path(spec.path).expanduser()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    key = cache.content_key(files, "enlarged", spec.source, spec.classes, pixels, channels)
    cache.cached(key, lambda: _photo_tables(spec, pixels, channels))
    folder = cache.folder() / key
    if not folder.is_dir():
        raise DataSetError(f"enlarged images cannot be kept in {cache.folder()}")
    return folder


def _photo_tables(spec: DataSpec, pixels: int, channels: int) -> dict[str, NDArray[Any]]:
    data = load(spec, seed=0)
    whose = {} if data.groups is None else {"groups": data.groups}
    return {
        **whose,
        "x_train": _images(data.train_x, (channels, pixels, pixels), "training images"),
        "y_train": data.train_y,
        "x_test": _images(data.test_x, (channels, pixels, pixels), "test images"),
        "y_test": data.test_y,
        "class_names": np.array(data.labels),
    }


def _images(x: NDArray[Any], shape: tuple[int, int, int], what: str) -> NDArray[np.uint8]:
    from PIL import Image

    sized = np.empty((len(x), *shape), np.uint8)
    for number in with_progress(range(len(x)), f"{what} to {shape[1]} pixels"):
        planes = [Image.fromarray(plane) for plane in np.asarray(x[number])]
        resized = (plane.resize(shape[1:], Image.Resampling.BILINEAR) for plane in planes)
        sized[number] = np.stack([np.asarray(plane) for plane in resized])
    return sized
