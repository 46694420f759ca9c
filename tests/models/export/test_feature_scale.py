"""A bundle whose features have a scale each before the head, on both engines."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.peft.tunable_sets import scale_features
from device_runtime.models.torch_engine.engine import TorchModel

SETTINGS = {"inputs": 5, "hidden": 4, "depth": 1, "classes": 3}
SCALE = np.array([0.5, 2.0, 1.0, 4.0], np.float32)


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(1)
    return build("mlp", SETTINGS)


@pytest.fixture(scope="module")
def bundle(plain, tmp_path_factory):
    spec = ExportSpec(
        "scaled", InputSpec((5,)), ("a", "b", "c"), sets={"all": {}, "head": {}, "bias": {}},
        scaled=True, source=Source("mlp", SETTINGS),
    )  # fmt: skip
    return export(plain, spec, tmp_path_factory.mktemp("scaled"))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((9, 5), dtype=np.float32), rng.integers(0, 3, 9)


def test_until_it_is_set_the_scale_changes_nothing(plain, bundle, data):
    x, _ = data
    with torch.no_grad():
        expected = plain(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(OnnxModel(bundle).logits(x), expected, atol=1e-6)
    assert not hasattr(plain.head, "scale")


def test_the_scale_belongs_to_no_set(bundle, digits):
    scale = bundle.manifest.scale
    assert scale == "head.scale"
    assert scale not in bundle.manifest.names("all") + bundle.manifest.names("bias")
    assert (bundle.weights()[scale] == 1).all()
    assert digits.manifest.scale is None


@pytest.mark.parametrize("engine", [OnnxModel, TorchModel])
def test_features_are_those_that_the_scale_has_multiplied(bundle, data, engine):
    x, y = data
    model = engine(bundle)
    before = model.features(x)
    model.load({**bundle.weights(), "head.scale": SCALE})
    np.testing.assert_allclose(model.features(x), before * SCALE, rtol=1e-6, atol=1e-7)
    weight, bias = bundle.weights()["head.weight"], bundle.weights()["head.bias"]
    logits = (before * SCALE) @ weight.T + bias
    np.testing.assert_allclose(model.logits(x), logits, atol=1e-5)
    own = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    assert model.probe("head").loss(x, y) == pytest.approx(own.mean(), rel=1e-5)


def test_a_head_with_a_scale_of_its_own_is_refused(plain):
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2))
    scale_features(layer, "0")
    with pytest.raises(ExportError, match="head '0' has a scale of its own"):
        scale_features(layer, "0")
