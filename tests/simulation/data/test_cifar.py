import numpy as np
import pytest

from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.errors import DataSetError


def record(label_bytes, red, green, blue):
    """One image of one colour, but for its first pixel, which is 1, 2, 3."""
    planes = [bytes([first]) + bytes([value]) * 1023 for first, value in ((1, red), (2, green), (3, blue))]
    return bytes(label_bytes) + b"".join(planes)


@pytest.fixture
def ten(tmp_path):
    for number in range(1, 6):
        data = record([number], 10 * number, 0, 255) + record([9], 7, 8, 9)
        (tmp_path / f"data_batch_{number}.bin").write_bytes(data)
    (tmp_path / "test_batch.bin").write_bytes(record([0], 1, 1, 1))
    return tmp_path


@pytest.fixture
def hundred(tmp_path):
    (tmp_path / "train.bin").write_bytes(record([19, 99], 1, 2, 3) + record([4, 30], 1, 2, 3))
    (tmp_path / "test.bin").write_bytes(record([0, 1], 1, 2, 3))
    return tmp_path


def test_cifar10_batches_come_in_their_order_with_planes_of_colour(ten):
    data = load(DataSpec(source="cifar10", path=str(ten)), 0)
    assert (data.train_x.shape, data.train_x.dtype) == ((10, 3, 32, 32), np.uint8)
    assert data.train_y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert data.train_x[2, :, 0, 0].tolist() == [1, 2, 3]
    assert data.train_x[2, :, 31, 31].tolist() == [20, 0, 255]
    assert data.train_x[2, :, 0, 1].tolist() == [20, 0, 255]
    assert (data.test_x.shape, data.test_y.tolist()) == ((1, 3, 32, 32), [0])
    assert data.labels[:2] == ("airplane", "automobile")


def test_the_folder_around_the_batches_will_do(ten):
    inner = ten / "cifar-10-batches-bin"
    inner.mkdir()
    for file in list(ten.glob("*.bin")):
        file.rename(inner / file.name)
    assert len(load(DataSpec(source="cifar10", path=str(ten)), 0).train_y) == 10


def test_names_are_read_where_they_are(ten):
    (ten / "batches.meta.txt").write_text("\n".join(f"name{n}" for n in range(10)) + "\n\n")
    assert load(DataSpec(source="cifar10", path=str(ten)), 0).labels[9] == "name9"


def test_cifar100_has_fine_or_coarse_labels(hundred):
    fine = load(DataSpec(source="cifar100", path=str(hundred)), 0)
    assert (fine.train_y.tolist(), fine.test_y.tolist(), len(fine.labels)) == ([99, 30], [1], 100)
    coarse = load(DataSpec(source="cifar100", path=str(hundred), coarse=True), 0)
    assert (coarse.train_y.tolist(), coarse.test_y.tolist(), len(coarse.labels)) == ([19, 4], [0], 20)


def test_a_cut_file_is_named_with_its_size(ten):
    file = ten / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataSetError, match=r"data_batch_3\.bin has 6145 bytes, expected a multiple of 3073"):
        load(DataSpec(source="cifar10", path=str(ten)), 0)


def test_missing_files_and_wrong_labels_are_said(ten, tmp_path):
    (ten / "test_batch.bin").write_bytes(record([10], 1, 1, 1))
    with pytest.raises(DataSetError, match="test label 10, expected 0 to 9"):
        load(DataSpec(source="cifar10", path=str(ten)), 0)
    (ten / "test_batch.bin").unlink()
    with pytest.raises(DataSetError, match=r"test_batch\.bin cannot be read"):
        load(DataSpec(source="cifar10", path=str(ten)), 0)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataSetError, match=r"has no data_batch_1\.bin"):
        load(DataSpec(source="cifar10", path=str(empty)), 0)
