"""What the parts of `manifest.json` are made of, and the most that it may say."""

from typing import Annotated

import msgspec

# What a manifest may say at most: figures beyond these are damage or malice, and would end in overflows.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
LARGEST = 1 << 31
Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Shape = tuple[Size, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the manifest: immutable, and unknown fields are an error."""


class File(Record, frozen=True):
    """A file of the bundle."""

    file: str
    sha256: str
    bytes: Count
