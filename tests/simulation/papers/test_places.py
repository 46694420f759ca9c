"""Where data is looked for."""

from pathlib import Path

import pytest

from benchmarks.papers.places import DataEntry, DataFolder, Form, data_folder
from device_runtime.simulation.errors import DataSetError

ENTRY = DataEntry(
    title="letters",
    classes=2,
    export="",
    get="ask the typesetter",
    forms=(
        Form(file="small.npz", source="npz", scales=("cpu",)),
        Form(file="letters.npz", source="npz"),
        Form(file="letters", source="images"),
    ),
)


def test_the_first_form_that_is_there_is_taken(tmp_path):
    folder = DataFolder(tmp_path)
    (tmp_path / "letters").mkdir()
    assert folder.form(ENTRY, "cpu").file == "letters"
    (tmp_path / "letters.npz").touch()
    (tmp_path / "small.npz").touch()
    assert folder.form(ENTRY, "cpu").file == "small.npz"
    assert folder.form(ENTRY, "full").file == "letters.npz"


def test_what_is_missing_is_named_with_how_to_get_it(tmp_path):
    missing = "expected letters.npz or letters; ask the typesetter"
    with pytest.raises(DataSetError, match=f"no letters for scale full in {tmp_path}: {missing}"):
        DataFolder(tmp_path).form(ENTRY, "full")
    with pytest.raises(
        DataSetError, match=r"without a data folder \(--data-dir DIR, or \$DEVICE_RUNTIME_DATA\)"
    ):
        DataFolder(None).form(ENTRY, "full")
    assert not DataFolder(None).has(ENTRY, "full")
    with pytest.raises(DataSetError, match=r"no weights\.npz in"):
        DataFolder(tmp_path).file("weights.npz")


def test_data_of_a_package_needs_no_folder():
    entry = DataEntry(title="digits", classes=10, export="", source="digits")
    assert DataFolder(None).form(entry, "cpu") is None
    assert DataFolder(None).has(entry, "cpu")


def test_what_is_said_stands_over_the_environment_and_that_over_what_lies_beside(tmp_path, monkeypatch):
    beside, here = tmp_path / "shared" / "data", tmp_path / "here"
    beside.mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    assert data_folder(tmp_path, {"DEVICE_RUNTIME_DATA": str(here)}).path == tmp_path
    assert data_folder(None, {"DEVICE_RUNTIME_DATA": str(here)}).path == here
    assert data_folder(None, {}).path == Path("../shared/data")
    monkeypatch.chdir(tmp_path)
    assert data_folder(None, {}).path is None


def test_a_folder_that_is_said_must_be_there(tmp_path):
    with pytest.raises(DataSetError, match="nowhere: no such folder"):
        data_folder(tmp_path / "nowhere", {})
