"""Bundles with parameter-efficient sets: they pass the parity gate, and are trained without torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export

pytestmark = pytest.mark.slow

SETS = {
    "vit": ("bias", "adapter", "prompt", "prefix", "lora", "sparse"),
    "wrn": ("bias", "adapter", "lora", "sparse"),
}


@pytest.mark.parametrize("kind", SETS)
def test_every_set_is_exported_and_trained(make, tmp_path, kind):
    """The gate of `export` compares every gradient with torch's; here each set learns a batch."""
    sets = {name: {} for name in SETS[kind]}
    bundle = export(
        make(kind), ExportSpec(kind, InputSpec((3, 8, 8)), tuple("abcde"), sets=sets), tmp_path / kind
    )
    stored = bundle.weights()
    indices = [parameter for parameter in bundle.manifest.parameters if parameter.dtype == "int64"]
    assert indices and not any(parameter.sets for parameter in indices)
    assert all(stored[parameter.name].dtype == np.int64 for parameter in indices)
    x = np.random.default_rng(0).standard_normal((5, 3, 8, 8), dtype=np.float32)
    y = np.arange(5)
    for name in sets:
        trainer = open_model(bundle, batch=5).trainer(name)
        specs = bundle.manifest.specs(name)
        assert trainer.params.vector.size == sum(int(np.prod(spec.shape)) for spec in specs)
        losses = []
        for _ in range(10):
            losses.append(trainer.loss_and_grads(x, y))
            trainer.params.vector -= 0.05 * trainer.grads.vector
        assert losses[-1] < losses[0]
