"""The engine on graphs of onnxruntime-training, where there is that package, and what it says where not."""

import re
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from device_runtime.models.available_engines.onnx_engine import (
    VERSION,
    OnnxModel,
    OrtTrainingModel,
    available,
)
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.errors import BundleError, EngineError

needs_package = pytest.mark.skipif(bool(available()), reason=available())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """Wide ResNet with GroupNorm; sets all and head, of which all alone has an ort-training graph."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.bundles.inputs import InputSpec
    from device_runtime.models.export.candidates import training_graph
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.functional_module import FunctionalModule

    torch.manual_seed(3)
    module = build("wrn", {"depth": 10, "width": 1, "in_channels": 1, "classes": 3, "norm": "group"}).eval()
    spec = ExportSpec("small", InputSpec((1, 8, 8)), ("a", "b", "c"), sets={"all": {}, "head": {}})
    folder = tmp_path_factory.mktemp("bundle")
    plain = export(module, spec, folder / "plain")
    manifest = plain.manifest
    graph = training_graph(FunctionalModule(module, "head", torch.randn(4, 1, 8, 8)), manifest.names("all"))
    entry = replace(manifest.graphs["train.all"], file="ort-training.all.onnx", frozen=())
    manifest = replace(manifest, graphs={**manifest.graphs, "ort-training.all": entry})
    graphs = {name: plain.graph(name) for name in plain.manifest.graphs}
    return bundles.write(folder / "with", manifest, plain.weights(), {**graphs, "ort-training.all": graph})


def drawn(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(samples)
    return rng.standard_normal((samples, 1, 8, 8), dtype=np.float32), rng.integers(0, 3, samples)


class Names:
    """A watch that keeps the names of the graphs that are loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def will_load(self, name, graph) -> None:
        self.names.append(name)

    def ran(self, name, graph, samples, seconds) -> None:
        pass


@needs_package
@pytest.mark.parametrize("samples", [1, 7, 40])  # 40 is a batch of 32 and one of 8
def test_loss_and_gradients_are_those_of_the_plain_engine(bundle, samples):
    x, y = drawn(samples)
    watch = Names()
    trainer, plain = OrtTrainingModel(bundle, watch=watch).trainer(), OnnxModel(bundle).trainer()
    assert trainer.loss_and_grads(x, y) == pytest.approx(plain.loss_and_grads(x, y), rel=1e-5)
    largest = float(np.abs(plain.grads.vector).max())
    np.testing.assert_allclose(trainer.grads.vector, plain.grads.vector, rtol=0, atol=1e-5 * largest)
    assert watch.names == ["ort-training.all"]


@needs_package
def test_parameters_changed_in_place_are_seen_by_the_next_call_and_gradients_are_not_added_up(bundle):
    x, y = drawn(8)
    trainer = OrtTrainingModel(bundle).trainer()
    first = trainer.loss_and_grads(x, y)
    gradient = trainer.grads.vector.copy()
    assert trainer.loss_and_grads(x, y) == first
    np.testing.assert_array_equal(trainer.grads.vector, gradient)
    for _ in range(20):
        trainer.params.vector -= np.float32(0.1) * trainer.grads.vector
        last = trainer.loss_and_grads(x, y)
    assert last < 0.5 * first


@needs_package
def test_a_bundle_with_such_graphs_can_use_it(bundle):
    assert available(bundle.manifest) == ""


@needs_package
def test_a_set_without_such_a_graph_has_the_ordinary_one(bundle):
    watch = Names()
    OrtTrainingModel(bundle, watch=watch).trainer("head").loss_and_grads(*drawn(3))
    assert watch.names == ["train.head"]


@needs_package
def test_a_bundle_without_such_graphs_is_told_how_to_get_them(digits):
    message = available(digits.manifest)
    assert "has no ort-training graphs; export it where onnxruntime-training is installed" in message


def test_other_objectives_are_refused_with_the_engines_that_have_them(digits):
    message = "cross-entropy only, not with objective 'distil'; engines onnxruntime and torch do"
    with pytest.raises(EngineError, match=message):
        OrtTrainingModel(digits).trainer("all", "distil")


def test_a_set_that_the_bundle_lacks_is_named(digits):
    with pytest.raises(BundleError, match="no tunable set 'lora'"):
        OrtTrainingModel(digits).trainer("lora")


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ({}, "^onnxruntime-training is not installed; in an environment without onnxruntime: pip install"),
        ({"onnxruntime": "1.31.1"}, "^onnxruntime-training is not installed"),
        ({"onnxruntime_training_cpu": "1.18.0"}, f"^onnxruntime-training-cpu is 1.18.0, expected {VERSION}"),
        (
            {"onnxruntime_training_cpu": VERSION, "onnxruntime": "1.31.1"},
            "^onnxruntime-training-cpu and onnxruntime are both installed and overwrite each other",
        ),
        ({"onnxruntime_training_cpu": VERSION}, "^$"),
        ({"onnxruntime_training": VERSION}, "^$"),
    ],
)
def test_what_is_installed_decides_and_the_message_says_what_to_do(packages, message, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    for name, version in packages.items():
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert re.match(message, available()), available()
