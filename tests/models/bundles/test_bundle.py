import hashlib
import io
import zipfile

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import manifest as manifests
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import (
    Bundle,
    find_bundle,
    pack,
    shipped_folder,
    shipped_names,
    unpack,
    write,
)
from device_runtime.models.bundles.manifest import Parameter
from device_runtime.models.errors import BundleError


def test_shipped_bundle_is_found_by_name_and_by_path(digits):
    assert "digits-wrn-10-1" in shipped_names()
    assert find_bundle("digits-wrn-10-1") == digits.path
    assert find_bundle(digits.path) == digits.path
    with pytest.raises(BundleError, match=r"nowhere is neither a bundle .* \(digits-wrn-10-1\)"):
        find_bundle("nowhere")
    with pytest.raises(BundleError, match="no bundle 'nowhere'"):
        shipped_folder("nowhere")


def test_folder_and_zip_are_the_same_bundle(digits, tmp_path):
    data = pack(digits.path)
    (tmp_path / "digits.zip").write_bytes(data)
    zipped = Bundle.open(tmp_path / "digits.zip")
    unpacked = unpack(data, tmp_path / "unpacked")
    assert zipped.sha256 == unpacked.sha256 == digits.sha256 == hashlib.sha256(data).hexdigest()
    assert zipped.graph("forward") == digits.graph("forward")
    assert zipped.weights().keys() == digits.weights().keys()
    assert find_bundle(tmp_path / "digits.zip") == tmp_path / "digits.zip"


def test_strangers_in_the_folder_do_not_change_the_hash(digits, copied):
    (copied / "notes.txt").write_text("mine")
    assert Bundle.open(copied).sha256 == digits.sha256


def test_damaged_graph_is_refused_with_both_hashes(copied, digits):
    graph = bytearray((copied / "forward.onnx").read_bytes())
    graph[100] ^= 1
    (copied / "forward.onnx").write_bytes(graph)
    digest = hashlib.sha256(graph).hexdigest()[:8]
    stated = digits.manifest.graphs["forward"].sha256[:8]
    message = (
        f"forward.onnx of bundle digits-wrn-10-1 is damaged: sha256 is {digest}.., "
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
    assert not (tmp_path / "b").exists()


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


def flipped(data: bytes, position: int, mask: int) -> bytes:
    return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), choice=st.randoms())
def test_a_flipped_byte_in_any_file_of_a_folder_is_refused(digits, tmp_path_factory, where, mask, choice):
    files = {file.name: file.read_bytes() for file in digits.path.iterdir() if file.is_file()}
    name = choice.choice(sorted(files))
    files[name] = flipped(files[name], int(where * len(files[name])), mask)
    folder = tmp_path_factory.mktemp("flipped")
    for file, content in files.items():
        (folder / file).write_bytes(content)
    with pytest.raises(BundleError) as caught:
        Bundle.open(folder)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_flipped_byte_in_the_manifest_is_refused(digits, where, mask):
    data = (digits.path / "manifest.json").read_bytes()
    with pytest.raises(BundleError):
        manifests.decode(flipped(data, int(where * len(data)), mask))


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), at_the_end=st.booleans())
def test_a_zip_with_a_flipped_byte_is_refused_or_the_same_bundle(
    digits, tmp_path_factory, where, mask, at_the_end
):
    """A zip has dates and attributes that nobody reads; the directory at its end is 1 KB of 1 MB."""
    data = digits.packed()
    position = len(data) - 1 - int(where * 1000) if at_the_end else int(where * len(data))
    path = tmp_path_factory.mktemp("flipped") / "b.zip"
    path.write_bytes(flipped(data, position, mask))
    try:
        opened = Bundle.open(path)
    except BundleError as error:
        assert "\n" not in str(error)
    else:
        assert opened.sha256 == digits.sha256


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_zip_is_refused(digits, tmp_path_factory, share):
    data = digits.packed()
    path = tmp_path_factory.mktemp("cut") / "b.zip"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(BundleError, match="not a sound zip"):
        Bundle.open(path)


