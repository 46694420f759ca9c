import numpy as np
import onnx
import onnxruntime
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.engines.onnx_nodes import graph_with_weights, with_initialisers
from device_runtime.models.errors import BundleError

WORDS = {"labels": '["0", "1"]', "text": "in words: ≥ 1"}


def inputs(bundle, n=5):
    return np.random.default_rng(0).standard_normal((n, *bundle.manifest.input.shape)).astype(np.float32)


def moved(bundle):
    """Other weights than those of the bundle."""
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal(w.shape).astype(np.float32) * 0.05 for name, w in bundle.weights().items()
    }


def test_a_file_alone_gives_the_logits_of_the_bundle_with_these_weights(bundle):
    weights = moved(bundle)
    file = graph_with_weights(bundle, weights, WORDS)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    logits, _ = session.run(["logits", "features"], {"x": inputs(bundle)})
    assert np.array_equal(logits, OnnxModel(bundle, weights).logits(inputs(bundle)))
    assert session.get_modelmeta().custom_metadata_map == WORDS


def test_it_is_a_sound_onnx_file_with_every_value_inside(bundle):
    model = onnx.load_from_string(graph_with_weights(bundle, bundle.weights(), WORDS))
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = bundle.weights()
    for name in bundle.manifest.graphs["forward"].frozen:
        assert np.array_equal(stored[name], weights[name])
    assert not any(tensor.external_data for tensor in model.graph.initializer)


def test_what_the_graph_does_not_hold_is_an_error(bundle):
    with pytest.raises(BundleError, match="has no initialiser 'another'"):
        with_initialisers(bundle.graph("forward"), {"another": np.zeros(1, np.float32)}, {})
    with pytest.raises(BundleError, match=r"graph loss.all takes its parameters as inputs"):
        graph_with_weights(bundle, bundle.weights(), {}, "loss.all")
    name = bundle.manifest.graphs["forward"].frozen[0]
    with pytest.raises(BundleError, match=f"{name} is complex64, an ONNX file holds float32"):
        with_initialisers(bundle.graph("forward"), {name: np.zeros(1, np.complex64)}, {})
