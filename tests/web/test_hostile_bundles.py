"""Bundles that lie, are damaged, or would hang or fill a device, soundly offered to a real page."""

import copy
import io
import json
import zipfile

import numpy as np
import pytest

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Contribution
from device_runtime.models.bundles.archive import pack_files

from .hostile import FILES, MANIFEST, AttackedPage, attacked_page, repacked

onnx = pytest.importorskip("onnx", reason="needs pip install 'device-runtime[torch]'")
from onnx import TensorProto, helper

pytestmark = pytest.mark.slow

FORWARD = "forward.onnx"
RENAMED = {"toString" if name == "loss.mid" else name: graph for name, graph in MANIFEST["graphs"].items()}


@pytest.fixture(scope="module")
def attacked(chromium, tmp_path_factory):
    with attacked_page(chromium, tmp_path_factory.mktemp("attacked")) as page:
        page.honest_round()
        yield page


def lie(**changed):
    """The manifest with these paths changed: `graphs__forward__file` is graphs.forward.file."""
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changed.items():
        *before, last = path.split("__")
        place = manifest
        for part in before:
            place = place[int(part) if part.isdigit() else part]
        place[int(last) if last.isdigit() else last] = value
    return {name: manifest[name] for name in {path.split("__")[0] for path in changed}}


def zipped(compression, **files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in (FILES | files).items():
            archive.writestr(name, content)
    return out.getvalue()


def twice():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("manifest.json", FILES["manifest.json"])
        archive.writestr("manifest.json", b"{}")
    return out.getvalue()


def test_a_bundle_that_is_not_what_it_is_named_by_is_refused(attacked: AttackedPage):
    packed = repacked(producer="another")
    damaged = bytes([packed[0] ^ 1]) + packed[1:]
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(packed, damaged)))
    attacked.refused(r"what came as blob [0-9a-f]{12} has another hash: discarded, fetch it anew")
    attacked.until(
        lambda: [line for line in attacked.noted() if "what came as it had another hash twice" in line]
    )
    attacked.honest_round()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: b"no zip at all", r"round 1 left out: archive is not a sound zip"),
        (lambda: zipped(zipfile.ZIP_DEFLATED), r"archive has .* compressed, expected as it is"),
        (
            lambda: zipped(zipfile.ZIP_DEFLATED, **{"a.bin": bytes(40 << 20)}),
            r"compressed, expected as it is",
        ),
        (twice, r'archive has an entry "manifest.json", expected plain names once'),
        (lambda: zipped(zipfile.ZIP_STORED, **{"../../etc/passwd": b"x"}), r"an entry \"../../etc/passwd\""),
        (
            lambda: pack_files({f"f{number}": b"" for number in range(101)}),
            r"has 101 files, at most 100 are read",
        ),
        (lambda: pack_files({"a": b"b"}), r"not a bundle: it has no manifest.json"),
        (lambda: pack_files(FILES | {"manifest.json": b"[" * 100_000}), r"manifest.json is not a manifest"),
        (lambda: pack_files(FILES | {FORWARD: b"other"}), r"forward.onnx of bundle .* is damaged: sha256 is"),
    ],
    ids=["rubbish", "packed", "bomb", "twice", "path", "many", "none", "deep", "damaged"],
)
def test_a_zip_that_is_no_bundle_is_refused(attacked: AttackedPage, content, words):
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(content())))
    attacked.refused(words)


LIES = {
    "head-shape": (lie(parameters__0__shape=[3]), r"weights.safetensors of bundle .* expected \(3,\)"),
    "no-labels": (lie(labels=[]), r"manifest.labels is \[\], expected a list of at least 1"),
    "labels-twice": (lie(labels=["a"] * 10), r"label 'a' occurs twice"),
    "more-labels": (lie(labels=[str(n) for n in range(11)]), r"head parameter .* expected \(11, 64\)"),
    "gigabytes": (lie(parameters__0__shape=[2**31, 2**31]), r"expected \(2147483648, 2147483648\)"),
    "beyond": (lie(parameters__0__shape=[2**53]), r"shape\[0\] is 9007199254740992, expected a whole"),
    "work": (lie(graphs__forward__flops=-1), r"flops is -1, expected a whole number from 0"),
    "path": (lie(weights__file="../../weights"), r"names the file \"../../weights\", expected a plain"),
    "no-forward": (lie(graphs={}), r"lists no graph 'forward'"),
    "strange-graph": (lie(graphs=RENAMED), r"'toString' is none of"),
    "unknown": ({"hook": "alert(1)"}, r"has an unknown field \"hook\""),
    "scale": (lie(input__scale=0), r"scale or std of the input is 0"),
    "bidi": (lie(labels=["\u202e<b>", *MANIFEST["labels"][1:]]), r"names \"\u202e<b>\", expected printable"),
    "format": ({"format": 99}, r"has format 99, this version reads 2: update the page"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(attacked: AttackedPage, lie):
    stated, words = LIES[lie]
    packed = pack_files(FILES | {"manifest.json": json.dumps(MANIFEST | stated | {"seal": ""}).encode()})
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(packed)))
    attacked.refused(words)


