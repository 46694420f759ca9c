"""Deflate (RFC 1951, in zlib's frame), from the standard library.

Zstandard packs these updates no better (docs/wire.md has the figures), and its library is 24 MB.
"""

from __future__ import annotations

import zlib

from device_runtime.models.errors import TensorError

LEVEL = 6


class Deflate:
    """Packs bytes. Versions of zlib may give other bytes for the same; all of them unpack to the same."""

    name = "deflate"

    def pack(self, data: bytes) -> bytes:
        return zlib.compress(data, LEVEL)

    def unpack(self, data: bytes, most: int) -> bytes:
        """Never more than `most` + 1 bytes are made, whatever `data` says."""
        stream = zlib.decompressobj()
        try:
            unpacked = stream.decompress(data, most + 1)
        except zlib.error as error:
            raise TensorError(f"{len(data)} bytes are not deflated: {error}") from None
        if len(unpacked) > most:
            raise TensorError(f"{len(data)} deflated bytes are more than {most}, the most that is expected")
        if not stream.eof or stream.unused_data:
            what = "are followed by others" if stream.eof else "end too early"
            raise TensorError(f"{len(data)} deflated bytes {what}")
        return unpacked

    def most(self, size: int) -> int:
        """zlib's compressBound, which holds for every level."""
        return size + (size >> 12) + (size >> 14) + (size >> 25) + 13
