import numpy as np
import pytest
from PIL import Image

from device_runtime.simulation.partition import dirichlet, iid
from device_runtime.simulation.partition.figures import draw, shape


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "labels"), [(1, 2), (8, 10), (50, 100), (51, 10), (300, 100), (300, 1)])
def test_few_and_many_clients_and_classes_make_a_picture(tmp_path, devices, labels):
    y = np.arange(600) % labels
    parts = dirichlet(y, devices, 0.3, np.random.default_rng(0))
    draw(shape(y, parts, labels), [f"class {n}" for n in range(labels)], "a title", tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
        assert image.width == 1300
        assert len(set(np.asarray(image.convert("L")).ravel().tolist())) > 20  # something is drawn


def test_the_same_partition_is_the_same_picture(tmp_path):
    about = shape(np.arange(60) % 3, iid(60, 6, np.random.default_rng(0)), 3)
    pictures = []
    for name in ("a", "b"):
        draw(about, "xyz", "title", tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "labels"), [(8, 10), (8, 100), (60, 10)])
def test_each_group_of_the_fleet_has_a_colour_of_its_own(tmp_path, devices, labels):
    y = np.arange(600) % labels
    parts = iid(600, devices, np.random.default_rng(0))
    for groups in ([], ["a", "b"] * (devices // 2)):
        draw(shape(y, parts, labels, groups), [str(n) for n in range(labels)], "title", tmp_path / "p.png")
        with Image.open(tmp_path / "p.png") as image:
            pixels = np.asarray(image.convert("RGB"))
        blue, orange = ((pixels == colour).all(-1).any() for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0)))
        assert blue
        assert orange == bool(groups)
