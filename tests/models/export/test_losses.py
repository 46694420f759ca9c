from dataclasses import replace

import numpy as np
import pytest
import torch

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import TargetSpec, targets_of
from device_runtime.models.engines.onnx_engine import OnnxModel
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine.engine import TorchModel
from device_runtime.models.training.evaluation import sample_losses


def samples(bundle):
    """Seven prepared inputs, and targets that fit."""
    rng, target = np.random.default_rng(0), bundle.manifest.target
    x = rng.normal(size=(7, 4)).astype(np.float32)
    if target.has_columns:
        y = rng.normal(size=(7, *target.shape)).astype(np.float32)
        return x, (y > 0).astype(np.float32) if target.compared == "flags" else y
    return x, np.zeros(7, np.int64)


@pytest.fixture(params=["mse", "mae", "huber", "bce", "mse of the input"])
def of_loss(request, exported):
    loss, of, _ = request.param.partition(" ")
    return Bundle.open(exported.of_loss(loss, "input" if of else ""))


def test_graphs_compute_the_loss_and_its_gradient(of_loss):
    model, (x, y) = OnnxModel(of_loss), samples(of_loss)
    outputs, target = model.logits(x), of_loss.manifest.target
    expected = sample_losses(target, outputs, x if target.compared == "input" else y).mean()
    trainer, probe = model.trainer("head"), model.probe("head")
    assert trainer.loss_and_grads(x, y) == pytest.approx(expected, rel=1e-5)
    assert probe.loss(x, y) == pytest.approx(expected, rel=1e-5)
    step = 1e-2 * trainer.grads.vector / np.linalg.norm(trainer.grads.vector)
    probe.params.vector[:] += step
    above = probe.loss(x, y)
    probe.params.vector[:] -= 2 * step
    slope = (above - probe.loss(x, y)) / 2e-2
    assert slope == pytest.approx(np.linalg.norm(trainer.grads.vector), rel=0.02)


def test_the_torch_engine_gives_the_same(of_loss):
    x, y = samples(of_loss)
    both = [model.trainer("all") for model in (OnnxModel(of_loss), TorchModel(of_loss))]
    losses = [one.loss_and_grads(x, y) for one in both]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert both[0].grads.vector == pytest.approx(both[1].grads.vector, abs=1e-5)


def test_targets_of_another_form_are_refused(exported):
    model = OnnxModel(Bundle.open(exported.of_loss("mse")))
    x = np.zeros((3, 4), np.float32)
    for y in (np.zeros(3, np.int64), np.zeros((3, 1), np.float32), np.zeros((3, 2))):
        with pytest.raises(EngineError, match=r"mse takes float32 \(n, 2\)"):
            model.trainer("all").loss_and_grads(x, y)
    with pytest.raises(EngineError, match="2 values that are not finite"):
        model.trainer("all").loss_and_grads(x, np.array([[1, np.nan], [0, 0], [np.inf, 0]], np.float32))


def pinball(outputs, targets):
    """The loss of three quantiles of one target."""
    shares = torch.tensor([0.5, 0.1, 0.9])
    off = targets - outputs
    return torch.where(off > 0, shares * off, (shares - 1) * off).mean(1)


def spec_of(loss, labels, **more):
    return ExportSpec("own", InputSpec((4,)), labels, loss=loss, sets={"all": {}}, **more)


def mlp(outputs):
    return build("mlp", {"inputs": 4, "hidden": 8, "classes": outputs})


def test_a_loss_of_one_s_own_is_in_the_graphs(tmp_path):
    own = TargetSpec("pinball", "values", ("price",), own=True)
    spec = spec_of(own, ("median", "low", "high"), own_loss=pinball)
    bundle = export(mlp(3), spec, tmp_path / "own")
    model, x = OnnxModel(bundle), np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    y = np.arange(5, dtype=np.float32)[:, None]
    expected = pinball(torch.from_numpy(model.logits(x)), torch.from_numpy(y)).mean()
    assert model.trainer("all").loss_and_grads(x, y) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(EngineError, match="loss pinball is a function of whoever exported the bundle"):
        TorchModel(bundle, module=mlp(3))


