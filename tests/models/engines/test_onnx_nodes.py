import pytest

onnx = pytest.importorskip("onnx")

from device_runtime.models.engines.onnx_nodes import nodes, read_node, renamed_node, write_node

ATTRIBUTES = {"axis": -1, "alpha": 0.25, "pads": (0, 1, -2), "params": (0.0, 6.0), "activation": "Relu"}


def test_operators_are_written_as_the_onnx_package_reads_them():
    written = onnx.NodeProto.FromString(write_node("Op", ["a", ""], ["b"], ATTRIBUTES, "com.example"))
    assert (written.op_type, written.domain) == ("Op", "com.example")
    assert (list(written.input), list(written.output)) == (["a", ""], ["b"])
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in written.attribute}
    assert attributes == {**ATTRIBUTES, "pads": [0, 1, -2], "params": [0.0, 6.0], "activation": b"Relu"}


def test_numbers_come_back_from_what_was_written():
    node = read_node(write_node("Op", ["a"], ["b", "c"], ATTRIBUTES))
    assert (node.kind, node.inputs, node.outputs) == ("Op", ("a",), ("b", "c"))
    assert {name: node.attributes[name] for name in ("axis", "alpha", "pads")} == {
        "axis": -1,
        "alpha": 0.25,
        "pads": (0, 1, -2),
    }


def test_values_get_new_names_and_the_rest_stays():
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    node = onnx.helper.make_node("Op", ["a", "b"], ["c"], name="n", doc_string="text", value=tensor, axis=3)
    renamed = onnx.NodeProto.FromString(renamed_node(node.SerializeToString(), {"a": "x", "c": "z"}))
    assert (list(renamed.input), list(renamed.output)) == (["x", "b"], ["z"])
    assert (renamed.name, renamed.doc_string) == ("n", "")
    assert list(renamed.attribute) == list(node.attribute)


def test_a_model_without_operators_has_none():
    graph = onnx.helper.make_graph([], "g", [], [])
    assert nodes(onnx.helper.make_model(graph).SerializeToString()) == []
