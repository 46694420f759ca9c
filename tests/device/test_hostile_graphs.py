"""Bundles whose graphs would read files or never end, soundly offered to a device."""

import logging

import pytest

from device_runtime.broker.wire.messages import Kind, encode_settings
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.graph_check import delimited_field, fields, number_field
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans

MODEL_GRAPH, MODEL_FUNCTION = 7, 25
NODE, INITIALISER, SPARSE = 1, 5, 15
EXTERNAL_DATA, DATA_LOCATION = 13, 14
PASSWORDS = "/etc/passwd"


def entry(key, value):
    return delimited_field(
        EXTERNAL_DATA, delimited_field(1, key.encode()) + delimited_field(2, value.encode())
    )


def in_graph(change):
    """Changes each field of the model's graph."""

    def changed(onnx):
        return b"".join(
            delimited_field(MODEL_GRAPH, change(field.content))
            if field.number == MODEL_GRAPH
            else field.encoded
            for field in fields(onnx)
        )

    return changed


def weights_from(location):
    """Every weight that a session is given is read from this file instead."""

    def tensor(content):
        parts = list(fields(content))
        if all(part.number != EXTERNAL_DATA for part in parts):
            return content
        encoded = b"".join(part.encoded for part in parts if part.number != EXTERNAL_DATA)
        return encoded + entry("location", location)

    return in_graph(
        lambda graph: b"".join(
            delimited_field(INITIALISER, tensor(field.content))
            if field.number == INITIALISER
            else field.encoded
            for field in fields(graph)
        )
    )


def with_node(operator, attribute=b"", domain=""):
    """One node more, whose value nothing reads."""
    node = b"".join(
        (
            delimited_field(2, b"unread"),
            delimited_field(4, operator.encode()),
            delimited_field(5, attribute) if attribute else b"",
            delimited_field(7, domain.encode()),
        )
    )
    return in_graph(lambda graph: graph + delimited_field(NODE, node))


def attribute(name, field, content, kind):
    return delimited_field(1, name.encode()) + delimited_field(field, content) + number_field(20, kind)


FAR = number_field(1, 4) + number_field(2, 1) + entry("location", PASSWORDS) + number_field(DATA_LOCATION, 1)
BODY = delimited_field(2, b"body")

HOSTILE = {
    "relative": (weights_from("enrolment.json"), "lies in location enrolment.json, expected length"),
    "absolute": (weights_from(PASSWORDS), "lies in location /etc/passwd, expected length"),
    "upwards": (weights_from("../a.npz"), "lies in location ../a.npz, expected length"),
    "process": (weights_from("/proc/self/environ"), "lies in location /proc/self/environ, expected"),
    "address": (weights_from("*/_ORT_MEM_ADDR_/*"), "lies in location */_ORT_MEM_ADDR_/*, expected"),
    "constant": (
        with_node("Constant", attribute("value", 5, FAR, 4)),
        "a tensor has data that lie outside, which is not allowed",
    ),
    "sparse constant": (
        with_node("Constant", attribute("sparse_value", 22, delimited_field(1, FAR), 11)),
        "an attribute has a sparse tensor, which is not allowed",
    ),
    "sparse": (
        in_graph(lambda graph: graph + delimited_field(SPARSE, delimited_field(1, FAR))),
        "a graph has a sparse initialiser, which is not allowed",
    ),
    "function": (
        lambda onnx: onnx + delimited_field(MODEL_FUNCTION, BODY),
        "a model has functions of its own, which is not allowed",
    ),
    "loop": (with_node("Loop", attribute("body", 6, BODY, 5)), "an attribute has a graph within it"),
    "branch": (with_node("If", attribute("then_branch", 6, BODY, 5)), "an attribute has a graph within it"),
    "scan": (with_node("Scan"), "operator Scan is not allowed"),
    "code": (with_node("PythonOp", domain="com.microsoft"), "com.microsoft.PythonOp is not allowed"),
    "another format": (lambda onnx: b"\x12\x84\x00\x00ORTM" + onnx, "in ONNX Runtime's own format"),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", HOSTILE)
def test_offer_of_a_graph_that_is_not_allowed_is_refused_in_one_line_and_an_honest_round_follows(
    which, stage, bundle, tmp_path, monkeypatch, caplog
):
    change, words = HOSTILE[which]
    graphs = {name: change(bundle.graph(name)) for name in bundle.manifest.graphs}
    hostile = bundles.write(tmp_path / "hostile", bundle.manifest, bundle.weights(), graphs)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enrolment.json").write_bytes(bytes(1 << 20))
    caplog.set_level(logging.WARNING)
    stage.link.announce(stage.offer(bundle=hostile, kinds=(registry.write(ClassMeans()),)))
    assert stage.go().contributions == []
    (message,) = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert message.startswith("round 1"), message
    assert message.isprintable()
    stage.link.announce(stage.offer(number=2))
    assert [sent.round for sent in stage.go().contributions] == [2]


def test_offer_of_moon_with_privacy_is_refused_in_one_line_and_an_honest_round_follows(stage, caplog):
    settings = {"terms": {"moon": {"mu": 1.0}, "dp-sgd": {"epsilon": 5.0}}}
    stage.link.announce(stage.offer(kinds=(Kind("full", encode_settings(settings)),)))
    assert stage.go().contributions == []
    (message,) = [
        line.getMessage()
        for line in caplog.records
        if "term moon: its features come from runs" in line.getMessage()
    ]
    assert message.startswith("round 1 left out: ")
    stage.link.announce(stage.offer(number=2))
    assert [sent.round for sent in stage.go().contributions] == [2]