def test_a_loss_of_one_s_own_may_take_classes(tmp_path):
    def focal(outputs, y):
        logs = torch.log_softmax(outputs, 1).gather(1, y.unsqueeze(1)).squeeze(1)
        return -((1 - torch.exp(logs)) ** 2) * logs

    spec = spec_of(TargetSpec("focal", "classes", own=True), ("a", "b"), own_loss=focal)
    model = OnnxModel(export(mlp(2), spec, tmp_path / "own"))
    x, y = np.ones((2, 4), np.float32), np.array([0, 1])
    expected = focal(torch.from_numpy(model.logits(x)), torch.from_numpy(y)).mean()
    assert model.probe().loss(x, y) == pytest.approx(float(expected), rel=1e-5)


HOUSES = targets_of("mse", ("price", "area"))
OWN = TargetSpec("own", "values", ("price",), own=True)


@pytest.mark.parametrize(
    ("outputs", "spec", "said"),
    [
        (2, replace(spec_of(HOUSES, ("price", "area")), objectives=("train", "kl")),
         "objective kl is of classes, and the loss is mse of price, area: choose train or moon"),
        (2, spec_of(HOUSES, ("price", "area"), ort_training=True), "training are for cross-entropy, and the"),
        (3, spec_of(HOUSES, ("price", "area")), "gives 3 logits for 2 labels"),
        (2, spec_of(targets_of("mse", (), "input"), ("normal",)), "gives 2 logits for 4 values of the input"),
        (1, spec_of(HOUSES, ("price",)), "the loss is of 2 columns, and 1 labels name fewer outputs"),
        (2, spec_of(targets_of("mse", ("price",)), ("low", "high")),
         "the loss mse is of 1 columns, and there are 2 outputs: expected as many"),
        (1, spec_of(OWN, ("price",), own_loss=lambda o, t: (o - t).mean()),
         r"loss own gives \(\) for 4 samples, expected the loss of each: \(4,\)"),
        (1, spec_of(OWN, ("price",), own_loss=lambda o, t: o @ t),
         r"loss own fails on outputs \(4, 1\) and targets float32 \(4, 1\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_loss_is_refused_before_anything_is_written(tmp_path, outputs, spec, said):
    with pytest.raises(ExportError, match=said):
        export(mlp(outputs), spec, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_moon_is_trained_with_another_loss(tmp_path):
    bundle = export(mlp(2), spec_of(HOUSES, ("price", "area"), objectives=("train", "moon")), tmp_path / "m")
    assert "moon.all" in bundle.manifest.graphs


def decoder():
    nn = torch.nn
    down = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 16, 2, 2), nn.ReLU()]
    return nn.Sequential(*down, nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 2))


@pytest.mark.parametrize("made", ["cnn", "decoder"])
def test_convolutions_train_with_another_loss_in_the_layout_of_their_own(made, tmp_path, caplog):
    torch.manual_seed(0)
    module = decoder() if made == "decoder" else build("cnn", {"in_channels": 3, "size": 16, "classes": 2})
    spec = replace(spec_of(targets_of("huber", ("a", "b")), ("a", "b")), input=InputSpec((3, 16, 16)))
    bundle = export(module, spec, tmp_path / made)
    assert "slower" not in caplog.text
    x = np.random.default_rng(0).normal(size=(32, 3, 16, 16)).astype(np.float32)
    y = x[:, 0, 0, :2].copy()
    fast, plain = OnnxModel(bundle).trainer("all", batch=32), TorchModel(bundle, module=module).trainer("all")
    assert fast.loss_and_grads(x, y) == pytest.approx(plain.loss_and_grads(x, y), rel=1e-5)
    assert fast.grads.vector == pytest.approx(plain.grads.vector, abs=1e-6)
