"""A device on a full disk: whichever write is refused, and by which error, it goes on when there is room."""

import errno
import os

import pytest

from device_runtime.device.backend import in_process
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class Disk:
    """Counts writes (each is synced), and refuses those from the `first` on, `count` of them."""

    def __init__(self, monkeypatch, number=errno.ENOSPC):
        self.writes, self.first, self.count = 0, 10**9, 0
        fsync = os.fsync

        def sync(handle):
            self.writes += 1
            if self.first <= self.writes < self.first + self.count:
                raise OSError(number, os.strerror(number))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", sync)

    def refuse(self, first, count):
        self.writes, self.first, self.count = 0, first, count


def settled(stage):
    """Whether round 1 has its receipt, after as many looks as it takes."""
    for _ in range(12):
        stage.go(4)
        if stage.contributions and not len(stage.agent.runner.outbox):
            return True
        stage.clock.now += 3.0
    return False


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(in_process, "DISK_WAITS_S", (0.0,) * 6)


@pytest.mark.parametrize(
    "kind, step",
    [
        (ClassMeans(), 4),
        pytest.param(ClassMeans(), 1, marks=pytest.mark.slow),
        pytest.param(registry.make("few-shot"), 1, marks=pytest.mark.slow),
    ],
)
def test_whichever_write_is_refused_the_round_is_done_when_there_is_room(
    stage, monkeypatch, quick, kind, step
):
    kinds = (registry.write(kind),)
    disk = Disk(monkeypatch)
    stage.link.announce(stage.offer(1, kinds=kinds))
    assert settled(stage)
    writes = disk.writes
    assert writes > 5
    for first in range(1, writes + 1, step):
        stage.folder.joinpath("a.npz").rename(stage.folder.parent / "a.npz")
        for path in sorted(stage.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        stage.folder.parent.joinpath("a.npz").rename(stage.folder / "a.npz")
        disk.refuse(10**9, 0)
        stage.start()
        disk.refuse(first, 4)
        stage.link.announce(stage.offer(1, kinds=kinds))
        assert settled(stage), first
        assert [sent.round for sent in stage.contributions][-1] == 1


@pytest.mark.parametrize("number", FULL)
def test_a_model_that_has_no_room_is_fetched_when_there_is(stage, monkeypatch, caplog, number):
    disk = Disk(monkeypatch, number)
    disk.refuse(1, 5)
    stage.link.announce(stage.offer(1))
    assert settled(stage)
    assert os.strerror(number).lower() in caplog.text.lower()
    assert str(stage.folder) in caplog.text


def test_a_disk_that_stays_full_is_tried_ever_more_seldom(stage, monkeypatch, caplog):
    disk = Disk(monkeypatch)
    disk.refuse(1, 10**9)
    stage.link.announce(stage.offer(1))
    for _ in range(50):
        stage.go(4)
        stage.clock.now += 1.0
    assert stage.contributions == []
    assert disk.writes < 30
    assert sum("no space left" in entry.getMessage().lower() for entry in caplog.records) < 10
