from dataclasses import replace

import numpy as np
import pytest
import torch

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import TargetSpec, targets_of
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine.engine import TorchModel
from device_runtime.models.training.evaluation import evaluate, sample_losses
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.strategies.kinds.few_shot import FewShot


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
    losses = [trainer.loss_and_grads(x, y) for trainer in both]
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
    ("outputs", "spec", "message"),
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
def test_what_does_not_fit_the_loss_is_refused_before_anything_is_written(tmp_path, outputs, spec, message):
    with pytest.raises(ExportError, match=message):
        export(mlp(outputs), spec, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_moon_is_trained_with_another_loss(tmp_path):
    bundle = export(mlp(2), spec_of(HOUSES, ("price", "area"), objectives=("train", "moon")), tmp_path / "m")
    assert "moon.all" in bundle.manifest.graphs


def decoder():
    nn = torch.nn
    down = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 16, 2, 2), nn.ReLU()]
    return nn.Sequential(*down, nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 2))


@pytest.mark.parametrize("name", ["cnn", "decoder"])
def test_convolutions_train_with_another_loss_in_the_layout_of_their_own(name, tmp_path, caplog):
    torch.manual_seed(0)
    module = decoder() if name == "decoder" else build("cnn", {"in_channels": 3, "size": 16, "classes": 2})
    spec = replace(spec_of(targets_of("huber", ("a", "b")), ("a", "b")), input=InputSpec((3, 16, 16)))
    bundle = export(module, spec, tmp_path / name)
    assert "slower" not in caplog.text
    x = np.random.default_rng(0).normal(size=(32, 3, 16, 16)).astype(np.float32)
    y = x[:, 0, 0, :2].copy()
    fast, plain = OnnxModel(bundle).trainer("all", batch=32), TorchModel(bundle, module=module).trainer("all")
    assert fast.loss_and_grads(x, y) == pytest.approx(plain.loss_and_grads(x, y), rel=1e-5)
    assert fast.grads.vector == pytest.approx(plain.grads.vector, abs=1e-6)


WEIGHTS = torch.tensor([0.5, 2.0])
nn_functional = torch.nn.functional


BY_TORCH = {
    "classes": {
        "none": lambda o, y: nn_functional.cross_entropy(o, y, reduction="none"),
        "weighted": lambda o, y: nn_functional.cross_entropy(o, y, WEIGHTS, reduction="none"),
        "smoothed": lambda o, y: nn_functional.cross_entropy(
            o, y, WEIGHTS, label_smoothing=0.1, reduction="none"
        ),
        "ignored": lambda o, y: nn_functional.cross_entropy(o, y, ignore_index=1, reduction="none"),
        "nll": lambda o, y: nn_functional.nll_loss(o.log_softmax(1), y, reduction="none"),
        "focal": lambda o, y: (
            (1 - o.softmax(1).gather(1, y[:, None])[:, 0]) ** 2
            * nn_functional.cross_entropy(o, y, reduction="none")
        ),
        "margin": lambda o, y: nn_functional.multi_margin_loss(o, y, reduction="none"),
        "of one-hot": lambda o, y: nn_functional.cross_entropy(
            o, nn_functional.one_hot(y, 2).float(), reduction="none"
        ),
        "logsumexp": lambda o, y: torch.logsumexp(o, 1) - o.gather(1, y[:, None])[:, 0],
    },
    "values": {
        "squares": lambda o, y: nn_functional.mse_loss(o, y, reduction="none").mean(1),
        "smooth": lambda o, y: nn_functional.smooth_l1_loss(o, y, reduction="none", beta=0.5).mean(1),
        "bent": lambda o, y: nn_functional.huber_loss(o, y, reduction="none", delta=0.7).mean(1),
        "gaussian": lambda o, y: nn_functional.gaussian_nll_loss(
            o[:, 0], y[:, 0], nn_functional.softplus(o[:, 1]) + 0.1, full=True, reduction="none"
        ),
        "poisson": lambda o, y: nn_functional.poisson_nll_loss(o, y.abs(), reduction="none").mean(1),
        "divergence": lambda o, y: nn_functional.kl_div(o.log_softmax(1), y.softmax(1), reduction="none").sum(
            1
        ),
        "cosine": lambda o, y: 1 - nn_functional.cosine_similarity(o, y),
        "distance": lambda o, y: torch.linalg.vector_norm(o - y, dim=1),
        "worst": lambda o, y: ((o - y) ** 2).max(1).values,
    },
    "flags": {
        "logits": lambda o, y: nn_functional.binary_cross_entropy_with_logits(
            o, y, pos_weight=WEIGHTS, reduction="none"
        ).mean(1),
        "sigmoid": lambda o, y: nn_functional.binary_cross_entropy(o.sigmoid(), y, reduction="none").mean(1),
    },
}
QUICK = ("weighted", "smoothed", "smooth", "gaussian", "cosine", "logits")


