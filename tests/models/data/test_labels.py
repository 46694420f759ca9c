from pathlib import Path

import pytest

from device_runtime.models.data import SampleSource
from device_runtime.models.data.labels import LabelMap
from device_runtime.models.data.units import Refused
from device_runtime.models.errors import DataError

ANIMALS = ("cat", "dog", "Wild boar")


def test_names_are_the_task_s_labels_whatever_their_case():
    label_map = LabelMap(ANIMALS)
    assert [label_map.number(name) for name in ("cat", "CAT", " dog ", "wild BOAR")] == [0, 0, 1, 2]


def test_numbers_are_class_numbers_only_where_no_label_is_a_number():
    assert LabelMap(ANIMALS).number("2") == 2
    assert LabelMap(("5", "7")).number("7") == 1
    for labels, name in ((ANIMALS, "3"), (("5", "7"), "1"), (ANIMALS, "-1"), (ANIMALS, "9" * 40)):
        with pytest.raises(Refused, match="is not of the task|class number [39]+, where"):
            LabelMap(labels).number(name)


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def is_file(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(DataError, match=f"{tmp_path} cannot be read: Permission denied"):
        LabelMap.of(SampleSource(tmp_path), ANIMALS)


def test_labels_that_differ_in_case_alone_are_told_apart():
    label_map = LabelMap(("a", "A", "b"))
    assert [label_map.number(name) for name in ("a", "A", "B")] == [0, 1, 2]
    with pytest.raises(Refused):
        LabelMap(("ab", "AB")).number("aB")


def test_a_map_names_aliases_and_what_is_left_out(tmp_path):
    (tmp_path / "labels.toml").write_text(
        '[labels]\nkitty = "cat"\nnoise = ""\n"*" = "Wild boar"\n[aliases]\ndog = ["puppy", "hound"]\n'
    )
    label_map = LabelMap.of(SampleSource(tmp_path), ANIMALS)
    names = ("kitty", "Kitty", "puppy", "hound", "cat", "a thing")
    assert [label_map.number(name) for name in names] == [0, 0, 1, 1, 0, 2]
    with pytest.raises(Refused, match="label 'noise' is left out by the label map"):
        label_map.number("noise")


def test_a_map_that_is_given_goes_before_the_one_beside_the_samples(tmp_path):
    (tmp_path / "labels.toml").write_text('[labels]\nx = "cat"\n')
    (tmp_path / "mine").write_text('[labels]\nx = "dog"\n')
    assert LabelMap.of(SampleSource(tmp_path, labels=tmp_path / "mine"), ANIMALS).number("x") == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ('[labels]\nx = "cow"\n', "'x' is mapped to 'cow', the task has cat, dog, Wild boar"),
        ("labels = 3", "is no label map"),
        ("[label]", "is no label map"),
        ("[[[", "labels.toml is not TOML"),
    ],
)
def test_a_map_that_does_not_fit_is_an_error(tmp_path, text, message):
    (tmp_path / "labels.toml").write_text(text)
    with pytest.raises(DataError, match=message):
        LabelMap.of(SampleSource(tmp_path), ANIMALS)
    with pytest.raises(DataError, match=f"cannot read {tmp_path / 'none'}: no such file"):
        LabelMap.of(SampleSource(tmp_path, labels=tmp_path / "none"), ANIMALS)


def test_accents_that_are_written_apart_are_the_same_name():
    labels = LabelMap(["gr\u00fcn", "cafe\u0301"])
    assert [labels.number(name) for name in ("gru\u0308n", "GR\u00dcN", "caf\u00e9")] == [0, 0, 1]
