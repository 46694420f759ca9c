"""What is fetched, and when that is given up; on a clock made of numbers."""

import pytest

from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire.blobs import BlobRoom, Blobs, blob_of
from device_runtime.broker.wire.messages import Blob
from device_runtime.broker.wire.transfer import UNKNOWN
from device_runtime.device.delivery.downloads import Downloads

DATA = b"the model"


@pytest.fixture
def requests():
    return []


@pytest.fixture
def downloads(tmp_path, requests):
    return Downloads(Blobs(tmp_path), requests.append, lambda *_: None)


def test_a_blob_that_was_not_there_is_asked_for_again_by_a_later_offer(downloads, requests):
    files = [blob_of(DATA)]
    assert downloads.advance(files, 0.0)
    downloads.received(files[0].sha, UNKNOWN, b"", 0.1)
    assert not downloads.advance(files, 0.2)
    assert downloads.advance(files, 0.3)
    assert len(requests) == 2


def test_what_is_never_what_it_is_named_is_fetched_twice_and_then_only_for_a_later_offer(
    downloads, requests, caplog
):
    files = [blob_of(DATA)]
    for second in range(2):
        assert downloads.advance(files, float(second))
        downloads.received(files[0].sha, 0, DATA[::-1], second + 0.1)
        with pytest.raises(BlobError, match="another hash"):
            downloads.advance(files, second + 0.2)
    assert not downloads.advance(files, 2.0)
    assert "had another hash twice" in caplog.text
    assert len(requests) == 2
    assert downloads.advance(files, 3.0)
    downloads.received(files[0].sha, 0, DATA, 3.1)
    assert downloads.advance(files, 3.2)
    assert len(requests) == 3


def test_a_disk_that_fails_is_no_wrong_content(downloads, requests, monkeypatch):
    files = [blob_of(DATA)]
    assert downloads.advance(files, 0.0)
    downloads.received(files[0].sha, 0, DATA, 0.1)

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing)
        for second in range(1, 5):
            with pytest.raises(BlobError, match="cannot finish"):
                downloads.advance(files, float(second))
    assert downloads.advance(files, 9.0)
    assert len(requests) == 1


def test_of_many_large_blobs_no_more_is_begun_than_there_is_room_for_and_the_next_offer_is_fetched(
    tmp_path, requests
):
    blobs = Blobs(tmp_path, room=BlobRoom(most=1_000_000))
    downloads = Downloads(blobs, requests.append, lambda *_: None)
    huge = [Blob(bytes([number]) * 32, 400_000) for number in range(1, 50)]
    for _ in range(3):
        with pytest.raises(NoRoom, match="of the 1000000 bytes for models here are taken"):
            downloads.advance(huge, 0.0)
        downloads.expect(Blob(b"\xff" * 32, 400_000), 0.0)
    assert blobs.taken() < 1_000_000
    files = [Blob(b"\0" * 32, 900_000)]
    with pytest.raises(NoRoom):
        downloads.advance(files, 1.0)
    blobs.prune(files)
    assert downloads.advance(files, 2.0)