def test_a_bundle_without_a_graph_that_it_states_is_refused(attacked: AttackedPage):
    stated = MANIFEST | lie(graphs__forward__file="nowhere.onnx") | {"seal": ""}
    packed = pack_files(FILES | {"manifest.json": json.dumps(stated).encode()})
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(packed)))
    attacked.refused(r"nowhere.onnx of bundle .* is missing")
    attacked.honest_round()


def model(nodes, width=10, initialisers=(), opset=17):
    """x (n, 1, 8, 8) to logits (n, width) and features (n, 64)."""
    shape = ["n", 1, 8, 8]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", width]),
        helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 64]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        outputs,
        list(initialisers),
    )
    model_ = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model_.SerializeToString()


def tensor(name, value):
    return onnx.numpy_helper.from_array(np.asarray(value), name)


FLAT = helper.make_node("Flatten", ["x"], ["flat"])
TEN = [tensor("from", np.array([0])), tensor("to", np.array([10])), tensor("axis", np.array([1]))]
CUT = helper.make_node("Slice", ["features", "from", "to", "axis"], ["logits"])


def bundled(forward):
    graphs = {"forward": MANIFEST["graphs"]["forward"] | {"frozen": []}}
    """A bundle that can do nothing but pass forward, by this graph."""
    blob = blob_of(forward)
    graphs["forward"] |= {"sha256": blob.sha.hex(), "bytes": blob.size}
    stated = MANIFEST | {"graphs": graphs, "seal": ""}
    weights = {"weights.safetensors": FILES["weights.safetensors"]}
    return pack_files(weights | {FORWARD: forward, "manifest.json": json.dumps(stated).encode()})


def outside_of_the_bundle(**entries):
    far = TensorProto(name="far", data_type=TensorProto.FLOAT, dims=[64], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        far.external_data.add(key=key, value=value)
    add = helper.make_node("Add", ["flat", "far"], ["features"])
    return model([FLAT, add, CUT], initialisers=[far, *TEN])


def endless():
    number = helper.make_tensor_value_info("v", TensorProto.FLOAT, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["again"], ["more"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            number,
        ],
        [
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, []),
        ],
    )
    loop = helper.make_node("Loop", ["", "yes", "zero"], ["same"], body=body)
    add = helper.make_node("Add", ["flat", "same"], ["features"])
    return model(
        [FLAT, loop, add, CUT],
        initialisers=[*TEN, tensor("yes", np.array(True)), tensor("zero", np.float32(0))],
    )


def of_gigabytes():
    fill = helper.make_node("ConstantOfShape", ["huge"], ["much"])
    total = helper.make_node("ReduceMax", ["much"], ["most"], keepdims=0)
    add = helper.make_node("Add", ["flat", "most"], ["features"])
    return model([FLAT, fill, total, add, CUT], initialisers=[*TEN, tensor("huge", np.array([2**30]))])


def no_numbers():
    nan = helper.make_node("Add", ["flat", "none"], ["features"])
    return model([FLAT, nan, CUT], initialisers=[*TEN, tensor("none", np.float32("nan"))])


def narrow():
    reshape = helper.make_node("Reshape", ["x", "shape"], ["features"])
    return model([reshape, CUT], initialisers=[*TEN, tensor("shape", np.array([-1, 16]))])


GRAPHS = {
    "garbage": (lambda: b"\x08\x08\xff\xff garbage", r"left out: .*(no number ends|a field ends|no field)"),
    "empty": (lambda: b"", r"round 1 left out: graph forward: a model has no ir_version"),
    "outside": (
        lambda: outside_of_the_bundle(location="../../../etc/passwd"),
        r"initialiser far lies in location ../../../etc/passwd, expected length 256, location weights",
    ),
    "not-given": (
        lambda: outside_of_the_bundle(location="weights", offset="0", length="256"),
        r"graph forward asks for far, which the manifest does not give it",
    ),
    "endless": (endless, r"graph forward: an attribute has a graph within it, which is not allowed"),
    "gigabytes": (of_gigabytes, r"round 1 left out: ONNX Runtime, graph forward"),
    "narrow": (narrow, r"round 1 left out: .*graph forward"),
}


@pytest.mark.parametrize("which", GRAPHS)
def test_a_graph_that_is_garbage_or_would_not_end_is_refused(attacked: AttackedPage, which):
    forward, words = GRAPHS[which]
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(bundled(forward()))))
    attacked.refused(words)
    attacked.honest_round()


def test_of_a_graph_that_gives_no_numbers_nothing_is_sent(attacked: AttackedPage):
    attacked.attack(attacked.offered(bundle=attacked.aggregator.hold(bundled(no_numbers()))))
    attacked.until(
        lambda: [
            line
            for line in attacked.noted()
            if "sitting out: class-means given up: sums has 640 non-finite" in line
        ]
    )
    assert "class-means given up: sums has" in attacked.page.inner_text("#does")
    assert attacked.aggregator.of(Contribution) == []
    attacked.aggregator.offer = None
    attacked.honest_round()
