"""Narrower parts in a bundle's folder: no weights of their own, and bundles like any other once opened."""

import shutil

import numpy as np
import pytest

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import PARTS, WEIGHTS, Bundle, shipped_folder, write_part
from device_runtime.models.errors import BundleError, TensorError

NAME = "digits-wrn-10-1"


@pytest.fixture
def copy(tmp_path):
    """A copy of the shipped bundle, which has one part."""
    return Bundle.open(shutil.copytree(shipped_folder(NAME), tmp_path / "digits"))


def test_a_part_has_the_leading_values_of_the_main_weights_and_no_file_of_them(copy):
    [part] = copy.parts().values()
    assert part.manifest.name == "width-0.5"
    assert not (part.path / WEIGHTS).exists()
    main, narrow = copy.weights(), part.weights()
    assert narrow["head.weight"].shape == (10, 32) and main["head.weight"].shape == (10, 64)
    for name, value in narrow.items():
        np.testing.assert_array_equal(value, main[name][tuple(slice(size) for size in value.shape)])


def test_a_part_that_is_packed_holds_its_weights_and_can_be_sent_to_devices(copy, tmp_path):
    [part] = copy.parts().values()
    unpacked = bundles.unpack(part.packed(), tmp_path / "device")
    assert unpacked.sha256 == part.sha256
    assert tensors.encode(unpacked.weights()) == tensors.encode(part.weights())


def test_parts_leave_the_bundle_itself_as_it_is(copy):
    whole = copy.sha256
    shutil.rmtree(copy.path / PARTS)
    assert Bundle.open(copy.path).sha256 == whole
    assert Bundle.open(copy.path).parts() == {}


def test_a_wider_network_is_no_part(copy, tmp_path):
    [part] = copy.parts().values()
    narrow = bundles.unpack(part.packed(), tmp_path / "narrow")
    with pytest.raises(TensorError, match=r"digits-wrn-10-1 is not a narrower width-0\.5"):
        write_part(narrow, copy)


def test_a_bundle_that_is_written_anew_has_no_parts_of_the_one_before(copy):
    graphs = {name: copy.graph(name) for name in copy.manifest.graphs}
    written = bundles.write(copy.path, copy.manifest, copy.weights(), graphs)
    assert written.parts() == {}


def test_a_part_with_a_damaged_graph_is_refused(copy):
    [part] = copy.parts().values()
    (part.path / "train.all.onnx").write_bytes(b"damaged")
    with pytest.raises(BundleError, match=r"train\.all\.onnx of bundle width-0\.5 is damaged"):
        copy.parts()
