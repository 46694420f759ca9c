import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.networks.vision import vit
from device_runtime.models.peft.tunable_sets import change_warning


def test_sets_that_change_the_network_are_said_where_they_share_a_bundle():
    warning = change_warning({"head": {}, "prefix": {}, "all": {}})
    assert warning.startswith(
        "untrained prefix tokens change what the network computes, in forward and all, head"
    )
    both = change_warning({"prompt": {}, "prefix": {}})
    assert both.startswith(
        "untrained prompt and prefix tokens change what the network computes, in forward too"
    )
    assert change_warning({"prompt": {}}) == ""
    assert change_warning({"all": {}, "lora": {"rank": 2}, "adapter": {}, "sparse": {}}) == ""


@pytest.mark.slow
def test_export_says_so_in_one_line(tmp_path, caplog):
    torch.manual_seed(0)
    module = vit(classes=3, image=8, patch=4, depth=3, dim=8, heads=2)
    spec = ExportSpec("it", InputSpec((3, 8, 8)), ("a", "b", "c"), sets={"head": {}, "prompt": {"tokens": 2}})
    with caplog.at_level(logging.WARNING, logger="device_runtime.models.export.export"):
        export(module, spec, tmp_path / "out")
    [record] = [r for r in caplog.records if r.name == "device_runtime.models.export.export"]
    assert "untrained prompt tokens change" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_biases_may_be_trained_without_the_head_which_then_stays(tmp_path):
    torch.manual_seed(0)
    sets = {"bias": {"head": "without"}, "head": {}}
    spec = ExportSpec("it", InputSpec((5,)), ("a", "b", "c"), sets=sets)
    bundle = export(build("mlp", {"inputs": 5, "hidden": 4, "depth": 2, "classes": 3}), spec, tmp_path)
    manifest = bundle.manifest
    assert manifest.sets["bias"] == {"head": "without", "norms": "biases"}
    assert not set(manifest.names("bias")) & set(manifest.names("head"))
    assert [name.rpartition(".")[2] for name in manifest.names("bias")] == ["bias", "bias"]
    model = OnnxModel(bundle)
    x, y = np.random.default_rng(0).standard_normal((6, 5), np.float32), np.array([0, 1, 2, 0, 1, 2])
    probe = model.probe("bias")
    before = probe.loss(x, y)
    probe.params.vector[:] += 1
    assert probe.loss(x, y) != before


def test_a_network_whose_only_biases_are_the_head_s_has_no_set_without_it(tmp_path):
    spec = ExportSpec("it", InputSpec((5,)), ("a", "b", "c"), sets={"bias": {"head": "without"}})
    with pytest.raises(ExportError, match="no parameter of the module is in tunable set bias"):
        export(build("linear", {"inputs": 5, "classes": 3}), spec, tmp_path)
