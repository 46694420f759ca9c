"""`device_runtime.export`: a torch module becomes a bundle."""

import sys

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.models.errors import ExportError

torch = pytest.importorskip("torch")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_a_module_becomes_a_bundle_that_computes_the_same(network):
    bundle = dr.export(
        network, "bundles/mine", input=(1, 8, 8), labels="0123456789", scale=1 / 16, tunable=["all", "head"]
    )
    assert isinstance(bundle, dr.Bundle)
    assert (bundle.manifest.name, tuple(bundle.manifest.sets)) == ("mine", ("all", "head"))
    assert np.array_equal(bundle.weights()["1.weight"], network[1].weight.detach().numpy())
    assert bundle.manifest.input.scale == 1 / 16


def test_a_bundle_is_replaced_only_if_asked_for(network, tmp_path):
    arguments = {"input": (1, 8, 8), "labels": "0123456789", "tunable": "all"}
    dr.export(network, "mine", **arguments)
    with pytest.raises(ExportError, match="mine is a bundle already: overwrite=True replaces it"):
        dr.export(network, "mine", **arguments)
    assert dr.export(network, "mine", overwrite=True, **arguments).manifest.name == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match="other exists and is no bundle"):
        dr.export(network, "other", overwrite=True, **arguments)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"labels": "012"}, "gives 10 logits for 3 labels"),
        ({"tunable": ["everything"]}, "everything"),
        ({"mean": (0.0, 0.5)}, "2 values of mean"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(network, wrong, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        dr.export(network, "mine", **{"input": (1, 8, 8), "labels": "0123456789", **wrong})
    assert not (tmp_path / "mine").exists()


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ExportError, match=r"needs the extra torch: pip install 'device-runtime\[torch\]'"):
        dr.export(object(), "mine", input=(1, 8, 8), labels="01")


def test_a_module_is_exported_with_another_loss():
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    arguments = {"input": (4,), "tunable": "all"}
    bundle = dr.export(
        network, "houses", labels=["price", "area"], loss="huber", delta=0.5, target_mean=[100, 0],
        target_std=[30, 3], **arguments,
    )  # fmt: skip
    target = bundle.manifest.target
    assert (target.loss, target.columns, target.mean, target.delta) == (
        "huber", ("price", "area"), (100.0, 0.0), 0.5,
    )  # fmt: skip

    def cubed(outputs, targets):
        return (outputs - targets).abs().pow(3).mean(1)

    own = dr.export(network, "own", labels=["price", "area"], loss=cubed, **arguments).manifest.target
    assert (own.loss, own.own, own.compared) == ("cubed", True, "values")
    with pytest.raises(ExportError, match="no loss 'cube'; there are"):
        dr.export(network, "none", labels=["price", "area"], loss="cube", **arguments)


def test_a_bundle_knows_whether_its_weights_are_trained(network):
    arguments = {"input": (1, 8, 8), "labels": "0123456789", "tunable": "head"}
    assert not dr.export(network, "new", **arguments).manifest.pretrained
    assert dr.export(network, "told", pretrained=True, **arguments).manifest.pretrained
    norm = torch.nn.BatchNorm2d(1)
    normed = torch.nn.Sequential(norm, *network)
    assert not dr.export(normed, "new-norm", **arguments).manifest.pretrained
    norm.train()(torch.ones(4, 1, 8, 8))
    assert dr.export(normed, "seen-norm", **arguments).manifest.pretrained


def test_a_reconstruction_has_normal_samples_and_others():
    network = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU(), torch.nn.Linear(2, 4))
    bundle = dr.export(network, "ae", input=(4,), loss="mse", targets="input", tunable="all")
    assert (bundle.manifest.labels, bundle.manifest.outputs) == (("normal", "anomaly"), 4)
