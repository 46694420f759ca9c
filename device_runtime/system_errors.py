"""Says in one sentence what a machine lacks when a program fails for want of it, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

_MEMORY = "there is not enough memory: end other programs, or raise its limit (ulimit -v, MemoryMax)"
_THREADS = (
    "no more threads or processes can be started: end other programs, or raise the limit "
    "(ulimit -u, TasksMax, pids.max)"
)
_FILES = "too many files are open: raise the limit (ulimit -n, LimitNOFILE)"
_TEMPORARY = "no folder for temporary files can be written to: set TMPDIR to one that can"
NO_HOME = "there is no home folder here: set HOME, or give full paths"
_FOLDER = "the folder that this was started in is gone: start it in another one"

DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "name a folder on a disk that is not read-only",
    errno.EIO: "the disk fails: replace it",
}
"""Errors of a disk -> what to do about each."""
_LACKS = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _THREADS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}
_NETWORK = (
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL),
    *(errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE),
    *(errno.ETIMEDOUT, errno.ENOBUFS, errno.EACCES, errno.EPERM, errno.ENOSYS),
)
_TEXTS = (
    (r"can't start new thread|pthread_create|resource temporarily unavailable", _THREADS),
    (r"cannot allocate memory|failed to map segment|std::bad_alloc|unable to allocate", _MEMORY),
    (r"too many open files", _FILES),
    (r"no usable temporary directory", _TEMPORARY),
    (r"could not determine home directory", NO_HOME),
    (r"no space left on device|database or disk is full", "the disk is full: free some space"),
)
"""What libraries say -> the sentence. They raise errors of all types for these."""


def shortage(error: BaseException) -> str | None:
    """What the machine lacked, as a sentence; None for an error of another sort.

    An error that was raised while the machine's own was handled is taken for that one.
    """
    first, *before = _chain(error)
    return _named_file(first) or next(filter(None, map(_of_one, (first, *before))), None)


def is_of_disk(error: BaseException) -> bool:
    """Whether it was raised because a disk is full, read-only or fails."""
    return any(map(_is_disk_error, _chain(error)))


def _is_disk_error(error: BaseException) -> bool:
    if type(error).__module__ == "sqlite3":
        return re.search("disk is full|disk i/o error|readonly database", str(error)) is not None
    return isinstance(error, OSError) and error.errno in DISK


def disk_reason(error: OSError) -> str:
    """The error without its number, and what to do: "no space left on device: free some space"."""
    reason = (error.strerror or str(error)).lower()
    advice = DISK.get(error.errno or 0, "")
    return f"{reason}: {advice}" if advice else reason


def _of_one(error: BaseException) -> str | None:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in DISK:
        where = "" if error.filename is None else f"{error.filename}: "
        return where + disk_reason(error)
    of_sqlite = type(error).__module__ == "sqlite3"
    if of_sqlite or isinstance(error, (OSError, RuntimeError, ImportError)):
        for pattern, sentence in _TEXTS:
            if re.search(pattern, str(error), re.IGNORECASE):
                return sentence
    if not isinstance(error, OSError):
        return None
    if error.errno in _LACKS:
        return _LACKS[error.errno]
    if error.errno == errno.ENOENT and _is_nowhere():
        return _FOLDER
    return disk_reason(error) if error.errno in _NETWORK else None


def _named_file(error: BaseException) -> str | None:
    """A file or folder that was named, and what is wrong with it."""
    if not isinstance(error, OSError) or error.filename is None or error.errno in _LACKS:
        return None
    if str(error.filename) == "" or (error.errno == errno.ENOENT and _is_nowhere()):
        return _FOLDER
    return f"{error.filename}: {disk_reason(error)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    ids: set[int] = set()
    while error is not None and id(error) not in ids:
        ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_nowhere() -> bool:
    """Whether the current folder was removed."""
    try:
        Path.cwd()
    except OSError:
        return True
    return False
