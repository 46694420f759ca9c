"""The content-addressed store: durable, verified, resumable."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import partial_blob as partial_module
from device_runtime.broker.wire.blobs import BlobRoom, Blobs, blob_of
from device_runtime.broker.wire.messages import Blob


@pytest.fixture
def store(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def test_what_is_put_is_found_by_its_sha256(store: Blobs) -> None:
    blob = store.put(b"abc")
    assert blob == Blob(hashlib.sha256(b"abc").digest(), 3)
    assert store.has(blob)
    assert store.has(blob.sha)
    assert store.get(blob) == store.get(blob.sha) == store.path(blob.sha).read_bytes() == b"abc"


def test_putting_the_same_bytes_twice_keeps_them_once(store: Blobs) -> None:
    assert store.put(b"abc") == store.put(b"abc")
    assert [path.name for path in store.folder.iterdir() if path.is_file()] == [blob_of(b"abc").hex]


def test_nothing_temporary_is_left_behind_by_put(store: Blobs) -> None:
    store.put(b"abc")
    assert list((store.folder / "partial").iterdir()) == []


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    store: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        calls.append("sync")
        fsync(handle)

    def note_rename(path: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    store.put(b"abc")
    assert calls == ["sync", "rename", "sync"]


def test_a_blob_that_is_not_there_is_an_error_that_says_so(store: Blobs) -> None:
    with pytest.raises(BlobError, match=r"is not in .*: fetch it first"):
        store.get(blob_of(b"abc"))
    with pytest.raises(BlobError, match="is not in"):
        store.read_block(blob_of(b"abc"), 0)


def test_a_damaged_blob_is_never_returned_and_makes_room_for_a_good_one(store: Blobs) -> None:
    blob = store.put(b"abc")
    store.path(blob.sha).write_bytes(b"abd")
    with pytest.raises(BlobError, match="damaged"):
        store.get(blob)
    assert not store.has(blob)
    assert store.get(store.put(b"abc")) == b"abc"


def test_a_right_hash_with_a_wrong_size_is_refused(store: Blobs) -> None:
    blob = store.put(b"abc")
    assert not store.has(Blob(blob.sha, 4))
    with pytest.raises(BlobError, match="has 3 bytes, not the 4"):
        store.get(Blob(blob.sha, 4))


def test_a_blob_over_the_limit_is_refused_before_room_is_taken(tmp_path: Path) -> None:
    store = Blobs(tmp_path, max_bytes=10)
    with pytest.raises(BlobError, match="of 11 bytes: at most 10"):
        store.put(b"x" * 11)
    with pytest.raises(BlobError, match="at most 10"):
        store.partial(Blob(b"\0" * 32, 2**39))


def test_a_full_disk_is_a_blob_error_with_advice(store: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BlobError, match="no space left on device: free some space"):
        store.put(b"abc")
    assert not store.has(blob_of(b"abc"))
    assert list((store.folder / "partial").iterdir()) == []
    monkeypatch.setattr(partial_module, "reserve", full)
    with pytest.raises(BlobError, match=r"cannot make room for .*free some space"):
        store.partial(blob_of(b"abc"))


def test_a_folder_that_cannot_be_made_is_a_blob_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BlobError, match="cannot make"):
        Blobs(tmp_path / "file" / "store")


def test_prune_keeps_what_is_named_and_what_is_being_pulled(store: Blobs) -> None:
    blob, gone = store.put(b"kept"), store.put(b"gone")
    store.partial(blob_of(b"abandoned"))
    partial = store.partial(blob_of(b"held"))
    assert store.prune([blob]) == len(b"gone") + len(b"abandoned") + 1
    assert store.has(blob)
    assert not store.has(gone)
    partial.add(0, b"held")
    partial.finish()
    assert store.get(blob_of(b"held")) == b"held"


def test_prune_leaves_files_of_others_alone(store: Blobs) -> None:
    (store.folder / "README").write_text("hello")
    store.prune([])
    assert (store.folder / "README").exists()


def test_what_is_fetched_takes_no_more_than_the_store_may_have(tmp_path: Path) -> None:
    store = Blobs(tmp_path, room=BlobRoom(most=1000))
    whole = store.put(b"x" * 400)
    partial = store.partial(Blob(b"\1" * 32, 500))  # 501 bytes lie there, with its map
    with pytest.raises(BlobError, match="no room for blob 020202020202 of 100 bytes: 901 of the 1000 bytes"):
        store.partial(Blob(b"\2" * 32, 100))
    assert store.partial(partial.blob) is partial
    assert store.partial(whole).missing() == ()
    assert store.discard(partial.blob) == 501
    assert store.partial(Blob(b"\2" * 32, 100)).missing() == (0,)


def test_what_is_fetched_leaves_so_much_of_the_disk_free(tmp_path: Path, monkeypatch) -> None:
    store = Blobs(tmp_path, room=BlobRoom(spare=1000))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1500))
    store.partial(Blob(b"\1" * 32, 500))
    with pytest.raises(BlobError, match="1500 bytes are free .*, and 1000 are kept for other work"):
        store.partial(Blob(b"\2" * 32, 501))


@pytest.mark.parametrize("says", ["nothing", "no bytes at all"])
def test_a_file_system_that_does_not_say_what_is_free_is_used(tmp_path: Path, monkeypatch, says: str) -> None:
    """As some of FUSE do not: they answer with zeros, or ENOSYS."""

    def usage(_: object) -> SimpleNamespace:
        if says == "nothing":
            raise OSError(errno.ENOSYS, "Function not implemented")
        return SimpleNamespace(total=0, free=0)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    Blobs(tmp_path, room=BlobRoom(spare=1000)).partial(Blob(b"\1" * 32, 500))


def test_what_was_written_lately_is_not_pruned_where_a_moment_is_given(store: Blobs) -> None:
    old, new = store.put(b"old"), store.put(b"new")
    os.utime(store.path(old.sha), (1000, 1000))
    assert store.prune([], before=2000.0) == len(b"old")
    assert store.has(new)
