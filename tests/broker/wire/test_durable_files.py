"""A file is replaced as a whole, with its own permissions, and nothing is left beside it."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from device_runtime.aggregator.machine.run_events import Started
from device_runtime.aggregator.storage.database import Database
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.durable_files import locked_folder, replace_file, sync_folder, unsupported
from device_runtime.broker.wire.messages import Blob
from device_runtime.device.agent.instance import folder_lock
from device_runtime.device.connection.connecting import claim
from device_runtime.device.delivery.sending import Outbox
from device_runtime.mask_helper.ledger import Ledger


def test_a_secret_never_lies_in_a_file_that_others_may_read(tmp_path):
    beside = tmp_path / ".key.new"
    beside.write_text("half of an earlier one")
    beside.chmod(0o644)
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_what_could_not_be_written_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    replace_file(tmp_path / "kept", b"old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "kept", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


UNSUPPORTED = [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS]


def failing(number, of_folders):
    """An fsync of a file system (CIFS, FUSE, virtiofs) that cannot sync folders, or also not files."""
    fsync = os.fsync

    def sync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode) == of_folders:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    return sync


@pytest.mark.parametrize("number", UNSUPPORTED)
@pytest.mark.parametrize("of_folders", [True, False])
def test_a_file_system_that_cannot_sync_still_keeps_files(tmp_path, monkeypatch, number, of_folders):
    monkeypatch.setattr(os, "fsync", failing(number, of_folders))
    replace_file(tmp_path / "kept", b"new")
    store = Blobs(tmp_path / "blobs")
    blob = store.put(b"a model")
    fetched = Blobs(tmp_path / "others").partial(blob)
    fetched.add(0, b"a model")
    assert fetched.finish().read_bytes() == b"a model"
    Outbox(tmp_path / "outbox")
    assert (tmp_path / "kept").read_bytes() == b"new"


def test_a_disk_that_fails_is_no_file_system_that_cannot_sync(tmp_path, monkeypatch):
    for number in (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        monkeypatch.setattr(os, "fsync", failing(number, of_folders=True))
        with pytest.raises(OSError, match=f"{os.strerror(number)}: '{tmp_path}'"):
            sync_folder(tmp_path)


def test_a_folder_that_may_be_written_to_but_not_listed_is_used(tmp_path, monkeypatch):
    opened = os.open

    def not_listed(path, flags, mode=0o777):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", not_listed)
    replace_file(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"


def test_an_error_of_a_write_names_the_file_that_was_meant(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with pytest.raises(OSError, match="kept") as raised, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", failing(number, of_folders=False))
            replace_file(tmp_path / "kept", b"new")
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "kept"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_locks_is_used_with_a_warning_once(tmp_path, monkeypatch, caplog, number):
    def none(_handle, _operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    for _ in range(3):
        with locked_folder(tmp_path):
            pass
    with folder_lock(tmp_path):
        pass
    Database(tmp_path / "run").close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == 3
    assert all("cannot be locked" in line for line in lines)


def test_a_trial_tells_what_a_file_system_does_not_support(tmp_path, monkeypatch):
    assert unsupported(tmp_path) == ()
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL, of_folders=True))
    assert unsupported(tmp_path) == ("a power cut may lose the names of new files",)
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks")))
    assert len(unsupported(tmp_path)) == 2
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_for_its_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        store = Blobs(tmp_path / "blobs")
        store.put(b"a model")
        store.partial(Blob(b"\1" * 32, 5))
        Outbox(tmp_path / "outbox")
        Database(tmp_path / "run").close()
        Records(tmp_path / "run")(Started(None, "r", False, ()))
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("opened", ["state", "run", "helper"])
def test_a_folder_that_an_earlier_version_left_open_is_shut_and_that_is_said_once(tmp_path, caplog, opened):
    folder = tmp_path / opened

    def open_it():
        if opened == "state":
            claim(folder)
        elif opened == "run":
            Database(folder).close()
        else:
            Ledger(folder, bytes).close()

    open_it()
    (folder / "outbox").mkdir(exist_ok=True)
    (file := folder / "log.txt").write_text("x")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    open_it()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert caplog.text.count("was open to others") == 1
    file.chmod(0o644)
    folder.chmod(0o750)  # of a group that the operator chose
    open_it()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert caplog.text.count("was open to others") == 1


def test_where_permissions_cannot_be_changed_a_folder_is_used_as_it_is(tmp_path, monkeypatch, caplog):
    def refused(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    claim(tmp_path / "a")
    (tmp_path / "a").chmod(0o755)
    for change in (refused, lambda *_, **__: None):
        monkeypatch.setattr(os, "chmod", change)
        claim(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert "was open to others" not in caplog.text


def test_the_working_folder_and_one_of_all_are_not_shut(tmp_path, monkeypatch):
    (all_may := tmp_path / "all").mkdir()
    for folder, mode in ((tmp_path, 0o755), (all_may, 0o1777)):
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            Database(folder).close()
            folder.chmod(mode)
            Database(folder).close()
        assert stat.S_IMODE(folder.stat().st_mode) == mode
