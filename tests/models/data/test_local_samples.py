import os
import sqlite3
from contextlib import closing

import msgspec
import numpy as np
import pytest

from device_runtime.models.data import (
    LocalSamples,
    SampleSource,
    Selection,
    database,
    open_samples,
    row_reader,
    single,
    table,
)
from device_runtime.models.data.local_data import Rows, is_held_out
from device_runtime.models.errors import DataError


@pytest.fixture
def folder(tmp_path, digit_png):
    """A folder of class folders that can be added to."""

    class Folder:
        path = tmp_path / "samples"

        def add(self, name, value=128):
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(digit_png(value))
            return file

    samples = Folder()
    for number in range(6):
        samples.add(f"{number % 3}/{number}.png", 10 * number)
    return samples


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that were read."""
    names = []
    whole = single.read_file
    monkeypatch.setattr(single, "read_file", lambda path: names.append(path.name) or whole(path))
    return names


def samples_of(folder, bundle, **keep):
    samples = LocalSamples(SampleSource(folder.path), bundle.manifest, Selection(**keep))
    samples.refresh()
    return samples


def holdout_of(samples):
    """Grey values by label, in any order."""
    return sorted(zip(samples.training.x[:, 0, 0, 0].tolist(), samples.training.y.tolist(), strict=True))


def test_class_folders_however_deep_give_their_files_their_label(folder, bundle):
    folder.add("1/more/deep.png")
    folder.add("1/.hidden/no.png")
    samples = samples_of(folder, bundle)
    assert np.bincount(samples.training.y).tolist() == [2, 3, 2]
    assert samples.forms == {"picture 8x8 grey 8 bits": 7}


def test_new_files_join_and_unchanged_ones_are_not_read_again(folder, bundle, reads):
    samples = samples_of(folder, bundle)
    assert len(reads) == 6
    reads.clear()
    assert not samples.refresh()
    folder.add("9/new.png")
    assert samples.refresh()
    assert reads == ["new.png"]
    assert np.bincount(samples.training.y).tolist() == [2, 2, 2, 0, 0, 0, 0, 0, 0, 1]


def test_after_any_changes_it_is_as_if_it_were_read_anew(folder, bundle):
    samples = samples_of(folder, bundle, held_out=0.3)
    rng = np.random.default_rng(0)
    for step in range(30):
        name = f"{step % 3}/{rng.integers(12)}.png"
        if rng.random() < 0.4:
            (folder.path / name).unlink(missing_ok=True)
        else:
            os.utime(folder.add(name, int(rng.integers(256))), ns=(step, step))
        samples.refresh()
        anew = samples_of(folder, bundle, held_out=0.3)
        assert holdout_of(samples) == holdout_of(anew)
        assert (len(samples.holdout), samples.forms) == (len(anew.holdout), anew.forms)


def test_a_half_written_file_is_read_when_it_is_whole(folder, bundle, reads):
    whole = folder.add("1/late.png").read_bytes()
    late = folder.path / "1" / "late.png"
    late.write_bytes(whole[:40])
    samples = samples_of(folder, bundle)
    assert (len(samples.training), samples.skipped[0].examples) == (6, ("1/late.png: PNG",))
    reads.clear()
    samples.refresh()
    assert reads == []  # it is as it was
    late.write_bytes(whole)
    assert samples.refresh()
    assert (len(samples.training), samples.skipped) == (7, ())


def test_a_file_that_changes_as_it_is_read_is_left_for_the_next_time(folder, bundle, monkeypatch):
    slow, whole = folder.path / "0" / "0.png", single.read_file

    def written_to(path):
        data = whole(path)
        if path == slow:
            os.utime(path, ns=(1, 1))
        return data

    monkeypatch.setattr(single, "read_file", written_to)
    samples = samples_of(folder, bundle)
    assert len(samples.training) == 5
    assert "changed while it was read" in samples.skipped[0].reason
    assert samples.refresh()
    assert (len(samples.training), samples.skipped) == (6, ())


def test_a_sample_is_held_out_whatever_comes_beside_it(folder, bundle):
    few = samples_of(folder, bundle, held_out=0.5)
    holdout = {x.tobytes() for x in few.holdout.x}
    trained = {x.tobytes() for x in few.training.x}
    assert 0 < len(holdout) < 6
    for number in range(6, 60):
        folder.add(f"1/{number}.png", number * 4)
    few.refresh()
    assert holdout < {x.tobytes() for x in few.holdout.x}
    assert trained < {x.tobytes() for x in few.training.x}


def test_about_the_share_is_held_out_and_another_seed_holds_out_others():
    x = np.random.default_rng(0).standard_normal((5000, 4)).astype(np.float32)
    assert is_held_out(x, 0.2, 0).mean() == pytest.approx(0.2, abs=0.02)
    assert not is_held_out(x, 0.0, 0).any()
    together = is_held_out(x, 0.2, 0) & is_held_out(x, 0.2, 1)
    assert together.mean() == pytest.approx(0.04, abs=0.01)


def test_more_samples_than_there_is_memory_for_are_left_out_and_said(folder, bundle):
    room = 4 * (64 * 4 + 4)
    samples = samples_of(folder, bundle, room_bytes=room)
    assert (len(samples.training), samples.memory_bytes) == (4, room)
    assert samples.skipped[0].reason == "no memory for more samples"


def test_a_folder_that_is_emptied_has_no_samples(folder, bundle):
    samples = open_samples(folder.path, bundle.manifest)
    for file in folder.path.rglob("*.png"):
        file.unlink()
    assert samples.refresh()
    assert (len(samples.training), samples.memory_bytes) == (0, 0)


def test_growing_does_not_copy_what_is_there_each_time():
    rows = Rows((4,), "float32")
    places = set()
    for number in range(1000):
        rows.append(np.full((1, 4), number, np.float32), np.array([number]))
        places.add(rows.data.x.ctypes.data)
    assert len(places) <= 5  # 64, 130, 262, 526, 1054 rows
    assert rows.data.y.tolist() == list(range(1000))


def test_what_is_known_to_come_is_room_for_all_at_once():
    rows = Rows((4,), "float32")
    rows.reserve(1000)
    rows.append(np.zeros((1, 4), np.float32), np.zeros(1, np.int64))
    place = rows.data.x.ctypes.data
    for _ in range(1999):
        rows.append(np.zeros((1, 4), np.float32), np.zeros(1, np.int64))
    assert rows.data.x.ctypes.data == place


def test_dropped_rows_close_up():
    rows = Rows((300_000,), "float32")  # larger than a block of the move
    rows.append(np.arange(6, dtype=np.float32)[:, None].repeat(300_000, 1), np.arange(6))
    rows.keep(np.array([True, False, False, True, False, True]))
    assert rows.data.y.tolist() == [0, 3, 5]
    assert (rows.data.x == np.array([0, 3, 5], np.float32)[:, None]).all()


def test_files_that_go_together_move_the_others_once(folder, bundle, monkeypatch):
    samples = samples_of(folder, bundle, held_out=0.5)
    left = {x.tobytes() for x in samples.training.x} | {x.tobytes() for x in samples.holdout.x}
    moves, keep = [], Rows.keep
    monkeypatch.setattr(Rows, "keep", lambda rows, stays: moves.append(1) or keep(rows, stays))
    for number in (0, 2, 3, 5):
        (folder.path / f"{number % 3}" / f"{number}.png").unlink()
    assert samples.refresh()
    now = {x.tobytes() for x in samples.training.x} | {x.tobytes() for x in samples.holdout.x}
    assert (len(moves), len(now), now < left) == (2, 2, True)
    assert sorted([*samples.training.y.tolist(), *samples.holdout.y.tolist()]) == [1, 1]


def test_a_label_that_is_mended_in_a_list_counts_from_the_next_round_on(folder, bundle):
    (folder.path / "all.csv").write_text("file,label\n0/0.png,4\n")
    samples = samples_of(folder, bundle)
    assert samples.training.class_counts(10)[4:6] == (1, 0)
    (folder.path / "all.csv").write_text("file,label\n0/0.png,5\n")
    assert samples.refresh()
    assert samples.training.class_counts(10)[4:6] == (0, 1)


def test_a_table_that_a_logger_goes_on_writing_is_read_as_far_as_it_is(tmp_path, bundle, monkeypatch):
    row, block = ",".join(map(str, range(64))), row_reader.RowReader.block
    (tmp_path / "log.csv").write_text(f"{row},7\n" * 3)

    def logged(reader, rows):
        with (tmp_path / "log.csv").open("a") as file:
            file.write(f"{row},3\n" if len(blocks) < 5 else "")
        blocks.append(1)
        return block(reader, rows)

    blocks = []
    monkeypatch.setattr(row_reader.RowReader, "block", logged)
    monkeypatch.setattr(table, "ROWS", 1)
    samples = open_samples(tmp_path, bundle.manifest)
    assert samples.training.y.tolist()[:3] == [7, 7, 7]
    samples.refresh()
    assert samples.training.y.tolist() == [7] * 3 + [3] * 5


def test_a_database_that_was_locked_is_read_when_it_is_not(tmp_path, bundle, monkeypatch):
    monkeypatch.setattr(database, "WAIT_S", 0.0)
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE seen (pixels, digit)")
        other.execute("INSERT INTO seen VALUES (?, 7)", (bytes(64),))
        other.execute("BEGIN EXCLUSIVE")
        samples = LocalSamples(SampleSource(tmp_path / "a.db", "SELECT * FROM seen"), bundle.manifest)
        samples.refresh()
        assert "locked" in str(samples.skipped[0])
        other.execute("ROLLBACK")
        assert samples.refresh()
        assert (samples.training.y.tolist(), samples.skipped) == ([7], ())


def test_what_had_no_room_is_read_when_there_is_room(folder, bundle):
    samples = samples_of(folder, bundle, room_bytes=4 * (64 * 4 + 4))
    (folder.path / "0" / "0.png").unlink()
    assert samples.refresh()
    assert (len(samples.training), samples.skipped[0].count) == (4, 1)


def test_many_files_to_come_ask_for_no_more_memory_than_samples_may_take(folder, bundle):
    for number in range(6, 300):
        folder.add(f"blank/{number}.png")
    samples = samples_of(folder, bundle, room_bytes=10 * (64 * 4 + 4))
    assert (len(samples.training), samples.training.x.base.shape[0]) == (6, 64)


def test_buffers_that_moved_are_to_be_asked_for_anew(folder, bundle):
    samples = samples_of(folder, bundle)
    for number in range(6, 300):
        folder.add(f"blank/{number}.png")
    assert samples.refresh()
    assert not samples.refresh()


def test_files_of_a_class_that_is_not_of_the_task_are_not_read(folder, bundle, reads):
    folder.add("blank/9.png")
    samples = samples_of(folder, bundle)
    assert "9.png" not in reads
    assert samples.skipped[0].examples == ("blank/9.png",)


def test_memory_that_is_not_there_for_a_file_leaves_out_that_file(folder, bundle, monkeypatch):
    whole = single.read_file

    def large(path):
        if path.name == "0.png" and not tries:
            tries.append(path)
            raise MemoryError("Unable to allocate 4 GiB")
        return whole(path)

    tries = []
    monkeypatch.setattr(single, "read_file", large)
    samples = samples_of(folder, bundle)
    assert (len(samples.training), samples.skipped[0].reason) == (5, "no memory to read it")
    assert samples.refresh()
    assert len(samples.training) == 6


def test_a_few_held_out_samples_are_trained_on_unless_somebody_wishes_them_held_out(folder, bundle):
    for number in range(6, 60):
        folder.add(f"1/{number}.png", number * 4)
    unasked = samples_of(folder, bundle, held_out=None)
    tenth = samples_of(folder, bundle, held_out=0.1)
    assert 0 < len(tenth.holdout) < 10
    assert (len(unasked.training), len(unasked.holdout)) == (60, 0)
    assert holdout_of(unasked) == sorted(
        zip(*(np.concatenate(both).tolist() for both in (
            (tenth.training.x[:, 0, 0, 0], tenth.holdout.x[:, 0, 0, 0]), (tenth.training.y, tenth.holdout.y)
        )), strict=True)
    )  # fmt: skip
    for number in range(60, 240):
        folder.add(f"2/{number}.png", number)
    assert unasked.refresh()
    assert len(unasked.holdout) >= 10
    assert len(unasked.training) + len(unasked.holdout) == 240


def test_samples_that_would_all_be_held_out_are_not_said_to_be_missing(folder, bundle):
    with pytest.raises(DataError, match="all samples, 6, would be held out"):
        open_samples(folder.path, bundle.manifest, Selection(held_out=0.9999))


def test_a_folder_that_shows_numbers_to_begin_at_1_is_noticed_when_it_comes_later(
    tmp_path, bundle, digit_png
):
    manifest = msgspec.structs.replace(bundle.manifest, labels=("cat", "dog"))
    samples = LocalSamples(SampleSource(tmp_path), manifest, Selection(0.0))
    for folder, count in (("1", 1), ("2", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(digit_png())
        samples.refresh()
        assert len(samples.training) == count
