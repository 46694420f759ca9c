"""Blocks in any order, a restart in between, and a hash at the end."""

import os
from pathlib import Path

import pytest

from device_runtime.broker.errors import BlobError, BlockError
from device_runtime.broker.wire.blobs import Blobs, blob_of
from device_runtime.broker.wire.messages import Blob
from device_runtime.broker.wire.partial_blob import BLOCK, block_count


@pytest.fixture
def store(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def blocks_of(data: bytes) -> list[bytes]:
    return [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_blocks_in_any_order_make_the_blob(store: Blobs, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    blob = store.put(data)
    other = Blobs(tmp_path / "other")
    partial = other.partial(blob)
    assert partial.missing() == tuple(range(block_count(blob)))
    for index in reversed(partial.missing()):
        assert partial.add(index, store.read_block(blob, index))
    assert partial.missing() == ()
    assert partial.finish() == other.path(blob.sha)
    assert other.get(blob) == data
    assert list((other.folder / "partial").iterdir()) == []


def test_a_block_counts_once(store: Blobs) -> None:
    data = os.urandom(2 * BLOCK)
    partial = store.partial(blob_of(data))
    assert partial.add(0, data[:BLOCK])
    assert not partial.add(0, data[:BLOCK])
    assert partial.missing() == (1,)
    with pytest.raises(BlobError, match="still lacks 1 block"):
        partial.finish()


@pytest.mark.parametrize(
    ("index", "length"), [(0, BLOCK - 1), (0, BLOCK + 1), (1, BLOCK), (1, 0), (2, 5), (-1, 5)]
)
def test_a_block_of_wrong_length_or_number_is_refused(store: Blobs, index: int, length: int) -> None:
    partial = store.partial(Blob(b"\1" * 32, BLOCK + 5))
    with pytest.raises(BlockError):
        partial.add(index, b"x" * length)
    assert partial.missing() == (0, 1)


def test_what_arrived_survives_a_restart(tmp_path: Path) -> None:
    data = os.urandom(3 * BLOCK)
    Blobs(tmp_path).partial(blob_of(data)).add(1, blocks_of(data)[1])
    partial = Blobs(tmp_path).partial(blob_of(data))
    assert partial.missing() == (0, 2)
    for index in partial.missing():
        partial.add(index, blocks_of(data)[index])
    partial.finish()
    assert Blobs(tmp_path).get(blob_of(data)) == data


@pytest.mark.parametrize("damage", ["lost", "short", "long"])
def test_a_damaged_partial_begins_again(tmp_path: Path, damage: str) -> None:
    data = os.urandom(3 * BLOCK)
    Blobs(tmp_path).partial(blob_of(data)).add(1, blocks_of(data)[1])
    (path,) = (tmp_path / "partial").iterdir()
    content = path.read_bytes()
    path.unlink() if damage == "lost" else path.write_bytes(
        content[:-1] if damage == "short" else content + b"1"
    )
    assert Blobs(tmp_path).partial(blob_of(data)).missing() == (0, 1, 2)


def test_blocks_that_came_out_of_order_or_before_a_restart_are_hashed_from_the_disk(tmp_path: Path) -> None:
    data = os.urandom(4 * BLOCK)
    first = Blobs(tmp_path).partial(blob_of(data))
    for index in (0, 2):
        first.add(index, blocks_of(data)[index])
    first.add(1, blocks_of(data)[1])
    second = Blobs(tmp_path).partial(blob_of(data))
    assert second.missing() == (3,)
    second.add(3, blocks_of(data)[3])
    second.finish()
    assert Blobs(tmp_path).get(blob_of(data)) == data


def test_a_crash_while_it_was_being_finished_costs_no_block(tmp_path: Path, monkeypatch) -> None:
    data = os.urandom(2 * BLOCK)
    partial = Blobs(tmp_path).partial(blob_of(data))
    for index, block in enumerate(blocks_of(data)):
        partial.add(index, block)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            "device_runtime.broker.wire.partial_blob.move_into_place",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        partial.finish()
    again = Blobs(tmp_path).partial(blob_of(data))
    assert again.missing() == ()
    again.finish()
    assert Blobs(tmp_path).get(blob_of(data)) == data


def test_a_disk_that_fails_once_when_it_is_finished_does_not_spoil_the_hash(
    tmp_path: Path, monkeypatch
) -> None:
    data = os.urandom(2 * BLOCK)
    partial = Blobs(tmp_path).partial(blob_of(data))
    for index, block in enumerate(blocks_of(data)):
        partial.add(index, block)
    with monkeypatch.context() as patch, pytest.raises(BlobError, match="cannot finish"):
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        partial.finish()
    partial.finish()
    assert Blobs(tmp_path).get(blob_of(data)) == data


def test_a_wrong_hash_discards_everything_and_begins_again(store: Blobs) -> None:
    data = os.urandom(2 * BLOCK)
    partial = store.partial(blob_of(data))
    partial.add(0, blocks_of(data)[0])
    partial.add(1, b"\0" * BLOCK)
    with pytest.raises(BlobError, match="another hash"):
        partial.finish()
    assert not store.has(blob_of(data))
    assert partial.missing() == (0, 1)
    for index, block in enumerate(blocks_of(data)):
        partial.add(index, block)
    partial.finish()
    assert store.get(blob_of(data)) == data


def test_two_who_pull_the_same_blob_share_the_work_and_both_finish(store: Blobs) -> None:
    data = os.urandom(2 * BLOCK)
    first, second = store.partial(blob_of(data)), store.partial(blob_of(data))
    first.add(0, blocks_of(data)[0])
    second.add(1, blocks_of(data)[1])
    assert first.finish() == second.finish() == store.path(blob_of(data).sha)


def test_a_partial_of_a_blob_that_is_here_lacks_nothing(store: Blobs) -> None:
    blob = store.put(b"abc")
    assert store.partial(blob).missing() == ()
    assert store.partial(blob).finish() == store.path(blob.sha)


def test_a_finished_blob_that_was_damaged_since_can_be_pulled_again(store: Blobs) -> None:
    partial = store.partial(blob_of(b"abc"))
    partial.add(0, b"abc")
    partial.finish().write_bytes(b"abd")
    with pytest.raises(BlobError, match="damaged"):
        store.get(blob_of(b"abc"))
    again = store.partial(blob_of(b"abc"))
    assert again.missing() == (0,)
    again.add(0, b"abc")
    again.finish()
    assert store.get(blob_of(b"abc")) == b"abc"
