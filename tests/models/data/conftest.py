import struct
import zlib

import msgspec
import numpy as np
import pytest


def _chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(pixels, filters=None, interlace=0, data=None):
    """pixels (h, w) or (h, w, c) of uint8 or uint16; `filters`: that of each line, 0 where not given."""
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, None]
    height, width, channels = pixels.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    lines = pixels.astype(pixels.dtype.newbyteorder(">")).tobytes()
    wide = len(lines) // height
    size = channels * pixels.itemsize
    body, before = b"", bytes(wide)
    for row in range(height):
        line = lines[row * wide : (row + 1) * wide]
        kind = filters[row] if filters else 0
        body += bytes([kind]) + _filtered(line, before, size, kind)
        before = line
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, colour, 0, 0, interlace)
    body = zlib.compress(body) if data is None else data
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _filtered(line, before, size, kind):
    """As the standard writes it, a byte at a time."""
    line_bytes = bytearray()
    for i, value in enumerate(line):
        a = line[i - size] if i >= size else 0
        b = before[i]
        c = before[i - size] if i >= size else 0
        p = a + b - c
        paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        line_bytes.append((value - (0, a, b, (a + b) // 2, paeth)[kind]) % 256)
    return bytes(line_bytes)


def _wav(samples, rate=16000, bits=16, kind=1, channels=1):
    """samples: the bytes behind the header."""
    head = struct.pack(
        "<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits
    )
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture(scope="session")
def png_bytes():
    return _png


@pytest.fixture(scope="session")
def png_chunk():
    return _chunk


@pytest.fixture(scope="session")
def wav_bytes():
    return _wav


@pytest.fixture
def digit_png():
    """A picture of the shape of a digit, one grey value all over."""

    def picture(value=128, size=8):
        return _png(np.full((size, size), value, np.uint8))

    return picture


@pytest.fixture
def speech(bundle):
    """The manifest of a task of two words."""
    spec = msgspec.structs.replace(bundle.manifest.input, shape=(1, 61, 40), scale=1 / 255)
    return msgspec.structs.replace(bundle.manifest, input=spec, labels=("yes", "no"))
