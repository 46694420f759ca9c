import msgspec
import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

from device_runtime.models.bundles.bundle import Bundle, write
from device_runtime.models.bundles.weights import initialisers
from device_runtime.models.engines.onnx_session import SessionSettings, load_session
from device_runtime.models.errors import BundleError, ParityError
from device_runtime.models.export import quantise as torch_precision
from device_runtime.models.export.quantise import lower_forward

PRECISIONS = ("int8", "float16")


@pytest.fixture(scope="module")
def lowered(digits, tmp_path_factory) -> Bundle:
    """The shipped bundle with its forward graph in each precision."""
    weights, manifest = digits.weights(), digits.manifest
    files = {name: digits.graph(name) for name in manifest.graphs}
    for precision in PRECISIONS:
        lowered_graph = lower_forward(files["forward"], weights, manifest.input, precision)
        files[f"forward.{precision}"] = lowered_graph.onnx
        graphs = manifest.graphs | {f"forward.{precision}": lowered_graph.graph}
        manifest = msgspec.structs.replace(manifest, graphs=graphs)
    return write(tmp_path_factory.mktemp("lowered") / "b", manifest, weights, files)


def forward(bundle, name, weights, x):
    graph = bundle.manifest.graphs[name]
    constants = initialisers(graph, weights)
    return load_session(name, graph, bundle.graph(name), constants, SessionSettings()).run(
        ["logits"], {"x": x}
    )[0]


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.1), ("float16", 1e-2)])
@pytest.mark.parametrize("seed", [0, 1])
def test_new_weights_give_logits_near_those_of_float32(lowered, precision, bound, seed):
    rng = np.random.default_rng(seed)
    weights = {n: v + 0.05 * rng.standard_normal(v.shape, np.float32) for n, v in lowered.weights().items()}
    x = rng.standard_normal((16, 1, 8, 8), np.float32)
    exact, rounded = (forward(lowered, name, weights, x) for name in ("forward", f"forward.{precision}"))
    off = np.sqrt(np.square(rounded - exact).mean() / np.square(exact).mean())
    assert 0 < off < bound


def test_weights_take_a_quarter_and_a_half_of_the_memory(lowered):
    weights = lowered.weights()
    full = sum(value.nbytes for value in weights.values())
    sizes = {
        precision: sum(
            value.nbytes
            for value in initialisers(lowered.manifest.graphs[f"forward.{precision}"], weights).values()
        )
        for precision in PRECISIONS
    }
    assert sizes["int8"] < 0.27 * full
    assert sizes["float16"] < 0.51 * full


def test_graphs_stay_small(lowered):
    sizes = {precision: lowered.manifest.graphs[f"forward.{precision}"].bytes for precision in PRECISIONS}
    assert max(sizes.values()) < 16_000, sizes


def test_what_is_too_far_off_is_refused(digits, monkeypatch):
    monkeypatch.setitem(torch_precision.BOUNDS, "int8", 1e-6)
    with pytest.raises(
        ParityError, match=r"forward.int8: \w+ is off float32 by 0.0\d+ of its root mean square"
    ):
        lower_forward(digits.graph("forward"), digits.weights(), digits.manifest.input, "int8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameter": "ghost"}, "graph forward.int8 takes ghost, which is no parameter"),
        ({"parameter": "head.bias"}, r"derives .* from float32 of shape \(10,\)"),
        ({"name": "head.bias"}, "initialiser 'head.bias' occurs twice"),
    ],
)
def test_manifest_that_derives_nonsense_is_refused(lowered, tmp_path, change, message):
    graph = lowered.manifest.graphs["forward.int8"]
    first = msgspec.structs.replace(graph.derived[0], **change)
    wrong = msgspec.structs.replace(graph, derived=(first, *graph.derived[1:]))
    manifest = msgspec.structs.replace(
        lowered.manifest, graphs=lowered.manifest.graphs | {"forward.int8": wrong}
    )
    files = {name: lowered.graph(name) for name in manifest.graphs}
    with pytest.raises(BundleError, match=message):
        write(tmp_path / "b", manifest, lowered.weights(), files)
