import hashlib

import msgspec
import numpy as np
import pytest

from models import bundle as bundles
from models import manifest as manifests
from models import tensors
from models.bundle import Bundle, find, pack, shipped, shipped_names, unpack, write
from models.errors import BundleError


def test_shipped_bundle_is_found_by_name_and_by_path(digits):
    assert "digits-wrn-10-1" in shipped_names()
    assert find("digits-wrn-10-1") == digits.path
    assert find(digits.path) == digits.path
    with pytest.raises(BundleError, match=r"nowhere is neither a bundle .* \(digits-wrn-10-1\)"):
        find("nowhere")
    with pytest.raises(BundleError, match="no bundle 'nowhere'"):
        shipped("nowhere")


def test_folder_and_zip_are_the_same_bundle(digits, tmp_path):
    data = pack(digits.path)
    (tmp_path / "digits.zip").write_bytes(data)
    zipped = Bundle.open(tmp_path / "digits.zip")
    unpacked = unpack(data, tmp_path / "unpacked")
    assert zipped.sha256 == unpacked.sha256 == digits.sha256 == hashlib.sha256(data).hexdigest()
    assert zipped.graph("forward") == digits.graph("forward")
    assert zipped.weights().keys() == digits.weights().keys()
    assert find(tmp_path / "digits.zip") == tmp_path / "digits.zip"


def test_strangers_in_the_folder_do_not_change_the_hash(digits, copied):
    (copied / "notes.txt").write_text("mine")
    assert Bundle.open(copied).sha256 == digits.sha256


def test_damaged_graph_is_refused_with_both_hashes(copied, digits):
    graph = bytearray((copied / "forward.onnx").read_bytes())
    graph[100] ^= 1
    (copied / "forward.onnx").write_bytes(graph)
    found = hashlib.sha256(graph).hexdigest()[:8]
    stated = digits.manifest.graphs["forward"].sha256[:8]
    message = (
        f"forward.onnx of bundle digits-wrn-10-1 is damaged: sha256 is {found}.., "
        f"the manifest says {stated}..; fetch the bundle again"
    )
    with pytest.raises(BundleError) as caught:
        Bundle.open(copied)
    assert str(caught.value) == message


def test_damage_after_opening_is_noticed_too(copied):
    bundle = Bundle.open(copied)
    (copied / "forward.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match="damaged"):
        bundle.graph("forward")


def test_missing_files_are_named(copied, tmp_path):
    (copied / "train.head.onnx").unlink()
    with pytest.raises(BundleError, match=r"train.head.onnx of bundle digits-wrn-10-1 is missing"):
        Bundle.open(copied)
    (copied / "manifest.json").unlink()
    with pytest.raises(BundleError, match=r"it has no manifest.json"):
        Bundle.open(copied)
    with pytest.raises(BundleError, match="does not exist"):
        Bundle.open(tmp_path / "nowhere")


def test_unknown_graph_is_refused_with_those_there_are(digits):
    with pytest.raises(BundleError, match=r"no graph 'train.most'; it has forward, loss.all"):
        digits.graph("train.most")


def rewritten(folder, digits, **changes):
    manifest = msgspec.structs.replace(digits.manifest, **changes)
    (folder / "manifest.json").write_bytes(manifests.encode(manifest))
    return folder


def test_weights_that_do_not_fit_the_parameter_table_are_refused(digits, tmp_path):
    weights = digits.weights()
    weights["head.bias"] = np.zeros(7, np.float32)
    graphs = {name: digits.graph(name) for name in digits.manifest.graphs}
    with pytest.raises(BundleError, match=r"weights.safetensors of bundle .* head.bias is \(7,\), expected"):
        write(tmp_path / "b", digits.manifest, weights, graphs)


def test_graphs_other_than_those_of_the_manifest_are_not_written(digits, tmp_path):
    with pytest.raises(BundleError, match="the manifest lists"):
        write(tmp_path / "b", digits.manifest, digits.weights(), {})
    assert not (tmp_path / "b").exists()


def test_file_names_that_lead_out_of_the_folder_are_refused(digits, copied):
    weights = msgspec.structs.replace(digits.manifest.weights, file="../weights.safetensors")
    with pytest.raises(BundleError, match="expected a plain file name"):
        Bundle.open(rewritten(copied, digits, weights=weights))


def test_head_that_does_not_match_the_labels_is_refused(digits, copied):
    with pytest.raises(BundleError, match=r"head.weight is \(10, 64\), expected \(2, 64\)"):
        Bundle.open(rewritten(copied, digits, labels=("no", "yes")))


def test_graph_that_takes_an_unknown_parameter_is_refused(digits, copied):
    graph = msgspec.structs.replace(digits.manifest.graphs["train.head"], trainable=("ghost",))
    graphs = digits.manifest.graphs | {"train.head": graph}
    with pytest.raises(BundleError, match=r"train.head takes ghost, which is no parameter"):
        Bundle.open(rewritten(copied, digits, graphs=graphs))


def test_written_bundle_is_the_one_that_was_read(digits, tmp_path):
    graphs = {name: digits.graph(name) for name in digits.manifest.graphs}
    again = write(tmp_path / "b", digits.manifest, digits.weights(), graphs)
    assert again.sha256 == digits.sha256
    assert (tmp_path / "b" / bundles.WEIGHTS).read_bytes() == tensors.encode(digits.weights())


def test_whole_bundle_is_small(digits):
    assert len(digits.packed()) < 1_200_000
