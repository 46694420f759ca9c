import pytest

onnx = pytest.importorskip("onnx")

from device_runtime.models.errors import ExportError
from device_runtime.models.export.graph_cost import graph_cost

FLOAT = onnx.TensorProto.FLOAT


def graph(nodes, x_shape, outputs, constants=()) -> bytes:
    values = [onnx.helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs]
    initializers = [
        onnx.helper.make_tensor(name, FLOAT if kind == "f" else onnx.TensorProto.INT64, shape, data)
        for name, kind, shape, data in constants
    ]
    x = onnx.helper.make_tensor_value_info("x", FLOAT, x_shape)
    onnx_graph = onnx.helper.make_graph(
        [onnx.helper.make_node(*node[:3], **node[3]) for node in nodes], "g", [x], values, initializers
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(onnx_graph, opset_imports=opset, ir_version=10).SerializeToString()


def test_convolution_counts_two_for_each_multiplication():
    """3 -> 5 channels, 3x3, on 8x6 with padding; then a ReLU that overwrites its input."""
    data = graph(
        [
            ("Conv", ["x", "w"], ["a"], {"pads": [1, 1, 1, 1]}),
            ("Relu", ["a"], ["y"], {}),
        ],
        ["n", 3, 8, 6],
        [("y", ["n", 5, 8, 6])],
        [("w", "f", [5, 3, 3, 3], [0.0] * 135)],
    )
    work = graph_cost(data)
    assert work.flops == 2 * 5 * 8 * 6 * 27 + 5 * 8 * 6
    assert work.bytes_per_sample == 4 * 5 * 8 * 6
    assert work.fixed_bytes == 0


def test_peak_is_where_most_values_wait_at_once():
    """a (10) waits for c while b (20) is made and read: 10 + 20 + 10 values; the reshape costs nothing."""
    data = graph(
        [
            ("Relu", ["x"], ["a"], {}),
            ("MatMul", ["a", "w"], ["b"], {}),
            ("MatMul", ["b", "v"], ["c"], {}),
            ("Reshape", ["c", "shape"], ["d"], {}),
            ("Add", ["d", "a"], ["y"], {}),
        ],
        ["n", 10],
        [("y", ["n", 10])],
        [
            ("w", "f", [10, 20], [0.0] * 200),
            ("v", "f", [20, 10], [0.0] * 200),
            ("shape", "i", [2], [-1, 10]),
        ],
    )
    work = graph_cost(data)
    assert work.bytes_per_sample == 4 * 40
    assert work.flops == 10 + 2 * 200 + 2 * 200 + 10


def test_reshaped_values_are_counted_once():
    """b (20) and what is made of it (10); its reshape is the same memory."""
    data = graph(
        [
            ("MatMul", ["x", "w"], ["b"], {}),
            ("Reshape", ["b", "shape"], ["d"], {}),
            ("MatMul", ["d", "v"], ["y"], {}),
        ],
        ["n", 10],
        [("y", ["n", 10])],
        [
            ("w", "f", [10, 20], [0.0] * 200),
            ("v", "f", [20, 10], [0.0] * 200),
            ("shape", "i", [2], [-1, 20]),
        ],
    )
    assert graph_cost(data).bytes_per_sample == 4 * 30


def test_what_does_not_grow_with_the_batch_is_fixed():
    data = graph(
        [("Relu", ["w"], ["big"], {}), ("MatMul", ["x", "big"], ["y"], {})],
        ["n", 10],
        [("y", ["n", 3])],
        [("w", "f", [10, 3], [0.0] * 30)],
    )
    work = graph_cost(data)
    assert work.fixed_bytes == 4 * 30
    assert work.bytes_per_sample == 4 * 3


def test_shape_that_depends_on_values_is_refused():
    data = graph(
        [("NonZero", ["x"], ["i"], {}), ("Cast", ["i"], ["y"], {"to": FLOAT})], ["n", 2], [("y", None)]
    )
    with pytest.raises(ExportError, match="NonZero gives values whose number does not follow from the batch"):
        graph_cost(data)


def test_forward_work_of_the_shipped_bundle_is_that_of_its_convolutions(digits):
    """Convolutions and the head by hand; the rest is elementwise, under a tenth."""
    areas = {"group1": 64, "group2": 16, "group3": 4, "conv1": 64}
    by_hand = sum(
        2 * p.spec.size * areas[p.name.split(".")[0]] for p in digits.manifest.parameters if len(p.shape) == 4
    )
    by_hand += 2 * 640
    flops = digits.manifest.graphs["forward"].flops
    assert by_hand < flops < 1.1 * by_hand
