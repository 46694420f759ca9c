"""What is fetched, and when that is given up; on a clock made of numbers."""

import pytest

from broker.blobs import Blobs, name
from broker.errors import BlobError
from broker.transfer import UNKNOWN
from device_runtime.downloads import Downloads

DATA = b"the model"


@pytest.fixture
def asked():
    return []


@pytest.fixture
def downloads(tmp_path, asked):
    return Downloads(Blobs(tmp_path), asked.append, lambda *_: None)


def test_a_blob_that_was_not_there_is_asked_for_again_by_a_later_offer(downloads, asked):
    wanted = [name(DATA)]
    assert downloads.advance(wanted, 0.0)
    downloads.received(wanted[0].sha, UNKNOWN, b"", 0.1)
    assert not downloads.advance(wanted, 0.2)
    assert downloads.advance(wanted, 0.3)
    assert len(asked) == 2


def test_what_is_never_what_it_is_named_is_fetched_twice_and_then_only_for_a_later_offer(
    downloads, asked, caplog
):
    wanted = [name(DATA)]
    for second in range(2):
        assert downloads.advance(wanted, float(second))
        downloads.received(wanted[0].sha, 0, DATA[::-1], second + 0.1)
        with pytest.raises(BlobError, match="another hash"):
            downloads.advance(wanted, second + 0.2)
    assert not downloads.advance(wanted, 2.0)
    assert "had another hash twice" in caplog.text
    assert len(asked) == 2
    assert downloads.advance(wanted, 3.0)
    downloads.received(wanted[0].sha, 0, DATA, 3.1)
    assert downloads.advance(wanted, 3.2)
    assert len(asked) == 3


def test_a_disk_that_fails_is_no_wrong_content(downloads, asked, monkeypatch):
    wanted = [name(DATA)]
    assert downloads.advance(wanted, 0.0)
    downloads.received(wanted[0].sha, 0, DATA, 0.1)

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing)
        for second in range(1, 5):
            with pytest.raises(BlobError, match="cannot finish"):
                downloads.advance(wanted, float(second))
    assert downloads.advance(wanted, 9.0)
    assert len(asked) == 1
