"""Reads files of one sample each (a .npy may have many); a new format is one line in `DECODERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.text.texts import Texts

from . import arrays, cells, picture, png, sound
from .sample_source import SampleSource
from .units import RawSamples, Refused, SampleFormat, Unit, WantedSamples, one_stored, read_file


class Item(Protocol):
    """The content of a file. form: its format, for reports."""

    @property
    def form(self) -> str: ...

    def raw(self, given: InputSpec) -> NDArray[Any]:
        """Samples (n, *shape), before `InputSpec.prepare`. Raises Refused if it does not fit the input."""


BY_PILLOW = (".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".pgm", ".ppm")
DECODERS: Mapping[str, Callable[[bytes], Item]] = {
    ".wav": sound.decode,
    ".npy": arrays.decode,
    ".png": png.decode,
    ".txt": cells.decode,
    **dict.fromkeys(BY_PILLOW, picture.decode),
}
BEGINNINGS: Mapping[bytes, str] = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"RIFF": ".wav",
    b"\x93NUMPY": ".npy",
    b"BM": ".bmp",
    b"P5": ".pgm",
    b"P6": ".ppm",
}
"""The first bytes of files, by which samples without a file name are recognised."""


def decode_file(data: bytes, name: str) -> Item:
    """Decodes a file by the ending of its name. Raises Refused."""
    ending = ending_of(name)
    if ending not in DECODERS:
        raise Refused(f"unsupported kind of file ({ending or 'no ending'})")
    if not data:
        raise Refused("an empty file")
    return DECODERS[ending](data)


def decode_unnamed(data: bytes) -> Item | None:
    """Decodes bytes by their beginning; None if it is no known one. Raises Refused."""
    for beginning, ending in BEGINNINGS.items():
        if data.startswith(beginning):
            return DECODERS[ending](data)
    return None


def raw(held: Item, given: InputSpec, texts: Texts | None) -> NDArray[Any]:
    """Samples (n, *shape), before `InputSpec.prepare`; a text is tokenized by `texts`. Raises Refused."""
    return held.ids(texts) if isinstance(held, cells.TextCell) and texts else held.raw(given)


def ending_of(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot > max(name.rfind("/"), 0) else ""


def _read(unit: Unit, wanted: WantedSamples) -> Iterator[RawSamples]:
    held = decode_file(read_file(unit.path), unit.path.name)
    yield RawSamples(raw(held, wanted.input, wanted.texts), None, held.form)


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    data = read_file(unit.path)
    yield one_stored(data)
    if ending_of(unit.path.name) == ".npy":  # may hold one sample or many; only a task could tell
        yield np.atleast_2d(arrays.decode(data).values)


SINGLE = SampleFormat(_read, _stored)
