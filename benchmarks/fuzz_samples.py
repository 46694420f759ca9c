"""Targets of fuzz.py that read samples: pictures, sounds, arrays, tables, texts and databases.

Each reader is called without the guard that turns whatever it raises into a refusal. Checksums of changed PNG
and zip files are made right again, so that changes reach what lies behind them.
"""

from __future__ import annotations

import io
import random
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.fuzz_target import InFile, Target, mutated
from device_runtime.models.bundles.inputs import InputSpec, WindowInput
from device_runtime.models.bundles.targets import CROSS_ENTROPY
from device_runtime.models.data import SampleSource, single, table
from device_runtime.models.data.arrays import NPZ
from device_runtime.models.data.database import DATABASE
from device_runtime.models.data.labels import LabelMap
from device_runtime.models.data.local_samples import for_task
from device_runtime.models.data.table import TABLE
from device_runtime.models.data.units import Refused, SampleFormat, Unit, WantedSamples, file_stamp

PICTURE = InputSpec((3, 8, 8), 1 / 255)
ROW = InputSpec((4,))
WINDOWS = InputSpec((2, 4), window=WindowInput(2, ("x", "y")))
SOUND = InputSpec((1, 7, 40), 1 / 255)
LABELS = LabelMap(("a", "b"))
PNG = b"\x89PNG\r\n\x1a\n"
DRAWN = np.random.default_rng(0).integers(0, 256, (9, 13, 3)).astype(np.uint8)

PILLOWS = ("GIF", "WEBP", "TIFF")


def picture(form: str, mode: str = "RGB", **settings: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(DRAWN).convert(mode).save(file, form, **settings)
    return file.getvalue()


def decoded(ending: str, spec: InputSpec) -> Callable[[bytes], object]:
    """Decodes a file with this ending for the input."""

    def decode(data: bytes) -> object:
        kind = single.content_of(data) if ending in single.PICTURES else ""
        used = kind if kind in single.DECODERS and kind in single.PICTURES else ending
        return single.DECODERS[used](data).raw(spec)

    return decode


def in_file(ending: str, sample_format: SampleFormat, spec: InputSpec, query: str = "") -> InFile:
    """Reads a file of many samples by its format."""

    def read(path: Path) -> object:
        source = for_task(SampleSource(path, query), LABELS, CROSS_ENTROPY)
        unit = Unit(path.name, path, file_stamp(path), sample_format)
        if sample_format is TABLE:
            layout = table.layout(path, source)
            if layout.file is not None:
                return list(table.listed(path, layout))
        return sum(1 for _ in sample_format.read(unit, WantedSamples(spec, source, 64 << 20)))

    return InFile(f"samples{ending}", read)


def chunks_mutated(draw: random.Random, sound: tuple[bytes, ...]) -> bytes:
    """Changes the chunks of a PNG, or the lines inside, and makes checksums right again."""
    if draw.random() < 0.3:
        return mutated(draw, sound)
    data = draw.choice(sound)
    place, png = len(PNG), PNG
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        place += 12 + length
        if draw.random() < 0.4:
            if kind == b"IDAT":
                body = zlib.compress(mutated(draw, (zlib.decompress(body),)), 1)
            elif kind == b"IHDR":
                header = bytearray(body)
                header[draw.choice((3, 7, 8, 9, 10, 11, 12))] = draw.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
                body = bytes(header)
            else:
                body = mutated(draw, (body or b"\0",))
        png += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return png


def members_mutated(draw: random.Random, sound: tuple[bytes, ...]) -> bytes:
    """Changes the members of a .npz, which is zipped again."""
    if draw.random() < 0.3:
        return mutated(draw, sound)
    with zipfile.ZipFile(io.BytesIO(draw.choice(sound))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            other = draw.choice(("x", "y.npy", "x.npy", "../x.npy", "x.npy/", "class_names.npy", "y"))
            archive.writestr(
                other if draw.random() < 0.1 else name,
                mutated(draw, (content,)) if draw.random() < 0.6 else content,
            )
    return file.getvalue()


CELLS = (
    b"", b"nan", b"inf", b"-1", b"1e999", b"0x1", b"1_0", "٣".encode(), b'"', b'"a,b"', b"a\x00b", b"\xff",
    b"1" * 400, b"a", b"1.0", b" 1 ", b"../x.png", b"x.png", b"label", b"=1+1", b"True", "é".encode(),
)  # fmt: skip


def cells_mutated(draw: random.Random, sound: tuple[bytes, ...]) -> bytes:
    """Puts other cells, separators and line ends into a table."""
    if draw.random() < 0.3:
        return mutated(draw, sound)
    rows = [row.split(b",") for row in draw.choice(sound).split(b"\n")]
    for _ in range(draw.randint(1, 5)):
        row = draw.choice(rows)
        row[draw.randrange(len(row))] = draw.choice(CELLS)
        if draw.random() < 0.2:
            row.append(draw.choice(CELLS))
        if draw.random() < 0.1:
            rows.insert(draw.randrange(len(rows)), list(draw.choice(rows)))
    mark, end = draw.choice((b",", b",", b";", b"\t", b"|")), draw.choice((b"\n", b"\r\n", b"\r"))
    head = b"\xef\xbb\xbf" if draw.random() < 0.1 else b""
    content = head + end.join(mark.join(row) for row in rows)
    return content.decode("latin-1").encode("utf-16") if draw.random() < 0.03 else content


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npy(values: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values))
    return file.getvalue()


def wav(bits: int, kind: int, channels: int = 1, rate: int = 16_000) -> bytes:
    wave = np.sin(np.arange(1500 * channels) / 9)
    body = (
        wave.astype(f"<f{bits // 8}").tobytes()
        if kind == 3
        else bytes(range(250)) * 6 * channels * (bits // 8)
    )
    wide = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * wide, wide, bits)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(body))
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + (b"data" + struct.pack("<I", len(body)) + body)
    )


