import logging

import numpy as np
import pytest
from PIL import Image

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.data import images as module
from device_runtime.simulation.errors import DataSetError


def picture(path, colour, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def spec(path, **fields):
    return DataSpec(source="images", path=str(path), **fields)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "pets"
    picture(root / "train" / "dog" / "1.png", (255, 0, 0))
    picture(root / "train" / "cat" / "1.png", (0, 255, 0))
    picture(root / "train" / "cat" / "deep" / "2.JPG", (0, 0, 255), (9, 30))
    picture(root / "val" / "dog" / "3.bmp", (1, 2, 3))
    (root / "train" / "cat" / "notes.txt").write_text("not an image, and not taken for one")
    return root


def test_classes_are_the_sorted_folders_and_images_have_the_size_asked_for(tree):
    data = load(spec(tree, size=4), 0)
    assert data.labels == ("cat", "dog")
    assert (data.train_x.shape, data.train_x.dtype) == ((3, 3, 4, 4), np.uint8)
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 0, 1], [1])
    assert data.train_x[0, :, 0, 0].tolist() == [0, 255, 0]
    assert data.test_x[0, :, 3, 3].tolist() == [1, 2, 3]


def test_folders_that_are_named_by_numbers_are_in_the_order_of_the_numbers(tmp_path):
    for part in ("train", "test"):
        for number in (0, 2, 10):
            picture(tmp_path / part / str(number) / "1.png", (number, 0, 0))
    data = load(spec(tmp_path, size=4), 0)
    assert data.labels == ("0", "2", "10")
    assert data.train_x[data.train_y.argsort(), 0, 0, 0].tolist() == [0, 2, 10]


def test_the_middle_is_cut_out(tmp_path):
    strip = Image.new("RGB", (12, 4), (0, 0, 0))
    strip.paste((200, 200, 200), (4, 0, 8, 4))
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        strip.save(tmp_path / part / "a" / "1.png")
    assert (load(spec(tmp_path, size=4), 0).train_x == 200).all()


def test_one_tree_is_split(tmp_path):
    for number in range(10):
        picture(tmp_path / "ab"[number % 2] / f"{number}.png", (number, 0, 0))
    data = load(spec(tmp_path, size=2, test_share=0.2), 0)
    assert (len(data.train_y), len(data.test_y)) == (8, 2)
    reds = np.concatenate([data.train_x, data.test_x])[:, 0, 0, 0]
    assert sorted(reds.tolist()) == list(range(10))
    assert (data.train_x[:, 0, 0, 0] % 2 == data.train_y).all()


def test_a_damaged_image_is_left_out_and_counted(tree, caplog):
    (tree / "train" / "dog" / "2.png").write_bytes(b"\x89PNG broken")
    with caplog.at_level(logging.WARNING):
        data = load(spec(tree, size=4), 0)
    assert data.train_y.tolist() == [0, 0, 1]
    assert "skipped 1 of 4 images" in caplog.text
    assert "2.png" in caplog.text


def test_only_damaged_images_are_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"no")
    with pytest.raises(DataSetError, match="none of 1 images of .* can be read: 1.png"):
        load(spec(tmp_path), 0)


def test_images_are_decoded_once_and_again_when_one_changes(tree, monkeypatch):
    first = load(spec(tree, size=4), 0)
    assert isinstance(first.train_x, np.memmap)
    decode = module._decoded
    monkeypatch.setattr(module, "_decoded", lambda *given: pytest.fail("decoded again"))
    assert np.array_equal(load(spec(tree, size=4), 0).train_x, first.train_x)
    monkeypatch.setattr(module, "_decoded", decode)
    picture(tree / "train" / "dog" / "1.png", (9, 9, 9), (7, 7))
    assert (load(spec(tree, size=4), 0).train_x[2] == 9).all()


def test_what_is_missing_is_said(tmp_path, tree):
    with pytest.raises(DataSetError, match="has no folders, expected one for each class"):
        load(spec(tree / "val" / "dog"), 0)
    picture(tree / "val" / "bird" / "1.png", (0, 0, 0))
    with pytest.raises(DataSetError, match="has the class 'bird', which .*train does not have"):
        load(spec(tree), 0)
    (tmp_path / "only" / "train").mkdir(parents=True)
    with pytest.raises(DataSetError, match="has a folder train, but none of test, val"):
        load(spec(tmp_path / "only"), 0)
