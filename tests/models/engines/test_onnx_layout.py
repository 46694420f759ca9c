import numpy as np
import pytest

from device_runtime.models.engines.onnx_layout import CandidateValue, Initialiser, float_initialisers, values
from device_runtime.models.engines.onnx_nodes import Node, nodes, write_node

NORM = Node(
    "BatchNormalization",
    ("c", "gain", "offset", "mean", "variance"),
    ("n",),
    encoded=write_node("", (), (), {"epsilon": 0.25}),
)
CONV = Node("Conv", ("x", "kernel", "bias"), ("c",))
GRAPH = [CONV, NORM]
NAMES = ("kernel", "bias", "gain", "offset", "mean", "variance", "head")


@pytest.fixture
def tensors():
    rng = np.random.default_rng(2)
    shapes = {"kernel": (12, 5, 3, 3), "head": (4, 12)} | dict.fromkeys(NAMES[1:-1], (12,))
    return {name: 0.5 + rng.random(shape, np.float32) for name, shape in shapes.items()}


def place_of(initialiser: Initialiser, tensors):
    """The names of what lies in the initialiser, and how it is written anew."""
    total = float(initialiser[1].sum(dtype=np.float64))
    ways = (CandidateValue.of(value, tensors).placed(initialiser, total) for value in values(GRAPH, NAMES))
    return next((way for way in ways if way is not None), None)


def written(place, tensors, size):
    into = np.zeros(size, np.float32)
    place.write(place.value.of(tensors), into)
    return into


@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize("inner", [False, True])
def test_kernels_lie_in_blocks_of_channels(tensors, block, inner):
    outs, ins = -(-12 // block) * block, -(-5 // block) * block if inner else 5
    content = np.zeros(
        (outs // block, ins // (block if inner else 1), 3, 3, block if inner else 1, block), "f"
    )
    for o, i, y, x in np.ndindex(12, 5, 3, 3):
        within = (i // block, y, x, i % block) if inner else (i, y, x, 0)
        content[(o // block, *within, o % block)] = tensors["kernel"][o, i, y, x]
    place = place_of(((outs, ins, 3, 3), content.ravel()), tensors)
    assert place.value.sources == ("kernel",)
    np.testing.assert_array_equal(written(place, tensors, content.size), content.ravel())


def test_normalisations_are_folded_into_kernels_and_biases(tensors):
    t = {name: value.astype(np.float64) for name, value in tensors.items()}
    scale = t["gain"] / np.sqrt(t["variance"] + 0.25)
    values = {
        ("kernel", "gain", "variance"): t["kernel"] * scale[:, None, None, None],
        ("gain", "variance"): scale,
        ("gain", "offset", "mean", "variance"): t["offset"] - t["mean"] * scale,
        ("bias", "gain", "offset", "mean", "variance"): (t["bias"] - t["mean"]) * scale + t["offset"],
        ("head",): t["head"].T,
    }
    for sources, value in values.items():
        content = np.concatenate([value.ravel(), np.zeros(4)]).astype(np.float32)
        place = place_of(((*value.shape,), content), tensors)
        assert place.value.sources == sources
        np.testing.assert_allclose(written(place, tensors, content.size), content, rtol=1e-5, atol=1e-6)


def test_what_is_made_in_no_known_way_is_not_placed(tensors):
    assert place_of(((12,), np.sqrt(tensors["gain"])), tensors) is None
    assert place_of(((12,), tensors["gain"][::-1].copy()), tensors) is None  # the same sum


def test_nodes_and_initialisers_are_read_as_the_onnx_package_reads_them(digits):
    onnx = pytest.importorskip("onnx")
    data = digits.graph("loss.all")
    graph = onnx.load_from_string(data).graph
    read = nodes(data)
    assert [(n.kind, n.inputs, n.outputs) for n in read] == [
        (n.op_type, tuple(n.input), tuple(n.output)) for n in graph.node
    ]
    for node, original in zip(read, graph.node, strict=True):
        for attribute in original.attribute:
            if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT):
                assert node.attributes[attribute.name] == onnx.helper.get_attribute_value(attribute)
            elif attribute.type == onnx.AttributeProto.INTS:
                assert node.attributes[attribute.name] == tuple(attribute.ints)
    inside = onnx.helper.make_tensor("w", 1, (2, 3), np.arange(6, dtype="f").tobytes(), raw=True)
    other = onnx.helper.make_tensor("i", 7, (1,), np.arange(1).tobytes(), raw=True)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [inside, other]))
    shape, content = float_initialisers(model.SerializeToString())["w"]
    assert shape == (2, 3) and content.tolist() == [0, 1, 2, 3, 4, 5]
    assert list(float_initialisers(model.SerializeToString())) == ["w"]
