import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")

from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.weights import initialisers
from device_runtime.models.engines.onnx_session import SessionSettings, load_session
from device_runtime.models.errors import ExportError, ParityError
from device_runtime.models.export import quantise as torch_quantise
from device_runtime.models.export.graph import external_names
from device_runtime.models.export.quantise import lower_precision


def graph_file(nodes, shapes, x_shape, y_shape, x_type=onnx.TensorProto.FLOAT):
    """A forward graph as an export writes it: the weights of `shapes` lie outside the file."""
    value = onnx.helper.make_tensor_value_info
    weights = []
    for name, shape in shapes.items():
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights")
        weights.append(tensor)
    for number, node in enumerate(nodes):
        node.name = f"n{number}"
    x, y = value("x", x_type, ["n", *x_shape]), value("y", onnx.TensorProto.FLOAT, ["n", *y_shape])
    graph = onnx.helper.make_graph(nodes, "graph", [x], [y], weights)
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def run(lowered, weights, x):
    graph = Graph("f", "", 0, (), 0, 0, 0, frozen=lowered.frozen, derived=lowered.derived)
    loaded = load_session("f", graph, lowered.onnx, initialisers(graph, weights), SessionSettings())
    return loaded.run(["y"], {"x": x})[0]


@pytest.fixture
def linear():
    nodes = [
        onnx.helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "wt"], ["p"]),
        onnx.helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((5, 7), np.float32), "b": rng.standard_normal(5, np.float32)}
    return graph_file(nodes, {"w": (5, 7), "b": (5,)}, [7], [5]), weights


@pytest.fixture
def convolution():
    def make(groups):
        node = onnx.helper.make_node("Conv", ["x", "k", "b"], ["y"], group=groups)
        rng = np.random.default_rng(0)
        shapes = {"k": (4, 4 // groups, 1, 1), "b": (4,)}
        weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        return graph_file([node], shapes, [4, 2, 2], [4, 2, 2]), weights

    return make


def quantised_input(x):
    """DynamicQuantizeLinear: 0 to 255 are the least to the largest of all values and 0."""
    least, largest = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((largest - least) / np.float32(255))
    zero = np.clip(np.round(-least / scale), 0, 255)
    return np.clip(np.round(x / scale) + zero, 0, 255) - zero, scale


def test_linear_layer_in_int8_is_the_integer_product_times_both_scales(linear):
    onnx_file, weights = linear
    x = np.random.default_rng(1).standard_normal((3, 7), np.float32)
    integers, scale = quantised_input(x)
    scales = 2 * np.abs(weights["w"]).max(axis=1) / np.float32(254)  # one for each output
    expected = integers @ np.round(weights["w"] / scales[:, None]).T * (scale * scales) + weights["b"]
    outputs = run(lower_precision(onnx_file, weights, "int8"), weights, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(outputs, x @ weights["w"].T + weights["b"], rtol=1e-5)  # quantised it is


def test_convolution_in_int8_has_uint8_weights_of_one_scale(convolution):
    onnx_file, weights = convolution(1)
    lowered = lower_precision(onnx_file, weights, "int8")
    assert {entry.what for entry in lowered.derived} == {"uint8", "uint8.scale", "uint8.zero_point"}
    x = np.random.default_rng(1).standard_normal((3, 4, 2, 2), np.float32)
    integers, scale = quantised_input(x)
    kernel = weights["k"][:, :, 0, 0]
    step = (kernel.max() - kernel.min()) / np.float32(255)
    zero = np.round(-kernel.min() / step)
    rounded = np.clip(np.round(kernel / step) + zero, 0, 255) - zero
    expected = np.einsum("oi,nihw->nohw", rounded, integers) * scale * step + weights["b"][:, None, None]
    np.testing.assert_allclose(run(lowered, weights, x), expected, rtol=1e-5, atol=1e-6)


def test_grouped_convolution_stays_float32(convolution):
    onnx_file, weights = convolution(2)
    with pytest.raises(ExportError, match="nothing that could be int8"):
        lower_precision(onnx_file, weights, "int8")


def test_other_weights_give_what_export_with_them_would_give(linear):
    onnx_file, weights = linear
    lowered, others = lower_precision(onnx_file, weights, "int8"), {n: 3 * v + 1 for n, v in weights.items()}
    assert lower_precision(onnx_file, others, "int8") == lowered  # no value of a weight is in the file
    x = np.random.default_rng(1).standard_normal((3, 7), np.float32)
    exact = x @ others["w"].T + others["b"]
    np.testing.assert_allclose(run(lowered, others, x), exact, atol=0.03 * np.abs(exact).max())


def test_another_formula_than_the_tools_is_refused(linear, monkeypatch):
    def other(derived, weights):
        return {entry.name: np.zeros(5, np.float32) for entry in derived if entry.what == "int8.scale"}

    monkeypatch.setattr(torch_quantise, "derive", other)
    with pytest.raises(ParityError, match=r"w.T_scale is derived otherwise than by onnxruntime.quantization"):
        lower_precision(*linear, "int8")


def test_float16_weights_are_those_rounded(linear):
    onnx_file, weights = linear
    lowered = lower_precision(onnx_file, weights, "float16")
    assert [(entry.name, entry.what) for entry in lowered.derived] == [("w.T.float16", "float16")]
    assert lowered.frozen == ("b",)
    assert set(external_names(lowered.onnx)) == {"w.T.float16", "b"}
    x = np.random.default_rng(1).standard_normal((3, 7), np.float32)
    expected = x @ weights["w"].astype(np.float16).astype(np.float32).T + weights["b"]
    np.testing.assert_allclose(run(lowered, weights, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["int8", "float16"])
def test_only_the_rows_looked_up_in_a_table_become_float32(precision):
    nodes = [
        onnx.helper.make_node("Gather", ["table", "x"], ["rows"]),
        onnx.helper.make_node("ReduceSum", ["rows"], ["y"], keepdims=1),
    ]
    onnx_file = graph_file(nodes, {"table": (6, 4)}, [], [1], onnx.TensorProto.INT64)
    weights = {"table": np.random.default_rng(0).standard_normal((6, 4), np.float32)}
    lowered = lower_precision(onnx_file, weights, precision)
    operators = [node.op_type for node in onnx.load_from_string(lowered.onnx).graph.node]
    assert operators == ["Gather", "Cast" if precision == "float16" else "DequantizeLinear", "ReduceSum"]
    x = np.array([1, 5, 1])
    np.testing.assert_allclose(run(lowered, weights, x), weights["table"][x].sum(), rtol=0.02)


def test_unknown_precision_is_refused(linear):
    with pytest.raises(ExportError, match="precision is 'int4', expected int8 or float16"):
        lower_precision(*linear, "int4")


def test_the_root_logger_speaks_again_afterwards(linear, caplog):
    import logging

    lower_precision(*linear, "int8")
    logging.getLogger().warning("heard")
    assert [record.message for record in caplog.records] == ["heard"]
