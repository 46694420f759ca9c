"""Reads files of one sample each (a .npy may have many); a new format is one line in `DECODERS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from . import arrays, cells, pictures, png, sound
from .sample_source import SampleSource
from .units import RawSamples, Refused, SampleFormat, TokenIds, Unit, WantedSamples, one_stored, read_file


class Item(Protocol):
    """The content of a file. form: its format, for reports."""

    @property
    def form(self) -> str: ...

    def raw(self, spec: InputSpec) -> NDArray[Any]:
        """Samples (n, *shape), before `InputSpec.prepare`. Raises Refused if it does not fit the input."""


JPEGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo")
BY_PILLOW = (".gif", ".webp", ".tif", ".tiff")
DECODERS: Mapping[str, Callable[[bytes], Item]] = {
    ".wav": sound.decode,
    ".npy": arrays.decode,
    ".png": png.decode,
    ".txt": cells.decode,
    ".bmp": png.decode_bmp,
    **dict.fromkeys((".pgm", ".ppm"), png.decode_pnm),
    **dict.fromkeys(JPEGS, pictures.decode_jpeg),
    **dict.fromkeys(BY_PILLOW, pictures.decode_by_pillow),
}
PICTURES = frozenset({".png", ".bmp", ".pgm", ".ppm", *JPEGS, *BY_PILLOW})
BEGINNINGS: Mapping[bytes, str] = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"RIFF....WAVE": ".wav",
    b"RIFF....WEBP": ".webp",
    b"\x93NUMPY": ".npy",
    b"BM": ".bmp",
    b"P5": ".pgm",
    b"P6": ".ppm",
    b"GIF8": ".gif",
    b"II\\*\0": ".tif",
    b"MM\0\\*": ".tif",
    b"....ftyp(?:hei|hev|mif1|msf1|avi)": ".heic",
}
"""The first bytes of files, as patterns, by which pictures and samples without a name are recognised."""
BEGINNING = re.compile(
    b"|".join(b"(?P<k%d>%s)" % (number, pattern) for number, pattern in enumerate(BEGINNINGS)), re.DOTALL
)

CONVERT = "save it as JPEG or PNG"
NO_TABLE = "tables of this kind are not read"
UNREAD: Mapping[str, str] = {
    **dict.fromkeys((".heic", ".heif", ".avif", ".hif"), f"HEIC and AVIF pictures are not read: {CONVERT}"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw"), f"raw photos are not read: {CONVERT}"),
    **dict.fromkeys((".jp2", ".jxl", ".svg", ".psd"), f"pictures of this kind are not read: {CONVERT}"),
    **dict.fromkeys((".mp3", ".m4a", ".aac", ".ogg", ".opus", ".flac"), "sound is read from WAV: convert it"),
    **dict.fromkeys(
        (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z"), "a packed file: unpack it"
    ),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "a spreadsheet: save it as .csv"),
    **dict.fromkeys((".json", ".jsonl", ".arff", ".feather", ".arrow"), f"{NO_TABLE}: save it as .csv"),
    **dict.fromkeys((".data", ".dat"), f"{NO_TABLE}: call it .csv if it is a table of text"),
    ".pq": f"{NO_TABLE}: call it .parquet",
    **dict.fromkeys(
        (".mat", ".h5", ".hdf5", ".pkl", ".pt", ".pth", ".tfrecord"), "arrays are read from .npz"
    ),
}
"""Files that are not read although they hold samples, and what to do."""


def not_read(ending: str) -> str:
    """Why files with this ending are not read, and what to do where that is known."""
    return UNREAD.get(ending) or f"unsupported kind of file ({ending or 'no ending'})"


def decode_file(data: bytes, name: str) -> Item:
    """Decodes a file by the ending of its name; a picture by its content, whatever its ending.

    Raises Refused.
    """
    ending = ending_of(name)
    if ending in UNREAD or ending not in DECODERS:
        raise Refused(not_read(ending))
    if not data:
        raise Refused("an empty file")
    if ending in PICTURES and (content := content_of(data)) in PICTURES | UNREAD.keys():
        ending = content
    return _decoded(data, ending)


def decode_unnamed(data: bytes) -> Item | None:
    """Decodes bytes by their beginning; None if it is no known one. Raises Refused."""
    ending = content_of(data)
    return _decoded(data, ending) if ending else None


def content_of(data: bytes) -> str:
    """The ending that a file with this content usually has; empty if it is not recognised."""
    match = BEGINNING.match(data)
    return list(BEGINNINGS.values())[int(str(match.lastgroup)[1:])] if match else ""


def _decoded(data: bytes, ending: str) -> Item:
    """Raises Refused, whatever a decoder raises."""
    if ending in UNREAD:
        raise Refused(UNREAD[ending])
    try:
        return DECODERS[ending](data)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # one damaged file must not end the reading of the others
        raise Refused("a damaged file", f"{type(error).__name__}: {error}"[:200]) from None


def raw(item: Item, spec: InputSpec, texts: TokenIds | None) -> NDArray[Any]:
    """Samples (n, *shape), before `InputSpec.prepare`; a text is tokenized by `texts`. Raises Refused."""
    return item.ids(texts) if isinstance(item, cells.TextCell) and texts else item.raw(spec)


def ending_of(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot > max(name.rfind("/"), 0) else ""


def _read(unit: Unit, request: WantedSamples) -> Iterator[RawSamples]:
    sample = decode_file(read_file(unit.path), unit.path.name)
    yield RawSamples(raw(sample, request.input, request.texts), None, sample.form)


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    data = read_file(unit.path)
    yield one_stored(data)
    if ending_of(unit.path.name) == ".npy":  # may hold one sample or many; only a task could tell
        yield np.atleast_2d(arrays.decode(data).values)


SINGLE = SampleFormat(_read, _stored)