def test_a_zip_that_writes_beside_its_folder_is_refused_and_writes_nothing(digits, tmp_path):
    out = io.BytesIO(digits.packed())
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("../evil.onnx", b"x")
    with pytest.raises(BundleError, match=r"'\.\./evil\.onnx'"):
        unpack(out.getvalue(), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_weights_of_another_dtype_or_not_finite_are_refused(digits, tmp_path):
    graphs = {name: digits.graph(name) for name in digits.manifest.graphs}
    for bias, message in (
        (np.zeros(10), "head.bias is float64"),
        (np.full(10, np.nan, np.float32), "10 non-"),
    ):
        weights = digits.weights() | {"head.bias": bias}
        with pytest.raises(BundleError, match=message):
            write(tmp_path / "b", digits.manifest, weights, graphs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train.most", "loss", "../x"])
def test_graph_of_an_unknown_name_is_refused(digits, copied, name):
    graphs = digits.manifest.graphs | {name: digits.manifest.graphs["forward"]}
    with pytest.raises(BundleError, match=r"occurs twice|is none of forward, loss.all"):
        Bundle.open(rewritten(copied, digits, graphs=graphs))


def test_graph_that_leaves_out_a_parameter_of_its_set_is_refused(digits, copied):
    graph = msgspec.structs.replace(digits.manifest.graphs["train.head"], trainable=("head.weight",))
    graphs = digits.manifest.graphs | {"train.head": graph}
    with pytest.raises(BundleError, match=r"graph train.head and its tunable set differ in head.bias"):
        Bundle.open(rewritten(copied, digits, graphs=graphs))


def test_what_occurs_twice_is_refused(digits, copied):
    manifest = digits.manifest
    labels = (*manifest.labels[:-1], manifest.labels[0])
    with pytest.raises(BundleError, match="label '0' occurs twice"):
        Bundle.open(rewritten(copied, digits, labels=labels))
    with pytest.raises(BundleError, match=r"parameter 'conv1.weight' occurs twice"):
        Bundle.open(rewritten(copied, digits, parameters=(manifest.parameters[0], *manifest.parameters)))


def test_a_file_where_the_folder_should_be_is_a_bundle_error(digits, tmp_path):
    (tmp_path / "b").write_text("mine")
    graphs = {name: digits.graph(name) for name in digits.manifest.graphs}
    with pytest.raises(BundleError, match="cannot be written"):
        write(tmp_path / "b", digits.manifest, digits.weights(), graphs)
    assert (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred"])
def test_a_name_that_would_spoil_a_terminal_is_refused(digits, copied, name):
    with pytest.raises(BundleError, match="expected printable characters"):
        Bundle.open(rewritten(copied, digits, labels=(name, *digits.manifest.labels[1:])))


def test_feature_maps_without_a_shape_are_refused(digits, copied):
    graph = msgspec.structs.replace(digits.manifest.graphs["forward"], file="other.onnx")
    (copied / "other.onnx").write_bytes(digits.graph("forward"))
    with pytest.raises(BundleError, match=r"graph features.low has no shape; features has head"):
        Bundle.open(rewritten(copied, digits, graphs=digits.manifest.graphs | {"features.low": graph}))


def test_statistics_that_are_indices_or_come_twice_are_refused(digits, copied):
    index = Parameter("index", (2,), "int64", "low", ())
    for statistics, message in (
        (("index",), "train.all has index of int64 as a statistic"),
        (("mean", "mean"), "statistic 'mean' occurs twice"),
    ):
        mean = Parameter("mean", (2,), "float32", "low", ())
        graph = msgspec.structs.replace(digits.manifest.graphs["train.all"], statistics=statistics)
        graphs = digits.manifest.graphs | {"train.all": graph}
        with pytest.raises(BundleError, match=message):
            Bundle.open(
                rewritten(
                    copied, digits, graphs=graphs, parameters=(*digits.manifest.parameters, index, mean)
                )
            )
