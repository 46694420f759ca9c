"""What may be in a graph; web/tests/outside.test.js tries the same graphs on the browser's side."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_runtime.models.bundles import graph_check
from device_runtime.models.bundles.graph_check import check_graph, delimited_field
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.engines.onnx_session import SessionSettings, load_session
from device_runtime.models.errors import BundleError

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "web" / "vectors" / "graphs.json").read_text())
ALLOWED = {vector["name"]: bytes.fromhex(vector["graph"]) for vector in VECTORS["allowed"]}
REFUSED = {vector["name"]: bytes.fromhex(vector["graph"]) for vector in VECTORS["refused"]}
NO_GRAPH = Graph("forward.onnx", "", 0, (), 0, 0, 0)
SECRET = np.arange(1, 17, dtype=np.float32)
PACKAGES = (
    "models",
    "strategies",
    "device_runtime",
    "aggregator",
    "edge",
    "simulation",
    "profiles",
    "broker",
)


def loaded(onnx, **frozen):
    return load_session("forward", NO_GRAPH, onnx, frozen, SessionSettings())


@pytest.mark.parametrize("case", VECTORS["allowed"], ids=lambda case: case["name"])
def test_graph_of_listed_parts_is_allowed_and_says_what_it_takes(case):
    assert sorted(check_graph(bytes.fromhex(case["graph"]))) == case["outside"]


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["name"])
def test_graph_with_anything_else_is_refused_in_one_line(case):
    with pytest.raises(BundleError) as caught:
        check_graph(bytes.fromhex(case["graph"]))
    assert str(caught.value) == case["python"]
    assert str(caught.value).isprintable()


def test_every_shipped_graph_is_allowed_and_takes_what_its_manifest_says(digits):
    for name, graph in digits.manifest.graphs.items():
        assert check_graph(digits.graph(name)) == set(graph.frozen), name


def test_weight_that_is_given_is_used_and_one_that_is_not_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.full((2, 16), 5, np.float32)
    y = loaded(ALLOWED["a weight that is given"], w=SECRET).run(["y"], {"x": x})
    np.testing.assert_array_equal(y[0], np.maximum(x, SECRET))
    (tmp_path / "weights").write_bytes(SECRET.tobytes())
    with pytest.raises(BundleError, match="graph forward asks for w, which the manifest does not give it"):
        loaded(ALLOWED["a weight that is given"])


@pytest.mark.parametrize(
    "which", ["a relative file", "a path upwards", "an absolute path", "memory of the process"]
)
def test_no_session_is_made_of_a_graph_that_names_a_file(which, tmp_path, monkeypatch):
    within = tmp_path / "a" / "b"
    within.mkdir(parents=True)
    for path in (within / "enrolment.json", tmp_path / "weights"):
        path.write_bytes(SECRET.tobytes())
    monkeypatch.chdir(within)
    monkeypatch.setattr(
        "device_runtime.models.engines.onnx_session.onnxruntime",
        lambda: pytest.fail("ONNX Runtime was asked"),
    )
    with pytest.raises(BundleError, match="graph forward: initialiser w lies in"):
        loaded(REFUSED[which])


def test_onnx_runtime_would_read_the_file_that_is_refused(tmp_path):
    """In a process of its own, with the check taken out: else the tests above would prove nothing."""
    (tmp_path / "enrolment.json").write_bytes(SECRET.tobytes())
    (tmp_path / "graph.onnx").write_bytes(REFUSED["a relative file"])
    code = (
        "import numpy, sys; from device_runtime.models.engines import onnx_session as s\n"
        "from device_runtime.models.bundles.manifest import Graph\n"
        "s.check_graph = lambda onnx, **_: frozenset()\n"
        "onnx = open('graph.onnx', 'rb').read()\n"
        "loaded = s.load_session('f', Graph('', '', 0, (), 0, 0, 0), onnx, {}, s.SessionSettings())\n"
        "print(*loaded.run(['y'], {'x': numpy.zeros((1, 16), numpy.float32)})[0][0])\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert [float(value) for value in out.stdout.split()] == SECRET.tolist(), out.stderr


def test_what_onnx_runtime_wrote_here_may_have_operators_of_its_own_and_no_more():
    for name in ("an operator that is not known", "a domain that is not known"):
        assert check_graph(REFUSED[name], optimised=True) == set()
    for name in ("a relative file", "a constant outside", "a loop", "functions", "a sparse initialiser"):
        with pytest.raises(BundleError):
            check_graph(REFUSED[name], optimised=True)


def test_graph_of_too_many_bytes_or_fields_is_refused_before_it_takes_memory(monkeypatch):
    table = graph_check._TABLE.content
    with pytest.raises(BundleError, match=r"it has 67108865 bytes, at most 67108864 are read"):
        check_graph(bytes(table["most_bytes"] + 1))
    name = delimited_field(1, delimited_field(1, delimited_field(1, b"")) * 20_000)
    with pytest.raises(BundleError, match="node has input more than 10000 times"):
        check_graph(delimited_field(7, delimited_field(1, delimited_field(1, b"") * 20_000)))
    monkeypatch.setitem(table, "most_fields", 100)
    with pytest.raises(BundleError, match="it has more than 100 fields"):
        check_graph(delimited_field(7, name))


def test_sessions_are_made_in_one_place_alone():
    makers = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(
            word in path.read_text() for word in ("InferenceSession", "TrainingSession", "CheckpointState")
        )
    }
    assert makers == {"device_runtime/models/engines/onnx_session.py"}