def sqlite() -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        opened = sqlite3.connect(file.name)
        opened.execute("CREATE TABLE seen (p REAL, q REAL, r REAL, s REAL, label TEXT)")
        opened.executemany(
            "INSERT INTO seen VALUES (?, ?, ?, ?, ?)", [(1, 2.5, 3, 4, "a"), (5, 6, 7, 8, "b")] * 4
        )
        opened.commit()
        opened.close()
        return Path(file.name).read_bytes()


ROWS = b"p,q,r,s,label\n1,2,3,4,a\n5,6,7,8.5,b\n9,10,11,12,a\n"
STEPS = b"t,x,y,label\n" + b"".join(b"%d,%d.5,-%d,a\n" % (i, i, i) for i in range(9)) + b"9,1,1,b\n"
FILES = b"file,label\nx.png,a\ny.jpg,b\n"


def parquet_target(refused: tuple[type[Exception], ...]) -> list[Target]:
    """The reader of Parquet where its library is installed; each file is tried in a process of its own."""
    try:
        from arro3.core import Array, DataType, Table
        from arro3.io import write_parquet
    except ImportError:
        return []
    numbers = {name: Array([1.0, 2.0], DataType.float64()) for name in "pqrs"}
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        write_parquet(Table.from_pydict({**numbers, "label": Array(["a", "b"], DataType.utf8())}), file.name)
        sound = (Path(file.name).read_bytes(),)
    return [Target("parquet", in_file(".parquet", TABLE, ROW), refused, sound, 0.01)]


def sample_targets() -> list[Target]:
    refused = (Refused,)
    exif = Image.Exif()
    exif[0x0112] = 6
    jpegs = (
        picture("JPEG"),
        picture("JPEG", progressive=True),
        picture("JPEG", "L"),
        picture("JPEG", "CMYK"),
        picture("JPEG", exif=exif.tobytes()),
    )
    pngs = tuple(picture("PNG", mode) for mode in ("RGB", "RGBA", "P", "1", "LA"))
    bitmaps = (picture("BMP"), picture("BMP", "P"), picture("PPM"), picture("PPM", "L"))
    sounds = (wav(16, 1), wav(8, 1, 2), wav(24, 1), wav(32, 3, 2, 44_100), wav(64, 3))
    planes = DRAWN.transpose(2, 0, 1)[:, :8, :8]
    arrays = (
        npz(x=np.stack([planes] * 4), y=np.arange(4) % 2),
        npz(x=np.zeros((3, 3, 8, 8)), y=np.array(["a", "b", "a"])),
        npz(x=np.zeros((2, 3, 8, 8)), y=np.array([0, 1]), class_names=np.array(["a", "b"])),
    )
    rows = (ROWS, ROWS.replace(b",", b";"), FILES, ROWS.split(b"\n", 1)[1])
    tabbed = tuple(row.replace(b",", b"\t") for row in rows)
    steps = (STEPS, STEPS.replace(b"t,x", b"0,x"))
    texts = ("a text, é".encode(), b"\xef\xbb\xbfmarked")
    query = "SELECT * FROM seen"
    return [
        Target("jpeg", decoded(".jpg", PICTURE), refused, jpegs, 1.5),
        Target("png", decoded(".png", PICTURE), refused, pngs, 1.0, chunks_mutated),
        Target("gif webp tiff", decoded(".gif", PICTURE), refused, tuple(map(picture, PILLOWS)), 0.6),
        Target("bmp ppm", decoded(".bmp", PICTURE), refused, bitmaps),
        Target("wav", decoded(".wav", SOUND), refused, sounds, 0.6),
        Target("txt", single.DECODERS[".txt"], refused, texts, 0.3),
        Target("npy", decoded(".npy", PICTURE), refused, (npy(planes), npy(np.zeros((2, 3, 8, 8)))), 0.6),
        Target("npz", in_file(".npz", NPZ, PICTURE), refused, arrays, 0.4, members_mutated),
        Target("csv", in_file(".csv", TABLE, ROW), refused, rows, 0.6, cells_mutated),
        Target("tsv", in_file(".tsv", TABLE, ROW), refused, tabbed, 0.4, cells_mutated),
        Target("recording", in_file(".csv", TABLE, WINDOWS), refused, steps, 0.4, cells_mutated),
        *parquet_target(refused),
        Target("sqlite", in_file(".db", DATABASE, ROW, query), refused, (sqlite(),), 0.3),
    ]
