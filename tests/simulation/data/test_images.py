import logging
import struct
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from PIL import Image

from device_runtime.models import data as local_data
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
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
    assert "skipped a damaged picture: 1 (dog/2.png: PNG without a header)" in caplog.text


def test_only_damaged_images_are_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"no")
    with pytest.raises(DataSetError, match="has no readable samples: a damaged picture: 1 .a/1.png"):
        load(spec(tmp_path), 0)


def test_images_are_decoded_once_and_again_when_one_changes(tree, monkeypatch):
    first = load(spec(tree, size=4), 0)
    assert isinstance(first.train_x, np.memmap)
    decode = module.FolderTask._decoded
    monkeypatch.setattr(module.FolderTask, "_decoded", lambda *arguments: pytest.fail("decoded again"))
    assert np.array_equal(load(spec(tree, size=4), 0).train_x, first.train_x)
    monkeypatch.setattr(module.FolderTask, "_decoded", decode)
    picture(tree / "train" / "dog" / "1.png", (9, 9, 9), (7, 7))
    assert (load(spec(tree, size=4), 0).train_x[2] == 9).all()


def test_what_is_missing_is_said(tmp_path, tree):
    with pytest.raises(DataSetError, match="a file without a label: it is in no class folder: 1"):
        load(spec(tree / "val" / "dog"), 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataSetError, match="has no pictures: expected a folder of them for each class"):
        load(spec(tmp_path / "empty"), 0)
    picture(tree / "val" / "bird" / "1.png", (0, 0, 0))
    with pytest.raises(DataSetError, match="has the class 'bird', which .*train does not have"):
        load(spec(tree), 0)
    (tmp_path / "only" / "train").mkdir(parents=True)
    with pytest.raises(DataSetError, match="has a folder train, but none of test, val"):
        load(spec(tmp_path / "only"), 0)


def same_on_a_device(root, manifest, **fields):
    """The samples of one tree in a simulation and on a device, sorted; and what either left out."""
    bundle = SimpleNamespace(manifest=manifest, texts=None)
    simulated = load(spec(root, **fields), 0, bundle)
    x = manifest.input.prepare(np.concatenate([simulated.train_x, simulated.test_x]))
    y = np.concatenate([simulated.train_y, simulated.test_y])
    device = local_data.open_samples(root, manifest)
    both = [
        sorted((number, sample.tobytes()) for sample, number in zip(xs, ys.tolist(), strict=True))
        for xs, ys in ((x, y), (device.everything.x, device.everything.y))
    ]
    assert both[0] == both[1]
    return simulated, device


@pytest.fixture
def pets(bundle):
    small = InputSpec((3, 8, 8), 1 / 255, (0.5,), (0.25,))
    return msgspec.structs.replace(bundle.manifest, input=small, labels=("cat", "dog", "caf\u00e9"))


