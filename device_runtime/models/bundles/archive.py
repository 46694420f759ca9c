"""Packs files into reproducible zips, and unpacks zips that may be hostile."""

import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from device_runtime.models.errors import BundleError, one_line

MAX_FILES = 100
MAX_BYTES = 1 << 30  # of all files together, uncompressed

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say

T = TypeVar("T")


def is_plain(name: str) -> bool:
    """Whether `name` is a file name without folders, safe on every system."""
    return _PLAIN.fullmatch(name) is not None


class FolderFiles(Mapping[str, bytes]):
    """The plain files of a folder, by name; each is read when it is looked up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None
        except OSError as error:
            raise BundleError(f"{self.folder / name} cannot be read: {one_line(error)}") from error

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and is_plain(name) and (self.folder / name).is_file()

    def __iter__(self) -> Iterator[str]:
        return (p.name for p in sorted(self.folder.iterdir()) if p.name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """A zip of the files; equal files give equal bytes.

    Names are sorted, dates fixed, and nothing is compressed, since zlib versions compress differently.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return out.getvalue()


def read_zip(
    data: bytes, where: str = "archive", limit: int = MAX_BYTES, stored: bool = False
) -> dict[str, bytes]:
    """The files of a zip by name; `stored`: none may be compressed.

    Raises BundleError for bytes that are no zip, for names that are not plain or occur twice, for more than
    MAX_FILES files, and as soon as more than `limit` bytes are unpacked, whatever the zip declares.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_entries(archive, where, limit, stored)
    except BundleError:
        raise
    except Exception as error:  # zipfile raises zlib.error, EOFError, NotImplementedError and more
        raise BundleError(f"{where} is not a sound zip: {one_line(error)}") from error


def _read_entries(archive: zipfile.ZipFile, where: str, limit: int, stored: bool) -> dict[str, bytes]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise BundleError(f"{where} has {len(entries)} files, at most {MAX_FILES} are read")
    files: dict[str, bytes] = {}
    left = limit
    for entry in entries:
        if not is_plain(entry.filename) or entry.filename in files:
            raise BundleError(f"{where} has an entry {entry.filename[:80]!r}, expected plain names once")
        if stored and entry.compress_type != zipfile.ZIP_STORED:
            raise BundleError(f"{where} has {entry.filename!r} compressed, expected as it is")
        with archive.open(entry) as stream:
            content = stream.read(left + 1)
        left -= len(content)
        if left < 0:
            raise BundleError(f"{where} unpacks to more than {limit} bytes, refused")
        files[entry.filename] = content
    return files


def unpack_files(data: bytes, folder: Path, verify: Callable[[Path], T]) -> T:
    """Writes the files of a zip into `folder` and returns `verify(folder)`.

    The files are written and verified in a temporary folder next to it, which is then renamed in one step.
    Raises BundleError if `folder` is not empty, or for a zip with compressed files, which could unpack to far
    more than was fetched; raises whatever `verify` raises. After an error nothing is left behind.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} exists already and is not empty")
    files = read_zip(data, stored=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, content in files.items():
            (beside / name).write_bytes(content)
        verify(beside)
        with suppress(OSError):  # not every file system has permissions
            beside.chmod(0o755)
        beside.replace(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return verify(folder)
