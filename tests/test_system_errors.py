"""What a machine lacks is said in one sentence with what to do, whichever library noticed it."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from device_runtime.aggregator.errors import ConfigError, RunFolderError, exit_code
from device_runtime.service_process import Exit
from device_runtime.system_errors import is_of_disk, shortage


def of(number, name=None):
    return OSError(number, os.strerror(number), name) if name else OSError(number, os.strerror(number))


LACKS = [
    (MemoryError(), "not enough memory"),
    (of(errno.ENOMEM), "not enough memory"),
    (ImportError("libx.so: failed to map segment from shared object"), "not enough memory"),
    (ImportError("libx.so: cannot open shared object file: Too many open files"), "ulimit -n"),
    (of(errno.EMFILE, "/proc/stat"), "ulimit -n"),
    (of(errno.ENFILE), "ulimit -n"),
    (RuntimeError("can't start new thread"), "ulimit -u"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
    (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "set TMPDIR"),
    (RuntimeError("Could not determine home directory."), "set HOME"),
    (of(errno.ENOSPC), "no space left on device: free some space"),
    (of(errno.EDQUOT, "/x/y"), "/x/y: disk quota exceeded: free some of the quota"),
    (of(errno.EFBIG, "/x/y"), "/x/y: file too large: raise the limit on the size of files"),
    (of(errno.EROFS, "/x/y"), "/x/y: read-only file system: name a folder"),
    (of(errno.EIO, "/x/y"), "/x/y: input/output error"),
    (of(errno.EACCES, "/x/y"), "/x/y: permission denied"),
    (of(errno.ENETUNREACH), "network is unreachable"),
    (of(errno.EAFNOSUPPORT), "address family not supported"),
    (sqlite3.OperationalError("database or disk is full"), "free some space"),
]


@pytest.mark.parametrize("error, words", LACKS, ids=lambda case: str(case)[:30])
def test_what_is_lacking_is_said_with_what_to_do(error, words):
    assert words in shortage(error)
    assert "\n" not in shortage(error)


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("HOME"), RuntimeError("x"), of(errno.EBADF), of(errno.EINVAL)]
)
def test_a_mistake_of_ours_is_no_lack_of_the_machine(error):
    assert shortage(error) is None


def test_an_error_that_hides_another_is_taken_for_that():
    with pytest.raises(RuntimeError) as raised:
        try:
            raise RuntimeError("can't start new thread")
        finally:
            raise RuntimeError("cannot join thread before it is started")
    assert "ulimit -u" in shortage(raised.value)


def test_a_mistake_while_a_missing_file_is_handled_stays_one():
    with pytest.raises(KeyError) as raised:
        try:
            raise of(errno.ENOENT, "/x")
        except OSError:
            {}["x"]
    assert shortage(raised.value) is None


def test_a_folder_that_was_removed_is_said(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        Path.cwd()
    assert "started in is gone" in shortage(raised.value)


def test_a_service_leaves_with_the_number_of_what_was_lacking():
    wrapped = ConfigError("http.token_file: cannot write /x")
    wrapped.__context__ = of(errno.ENOSPC)
    assert [exit_code(error) for error in (of(errno.ENOSPC), wrapped, RunFolderError("x"))] == [
        Exit.FOLDER
    ] * 3
    assert [exit_code(error) for error in (MemoryError(), RuntimeError("can't start new thread"))] == [1, 1]
    assert exit_code(RuntimeError("Could not determine home directory.")) == Exit.SETTINGS
    assert exit_code(ConfigError("x")) == Exit.SETTINGS


def test_a_disk_is_at_fault_wherever_in_the_chain_it_is():
    error = RunFolderError("run folder /x: database or disk is full")
    error.__context__ = sqlite3.OperationalError("database or disk is full")
    assert is_of_disk(error)
    assert not is_of_disk(of(errno.ENOENT, "/x"))