def test_a_corpus_of_photos_gives_a_simulation_what_it_gives_a_device(tmp_path, pets, caplog):
    root = tmp_path / "photos"
    picture(root / "cat" / "1.jpg", (200, 10, 10), (64, 48))
    picture(root / "cat" / "2.JPEG", (100, 10, 10))
    picture(root / "Cat" / "3.bmp", (50, 60, 70))
    picture(root / "dog" / "deep" / "er" / "4.png", (1, 2, 3))
    picture(root / "cafe\u0301" / "5.gif", (9, 9, 9))
    picture(root / "bird" / "6.png", (1, 1, 1))
    picture(root / "dog" / ".hidden.png", (1, 1, 1))
    picture(root / "dog" / "._4.png", (1, 1, 1))
    (root / "dog" / "Thumbs.db").write_bytes(b"x")
    (root / "dog" / "cut.jpg").write_bytes((root / "cat" / "1.jpg").read_bytes()[:400])
    (root / "dog" / "IMG_1.HEIC").write_bytes(b"x")
    (root / "cat" / "really.png").write_bytes((root / "cat" / "2.JPEG").read_bytes())
    (root / "dog" / "link").symlink_to(root / "cat" / "1.jpg")
    (root / "dog" / "linked.png").symlink_to(root / "dog" / "deep" / "er" / "4.png")
    turned = Image.new("RGB", (40, 20), (0, 0, 0))
    turned.paste((250, 250, 250), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 8
    turned.save(root / "cat" / "turned.jpg", exif=exif)
    simulated, device = same_on_a_device(root, pets, test_share=0.3)
    assert simulated.labels == pets.labels
    assert len(device.skipped) == 4
    for skipped in device.skipped:
        assert str(skipped) in caplog.text


def test_a_table_that_lists_pictures_gives_both_the_same(tmp_path, pets):
    root = tmp_path / "listed"
    for number in range(6):
        picture(root / "all" / f"{number}.jpg", (40 * number, 9, 9))
    rows = "".join(f"all/{number}.jpg,{'dog' if number % 2 else 'CAT'}\n" for number in range(6))
    (root / "labels.csv").write_text(f"file,label\n{rows}")
    simulated, _ = same_on_a_device(root, pets, test_share=0.2)
    assert sorted(np.concatenate([simulated.train_y, simulated.test_y]).tolist()) == [0, 0, 0, 1, 1, 1]


def test_numbers_as_targets_of_pictures_are_those_of_a_device(tmp_path, pets):
    root = tmp_path / "ages"
    for number in range(6):
        picture(root / f"{number}.jpg", (40 * number, 9, 9))
    rows = "".join(f"{number}.jpg,{number}.5\n" for number in range(6))
    (root / "ages.csv").write_text(f"file,age\n{rows}")
    target = targets_of("mse", ("age",), columns=("age",), mean=(2.0,), std=(2.0,))
    manifest = msgspec.structs.replace(pets, labels=("age",), loss=target)
    simulated = load(spec(root, test_share=0.2), 0, SimpleNamespace(manifest=manifest, texts=None))
    ages = np.concatenate([simulated.train_y, simulated.test_y])
    assert sorted(ages[:, 0].tolist()) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    device = local_data.open_samples(root, manifest)
    assert np.allclose(np.sort(device.everything.y[:, 0]), np.sort(target.prepare(ages)[:, 0]))


def test_grey_and_other_ranges_are_as_the_bundle_takes_them(tmp_path, bundle):
    for number in range(4):
        picture(tmp_path / "digits" / str(number) / "a.png", (60 * number,) * 3)
    simulated, _ = same_on_a_device(tmp_path / "digits", bundle.manifest)
    assert simulated.train_x.shape[1:] == (1, 8, 8)
    assert simulated.train_x.max() <= 16
    with pytest.raises(
        DataSetError, match="size is 64, and bundle digits-wrn-10-1 takes 1x8x8: leave it out"
    ):
        load(spec(tmp_path / "digits", size=64), 0, SimpleNamespace(manifest=bundle.manifest, texts=None))


@pytest.mark.parametrize("level, place", [(1, "{client}/{label}/{n}.png"), (2, "{label}/{client}/{n}.png")])
def test_folders_of_a_level_are_clients(tmp_path, pets, level, place):
    owners = {"ann": ("cat", 6), "bob": ("dog", 5), "cy": ("cat", 4)}
    for client, (label, count) in owners.items():
        for n in range(count):
            path = tmp_path / place.format(client=client, label=label, n=n)
            picture(path, ({"ann": 50, "bob": 100, "cy": 150}[client], n, 0))
    for bundle_ in (None, SimpleNamespace(manifest=pets, texts=None)):
        data = load(spec(tmp_path, client_level=level, partition="natural", test_share=0.2), 0, bundle_)
        reds = data.train_x[:, 0].reshape(len(data.train_x), -1)[:, 0]
        assert {(int(red) // 50 - 1, group) for red, group in zip(reds, data.groups, strict=True)} == {
            (0, 0), (1, 1), (2, 2),
        }  # fmt: skip
        assert data.labels == (("cat", "dog") if bundle_ is None else pets.labels)


def test_a_level_of_clients_is_for_pictures(tmp_path):
    with pytest.raises(ValueError, match="client_level is 1: it is for images, not npz"):
        DataSpec(source="npz", path="a", client_level=1)
    picture(tmp_path / "1.png", (1, 1, 1))
    with pytest.raises(DataSetError, match="has no folders, expected one for each client"):
        load(spec(tmp_path, client_level=1), 0)


def test_classes_without_a_bundle_do_not_differ_by_case_or_accents(tmp_path):
    for number, name in enumerate(("Cat", "cat", "caf\u00e9", "cafe\u0301")):
        picture(tmp_path / name / f"{number}.png", (number, 0, 0))
    data = load(spec(tmp_path), 0)
    assert data.labels == ("Cat", "cafe\u0301")


@pytest.mark.parametrize("column, name", [("client", ""), ("taken by", "taken by")])
def test_a_table_that_lists_pictures_may_name_their_clients(tmp_path, pets, column, name):
    for number in range(9):
        picture(tmp_path / "all" / f"{number}.jpg", (20 * number, 9, 9))
    rows = "".join(f"all/{n}.jpg,{('cat', 'dog')[n % 2]},{('zoe', 'ann', 'bo')[n % 3]}\n" for n in range(9))
    (tmp_path / "list.csv").write_text(f"file,label,{column}\n{rows}")
    bundle_ = SimpleNamespace(manifest=pets, texts=None)
    data = load(spec(tmp_path, client_column=name, partition="natural", test_share=0.2), 0, bundle_)
    numbers = np.rint(data.train_x[:, 0, 4, 4] / 20).astype(int)
    assert (data.groups == np.array([2, 0, 1])[numbers % 3]).all()
    assert (data.train_y == numbers % 2).all()


def test_sounds_may_have_numbers_as_targets(tmp_path, bundle):
    def wav(level):
        body = (level * np.sin(np.arange(16_000) / 8)).astype("<i2").tobytes()
        form = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)
        head = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(body))
        return b"RIFF" + struct.pack("<I", len(head) + len(body)) + head + body

    for number in range(5):
        (tmp_path / f"{number}.wav").write_bytes(wav(1000 * (number + 1)))
    rows = "".join(f"{number}.wav,{number}.5,{-number}\n" for number in range(5))
    (tmp_path / "loud.csv").write_text(f"file,level,depth\n{rows}")
    columns = ("depth", "level")
    target = targets_of("mae", columns, columns=columns, mean=(1.0, 2.0), std=(1.0, 2.0))
    sounds = InputSpec((1, 61, 40), 1 / 255)
    manifest = msgspec.structs.replace(bundle.manifest, input=sounds, labels=columns, loss=target)
    data = load(spec(tmp_path, test_share=0.2), 0, SimpleNamespace(manifest=manifest, texts=None))
    assert data.labels == columns
    ordered = np.concatenate([data.train_y, data.test_y])
    assert sorted(ordered.tolist()) == [[-n, n + 0.5] for n in range(4, -1, -1)]
    device = local_data.open_samples(tmp_path, manifest)
    assert sorted(target.restore(device.training.y)[:, 1].tolist()) == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_no_folder_called_by_a_number_counts_if_one_is_beyond_the_classes(tmp_path, bundle):
    manifest = msgspec.structs.replace(bundle.manifest, labels=("cat", "dog"))
    for folder in ("1", "2", "dog"):
        for number in range(2):
            picture(tmp_path / "in" / folder / f"{number}.png", (number, 0, 0))
    task = SimpleNamespace(manifest=manifest, texts=None)
    samples = local_data.LocalSamples(local_data.SampleSource(tmp_path / "in"), manifest)
    samples.refresh()
    data = load(spec(tmp_path / "in"), 0, task)
    assert samples.training.y.tolist() == [1, 1] == [*data.train_y, *data.test_y]
    assert [group.count for group in samples.skipped] == [4]
    (tmp_path / "in" / "labels.toml").write_text('[labels]\n1 = "cat"\n2 = "dog"\n')
    data = load(spec(tmp_path / "in"), 0, task)
    assert sorted([*data.train_y, *data.test_y]) == [0, 0, 1, 1, 1, 1]