@pytest.mark.parametrize(
    ("compared", "name"),
    [
        pytest.param(compared, name, marks=() if name in QUICK else pytest.mark.slow)
        for compared, losses in BY_TORCH.items()
        for name in losses
    ],
)
def test_a_loss_of_torchs_own_functions_is_what_torch_computes(compared, name, tmp_path):
    torch.manual_seed(0)
    network, loss = build("linear", {"inputs": 4, "classes": 2}), BY_TORCH[compared][name]
    target = targets_of("own", ("a", "b"), compared, own=True)
    spec = ExportSpec("it", InputSpec((4,)), ("a", "b"), sets={"all": {}}, loss=target, own_loss=loss)
    bundle = export(network, spec, tmp_path / "out")
    x, y = samples(bundle)
    y = np.random.default_rng(1).integers(0, 2, y.shape).astype(np.int64 if compared == "classes" else "f4")
    expected = loss(network(torch.from_numpy(x)), torch.from_numpy(y)).mean()
    expected.backward()
    trainer = OnnxModel(bundle).trainer("all")
    assert trainer.loss_and_grads(x, y) == pytest.approx(expected.item(), rel=1e-4)
    for parameter, grad in trainer.grads.views.items():
        reference = network.get_parameter(parameter).grad.numpy()
        np.testing.assert_allclose(grad, reference, atol=1e-5, err_msg=parameter)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda o, y: nn_functional.cross_entropy(o.detach(), y, reduction="none"),
            "remove .detach\\(\\), .data",
        ),
        (lambda o, y: -o.log_softmax(1)[torch.arange(len(y)), y], "write x.shape\\[0\\] for len\\(x\\)"),
        (
            nn_functional.cross_entropy,
            "gives \\(\\) for 4 samples, expected the loss of each",
        ),
        (lambda o, y: [1.0] * 4, "gives list for 4 samples"),
        (
            lambda o, y: nn_functional.cross_entropy(o, y).expand(len(y)),
            "depends on which others are in its batch",
        ),
    ],
)
def test_a_loss_that_cannot_be_exported_is_refused_with_what_to_write(loss, message, tmp_path):
    network = build("linear", {"inputs": 4, "classes": 2})
    target = targets_of("own", ("a", "b"), "classes", own=True)
    spec = ExportSpec("it", InputSpec((4,)), ("a", "b"), sets={"all": {}}, loss=target, own_loss=loss)
    with pytest.raises(ExportError, match=message) as caught:
        export(network, spec, tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    torch.manual_seed(0)
    network = build("linear", {"inputs": 4, "classes": 2})
    target = targets_of("cross-entropy", ("a", "b"), class_weights=(0.5, 2.0))
    spec = ExportSpec("it", InputSpec((4,)), ("a", "b"), sets={"all": {}, "head": {}}, loss=target)
    return network, export(network, spec, tmp_path_factory.mktemp("weighted") / "out")


def test_weights_of_classes_multiply_cross_entropy_in_graphs_heads_and_evaluations(weighted):
    network, bundle = weighted
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 4)).astype(np.float32), np.array([0, 1, 1, 0, 1, 0, 0])
    losses = nn_functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y), reduction="none")
    expected = (losses * WEIGHTS[torch.from_numpy(y)]).mean()
    expected.backward()
    model = OnnxModel(bundle)
    head = SoftmaxHead(bundle.manifest, model.weights)
    trainer = model.trainer("head")
    for loss in (
        trainer.loss_and_grads(x, y),
        head.loss_and_grads(model.features(x), y),
        evaluate(model, x, y).eval_loss,
    ):
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    for grads in (trainer.grads, head.grads):
        reference = network.get_submodule("head").weight.grad.numpy()
        np.testing.assert_allclose(grads.views["head.weight"], reference, atol=1e-6)


def test_weights_of_classes_keep_the_kinds_that_work_by_class(weighted):
    manifest = weighted[1].manifest
    assert manifest.target.class_weights == (0.5, 2.0)
    assert manifest.target.why_not_by_class == ""
    assert not FewShot().trains_head(manifest)  # many heads at once are trained without weights


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (
            "mse",
            {"class_weights": (1.0, 2.0)},
            "loss 'mse' has no weights of classes, only cross-entropy has",
        ),
        ("cross-entropy", {"class_weights": (1.0, -2.0)}, "expected numbers above 0"),
        ("cross-entropy", {"class_weights": (1.0, float("nan"))}, "expected numbers above 0"),
    ],
)
def test_weights_of_classes_that_make_no_sense_are_refused(loss, settings, message):
    with pytest.raises(ValueError, match=message):
        targets_of(loss, ("a", "b"), **settings)


def test_as_many_weights_as_labels_are_needed(tmp_path):
    target = targets_of("cross-entropy", ("a", "b"), class_weights=(1.0, 2.0, 3.0))
    spec = ExportSpec("it", InputSpec((4,)), ("a", "b"), loss=target)
    with pytest.raises(ExportError, match="there are 3 weights of classes for 2 labels"):
        export(build("linear", {"inputs": 4, "classes": 2}), spec, tmp_path / "out")
