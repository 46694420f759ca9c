"""A run folder in an archive: as it was at one moment, while the aggregator goes on; restored elsewhere."""

import errno
import os
import tarfile
import threading

import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.storage import backup
from device_runtime.aggregator.storage.backup import back_up
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.storage.tables import DatabasePlace, store_database_place
from tests.aggregator.conftest import Bench


def unpack_archive(archive, folder):
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "run"


def test_a_round_goes_on_elsewhere_with_what_was_acknowledged(bench, make_task, update_of, tmp_path):
    b = bench(make_task("full", rounds=2))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("full", update_of("full")))
    assert back_up(b.folder, tmp_path / "run.tar") == (tmp_path / "run.tar").stat().st_size
    b.contribute("pi-02", b.contribution("full", update_of("full", 1)))

    elsewhere = Bench(b.task, unpack_archive(tmp_path / "run.tar", tmp_path / "elsewhere"))
    elsewhere.join("pi-01", "pi-02")
    again = elsewhere.contribute("pi-01", elsewhere.contribution("full", update_of("full")))
    elsewhere.wait(2.0)
    elsewhere.contribute("pi-02", elsewhere.contribution("full", update_of("full", 1)))
    assert again[0].status == "duplicate"
    assert elsewhere.heard(RoundClosed)[0].record.participants == 2
    original, copy = b.weights(b.offer.base), elsewhere.weights(elsewhere.offer.base)
    assert all(np.array_equal(original[name], copy[name]) for name in original)
    elsewhere.service.close()


def test_each_of_many_backups_beside_rounds_is_whole(bench, make_task, update_of, tmp_path):
    """Of every state that was archived, what commits refer to is there, and the run goes on from it."""
    b = bench(make_task("full", rounds=6))
    archives, ended = [], threading.Event()

    def back_up_again_and_again():
        while not ended.is_set():
            archives.append(tmp_path / f"{len(archives)}.tar")
            back_up(b.folder, archives[-1])

    writer = threading.Thread(target=back_up_again_and_again)
    writer.start()
    try:
        for number in range(1, 7):
            b.join("pi-01", "pi-02")
            for seed, device in enumerate(("pi-01", "pi-02")):
                b.contribute(device, b.contribution("full", update_of("full", seed), number))
    finally:
        ended.set()
        writer.join()
    assert len(b.heard(RoundClosed)) == 6
    assert len(archives) > 1
    for archive in archives:
        folder = unpack_archive(archive, tmp_path / archive.stem)
        assert not (folder / "lock").exists()
        store = Store(folder)
        number = max(1, store.rounds.latest_closed() + 1)
        for contribution in store.contributions.of_round(number):
            assert store.contributions.content(contribution)
        store.close()
        run = Bench(b.task, folder)
        assert run.service.state.phase in ("wait", "collect", "done", "over")
        run.service.close()


def test_a_file_system_without_links_is_copied_if_no_aggregator_runs(
    bench, make_task, update_of, tmp_path, monkeypatch
):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("full", update_of("full")))

    def no_links(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(backup.os, "link", no_links)
    with pytest.raises(RunFolderError, match="has no hard links, and an aggregator runs there: stop it"):
        back_up(b.folder, tmp_path / "run.tar")
    assert not list(tmp_path.glob("run.tar*"))
    b.service.close()
    back_up(b.folder, tmp_path / "run.tar")
    store = Store(unpack_archive(tmp_path / "run.tar", tmp_path / "elsewhere"))
    [contribution] = store.contributions.of_round(1)
    assert store.contributions.content(contribution)
    store.close()


def test_what_cannot_be_backed_up_is_said(bench, make_task, tmp_path):
    with pytest.raises(RunFolderError, match="is no run folder: nothing was begun there"):
        back_up(tmp_path, tmp_path / "run.tar")
    b = bench(make_task("full"))
    with pytest.raises(RunFolderError, match=r"cannot back up .* No such file"):
        back_up(b.folder, tmp_path / "missing" / "run.tar")
    store_database_place(b.folder, DatabasePlace("host=db", "fl"))
    with pytest.raises(RunFolderError, match="is on a database server: stop serve"):
        back_up(b.folder, tmp_path / "run.tar")
