import errno
import os

import numpy as np
import pytest

from device_runtime.models.data import SampleSource, open_samples, raw
from device_runtime.models.data.listing import listing
from device_runtime.models.data.units import OTHER, REASONS, Skip, SkippedTally


def strays(index):
    return {skipped.reason: skipped.examples for skipped in index.strays}


def test_a_pipe_is_passed_over_and_a_broken_link_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.png")
    index = listing(SampleSource(tmp_path))
    assert (index.units, strays(index)) == ({}, {})
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    index = listing(SampleSource(tmp_path))
    assert (index.units, strays(index)) == ({}, {"a link that leads nowhere": ("a/gone.png", "loop")})


def test_folders_behind_links_are_read_once_and_none_above(tmp_path, digit_png):
    photos, source = tmp_path / "photos", tmp_path / "source"
    for folder in (photos / "2026", source / "0" / "deep", source / "1"):
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(digit_png())
    (source / "1" / "camera").symlink_to(photos)
    (source / "1" / "again").symlink_to(photos)
    (source / "1" / "up").symlink_to(source)
    (source / "0" / "deep" / "back").symlink_to(source / "0")
    (source / "2").symlink_to(photos / "2026")
    index = listing(SampleSource(source))
    assert list(index.units) == ["0/deep/a.png", "1/a.png", "1/again/2026/a.png", "2/a.png"]
    assert [unit.label for unit in index.units.values()] == ["0", "1", "1", "2"]


def test_files_that_a_table_beside_them_lists_are_not_called_unlabelled(tmp_path, digit_png):
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(digit_png())
    (tmp_path / "labels.csv").write_text("file,label\n1.png,0\n2.png,1\n")
    index = listing(SampleSource(tmp_path))
    assert {name: unit.label for name, unit in index.units.items()} == {"1.png": "0", "2.png": "1"}
    assert not list(index.strays)


def test_what_systems_leave_beside_pictures_is_not_mentioned(tmp_path, digit_png):
    for folder in ("0", "__MACOSX", "@eaDir"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(digit_png())
    for name in ("Thumbs.db", ".DS_Store", "._a.png", "desktop.ini"):
        (tmp_path / name).write_bytes(b"x")
        (tmp_path / "0" / name).write_bytes(b"x")
    index = listing(SampleSource(tmp_path))
    assert (list(index.units), strays(index)) == (["0/a.png"], {})


def test_pictures_that_are_not_read_say_what_to_do(tmp_path, digit_png):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "IMG_0001.HEIC").write_bytes(b"x")
    index = listing(SampleSource(tmp_path))
    assert strays(index) == {
        "HEIC and AVIF pictures are not read: save it as JPEG or PNG": ("0/IMG_0001.HEIC",)
    }


def test_a_folder_that_may_not_be_read_is_named(tmp_path, digit_png, monkeypatch):
    for label in "01":
        (tmp_path / label).mkdir()
        (tmp_path / label / "a.png").write_bytes(digit_png())
    allowed = os.scandir

    def scandir(path):
        if os.fspath(path) == str(tmp_path / "0"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return allowed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    index = listing(SampleSource(tmp_path))
    assert (list(index.units), strays(index)) == (["1/a.png"], {"cannot be read": ("0/: Permission denied",)})


def test_names_that_cannot_be_printed_are_escaped_and_stay_apart(tmp_path, digit_png):
    folder = os.fsencode(tmp_path / "7")
    os.mkdir(folder)  # noqa: PTH102
    for name in (b"a\xff.png", b"a\xfe.png", b"line\nbreak.png", "ü.png".encode()):
        with open(os.path.join(folder, name), "wb") as file:  # noqa: PTH118, PTH123
            file.write(digit_png())
    assert sorted(listing(SampleSource(tmp_path)).units) == [
        "7/a\\udcfe.png", "7/a\\udcff.png", "7/line\\nbreak.png", "7/ü.png",
    ]  # fmt: skip


def test_what_is_not_read_is_said_by_its_kind(tmp_path, digit_png):
    for name in ("a.doc", "b.doc", "README", "alone.png", "all.sqlite", ".hidden"):
        (tmp_path / name).write_bytes(digit_png())
    assert strays(listing(SampleSource(tmp_path))) == {
        "unsupported kind of file (.doc)": ("a.doc", "b.doc"),
        "unsupported kind of file (no ending)": ("README",),
        "a file without a label: it is in no class folder": ("alone.png",),
        "a database is read by a query: sqlite:FILE?QUERY": ("all.sqlite",),
    }


@pytest.mark.parametrize("count", [REASONS, 5 * REASONS])
def test_however_many_reasons_there_are_the_report_stays_short(count):
    tally = SkippedTally()
    for number in range(count):
        tally.add(Skip(f"reason {number}", f"file {number}"))
    counts = {skipped.reason: skipped.count for skipped in tally}
    assert len(counts) <= REASONS + 1
    assert sum(counts.values()) == count
    assert counts.get(OTHER, 0) == count - min(count, REASONS)


def test_each_sample_of_an_array_is_one_as_it_is_stored(tmp_path):
    (tmp_path / "7").mkdir()
    np.save(tmp_path / "7" / "a.npy", np.arange(3 * 64, dtype=np.uint8).reshape(3, 1, 8, 8))
    whole, rows = raw(tmp_path)
    assert len(whole) == 1
    assert rows.shape == (3, 1, 8, 8)


def test_an_array_file_may_have_one_sample_or_many(tmp_path, bundle):
    (tmp_path / "7").mkdir()
    for name, shape in (("one", (1, 8, 8)), ("flat", (8, 8)), ("many", (5, 8, 8)), ("wrong", (8, 9))):
        np.save(tmp_path / "7" / f"{name}.npy", np.ones(shape))
    samples = open_samples(tmp_path, bundle.manifest)
    assert len(samples.training) == 7
    assert [skipped.examples for skipped in samples.skipped] == [("7/wrong.npy: (8, 9), expected (1, 8, 8)",)]


def test_a_link_that_no_name_can_be_is_passed_over(tmp_path, digit_png):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "a.png").write_bytes(digit_png())
    for folder in (tmp_path, tmp_path / "7"):
        (folder / "odd.png").symlink_to("x" * 300)
    assert list(listing(SampleSource(tmp_path)).units) == ["7/a.png"]
