"""Classes of named data have the numbers that the bundle gives them, as on a device."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from PIL import Image

from device_runtime.models import data as local_data
from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.errors import DataSetError

COLOURS = {"cat": 10, "dog": 20, "bird": 30}


@pytest.fixture
def labelled(bundle):
    """A bundle of images of 8 by 8 with these labels, as far as a source looks at it."""

    def make(*labels, shape=(3, 8, 8)):
        spec = msgspec.structs.replace(bundle.manifest.input, shape=shape, scale=1 / 255)
        return SimpleNamespace(
            manifest=msgspec.structs.replace(bundle.manifest, labels=labels, input=spec), texts=None
        )

    return make


def folders(tmp_path, *names):
    root = tmp_path / "pets"
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(4):
            picture = Image.new("RGB", (8, 8), (COLOURS[name.lower()], 0, 0))
            picture.save(root / name / f"{number}.png")
    return DataSpec(source="images", path=str(root), size=8)


def classes_of(data, place=0):
    """The name of the class of each colour, from both parts of the data."""
    x, y = np.concatenate([data.train_x, data.test_x]), np.concatenate([data.train_y, data.test_y])
    return {
        (int(sample.reshape(-1)[place]), data.labels[number]) for sample, number in zip(x, y, strict=True)
    }


def test_folders_of_images_have_the_numbers_of_the_bundle_as_on_a_device(tmp_path, labelled):
    pets = labelled("cat", "dog", "bird")
    data = load(folders(tmp_path, "cat", "dog", "bird"), 0, pets)
    assert data.labels == ("cat", "dog", "bird")
    assert classes_of(data) == {(10, "cat"), (20, "dog"), (30, "bird")}
    on_device = local_data.load(tmp_path / "pets", pets.manifest)
    assert sorted(on_device.y.tolist()) == sorted([*data.train_y.tolist(), *data.test_y.tolist()])


def test_data_may_lack_classes_and_write_names_in_another_case(tmp_path, labelled):
    data = load(folders(tmp_path, "Dog", "bird"), 0, labelled("cat", "dog", "bird"))
    assert classes_of(data) == {(20, "dog"), (30, "bird")}


def test_a_label_map_in_the_folder_is_used(tmp_path, labelled):
    spec = folders(tmp_path, "cat", "dog")
    (tmp_path / "pets" / "labels.toml").write_text('[labels]\ncat = "kitten"\n')
    assert classes_of(load(spec, 0, labelled("dog", "kitten"))) == {(10, "kitten"), (20, "dog")}


def test_tables_and_texts_have_the_numbers_of_the_bundle(tmp_path, labelled):
    rows = "".join(f"{COLOURS[name]},{name}\n" for name in ("cat", "dog", "bird") * 3)
    (tmp_path / "a.csv").write_text(f"colour,label\n{rows}")
    for source in ("table", "text"):
        bundle = labelled("dog", "cat", "bird", shape=(1,))
        data = load(DataSpec(source=source, path=str(tmp_path / "a.csv")), 0, bundle)
        assert data.labels == ("dog", "cat", "bird"), source
        assert len(classes_of(data)) == 3, source
    table = load(DataSpec(source="table", path=str(tmp_path / "a.csv")), 0, bundle)
    assert classes_of(table) == {(20, "dog"), (10, "cat"), (30, "bird")}


def test_a_class_that_the_bundle_does_not_have_is_left_out_as_on_a_device(tmp_path, labelled, caplog):
    spec, pets = folders(tmp_path, "cat", "dog"), labelled("cat", "wolf")
    assert classes_of(load(spec, 0, pets)) == {(10, "cat")}
    on_device = local_data.open_samples(tmp_path / "pets", pets.manifest)
    [skipped] = on_device.skipped
    assert str(skipped) in caplog.text
    with pytest.raises(DataSetError, match="has no readable samples: label 'cat' is not of the task: 4"):
        load(spec, 0, labelled("wolf", "fox"))


def test_only_chosen_classes_need_be_in_the_bundle(tmp_path, labelled):
    spec = msgspec.structs.replace(folders(tmp_path, "cat", "dog", "bird"), classes=(2, 1))
    assert classes_of(load(spec, 0, labelled("cat", "dog"))) == {(10, "cat"), (20, "dog")}


@pytest.mark.parametrize("labels", [("0", "1", "2"), ("bird", "cat", "dog")])
def test_without_names_or_with_equal_names_the_numbers_stay(tmp_path, labelled, labels):
    spec = folders(tmp_path, "cat", "dog", "bird")
    with_bundle, without = load(spec, 0, labelled(*labels)), load(spec, 0)
    assert np.array_equal(with_bundle.train_y, without.train_y)
    assert with_bundle.labels == without.labels == ("bird", "cat", "dog")


def test_the_order_of_names_is_said_where_a_bundle_has_numbers(tmp_path, labelled, caplog):
    load(folders(tmp_path, "cat", "dog"), 0, labelled("0", "1"))
    assert "classes are numbered in the order of their names (cat 0, dog 1)" in caplog.text


def test_class_numbers_stay_with_a_bundle_that_has_names(tmp_path, labelled):
    x = np.arange(12, dtype=np.uint8)[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(12) % 3)
    data = load(DataSpec(source="npz", path=str(tmp_path / "a.npz")), 0, labelled("cat", "dog", "bird"))
    assert data.labels == ("cat", "dog", "bird")
    assert np.array_equal(data.train_y, data.train_x[:, 0] % 3)
