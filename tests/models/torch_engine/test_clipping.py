import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.torch_engine.engine import TorchGradients, TorchModel
from device_runtime.models.torch_modules import objectives as torch_clipping
from device_runtime.models.torch_modules.functional_module import FunctionalModule
from device_runtime.models.torch_modules.objectives import ClippedSums, GraphInputs, loss_and_gradients
from device_runtime.models.training.optimizer import Privacy, PrivateGradients


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)))


@pytest.fixture
def small():
    torch.manual_seed(0)
    module = Small().eval().requires_grad_(False)
    return FunctionalModule(module, "head", torch.zeros(1, 3)), dict(module.named_parameters())


def batch(tensors, n=7, **extras):
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.standard_normal((n, 3), np.float32))
    return GraphInputs(x, torch.from_numpy(rng.integers(0, 2, n)), extras, tensors)


def totals_of(names, tensors):
    return {name: torch.zeros_like(tensors[name]) for name in names}


def one_by_one(subject, objective, inputs, names, max_norm):
    """Each sample alone, clipped as algorithm 1 says."""
    totals = totals_of(names, inputs.tensors)
    for i in range(len(inputs.y)):
        sample = slice(i, i + 1)
        rows = {k: v[sample] if v.dim() else v for k, v in inputs.extras.items()}
        sample_inputs = GraphInputs(inputs.x[sample], inputs.y[sample], rows, inputs.tensors)
        _, grads = loss_and_gradients(subject, objective, sample_inputs, names)
        length = sum(float(g.square().sum()) for g in grads) ** 0.5
        for total, g in zip(totals.values(), grads, strict=True):
            total.add_(g / max(1, length / max_norm))
    return totals


@pytest.mark.parametrize("at_once", [1, 20, 1 << 24])
def test_the_sum_is_that_of_one_sample_after_the_other(small, monkeypatch, at_once):
    monkeypatch.setattr(torch_clipping, "AT_ONCE", at_once)  # 1, 2 and all samples of 10 values
    subject, tensors = small
    names, inputs = ("head.weight", "head.bias"), batch(tensors)
    totals = totals_of(names, tensors)
    ClippedSums(subject, "train", ()).add(inputs, 0.5, totals)
    expected = one_by_one(subject, "train", inputs, names, 0.5)
    unclipped = one_by_one(subject, "train", inputs, names, 1e6)
    for name in names:
        torch.testing.assert_close(totals[name], expected[name], atol=1e-6, rtol=1e-5)
        assert not torch.allclose(totals[name], unclipped[name], rtol=0.01)


def test_extras_go_to_each_sample_by_row_or_whole(small):
    subject, tensors = small
    z = torch.from_numpy(np.random.default_rng(4).standard_normal((2, 7, 4), np.float32))
    extras = {"z_glob": z[0], "z_prev": z[1], "mu": torch.tensor(5.0), "tau": torch.tensor(0.5)}
    names, inputs = ("first.weight", "head.weight"), batch(tensors, **extras)
    totals = totals_of(names, tensors)
    ClippedSums(subject, "moon", {"z_glob", "z_prev"}).add(inputs, 0.5, totals)
    expected = one_by_one(subject, "moon", inputs, names, 0.5)
    for name in names:
        torch.testing.assert_close(totals[name], expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_sample_without_a_finite_norm_adds_nothing(small, broken):
    subject, tensors = small
    names, inputs = ("first.weight", "head.weight"), batch(tensors)
    rest = GraphInputs(inputs.x[1:], inputs.y[1:], {}, tensors)
    inputs.x[0, 0] = broken
    with_it, without = totals_of(names, tensors), totals_of(names, tensors)
    ClippedSums(subject, "train", ()).add(inputs, 0.5, with_it)
    ClippedSums(subject, "train", ()).add(rest, 0.5, without)
    for name in names:
        torch.testing.assert_close(with_it[name], without[name], atol=1e-6, rtol=1e-5)


def private(trainer, max_norm=0.5):
    return PrivateGradients(trainer, Privacy(max_norm, 0.0, np.random.default_rng(0)), lot=40)


@pytest.mark.parametrize("tunable", ["all", "head"])
def test_the_torch_engine_gives_at_once_what_the_default_one_does_sample_by_sample(
    digits, tunable, monkeypatch
):
    """40 samples are two batches of the engine."""
    monkeypatch.delattr(TorchGradients, "loss_and_grads")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((40, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 40)
    theirs, ours = (private(model.trainer(tunable)) for model in (OnnxModel(digits), TorchModel(digits)))
    for trainer in (theirs, ours):
        trainer.params.vector *= np.float32(1.01)  # what a device has trained, not the bundle's
        trainer.loss_and_grads(x, y)
    scale = abs(theirs.grads.vector).max()
    np.testing.assert_allclose(ours.grads.vector, theirs.grads.vector, atol=1e-4 * scale)


def test_no_samples_leave_noise_alone_of_the_torch_engine_too(digits):
    ours = private(TorchModel(digits).trainer("head"))
    ours.grads.vector.fill(3)
    ours.loss_and_grads(np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64))
    assert not ours.grads.vector.any()


def test_a_network_that_cannot_be_run_so_goes_sample_by_sample(digits, caplog):
    model = TorchModel(digits)
    trainer = model.trainer("head")
    decides = lambda _, inputs: (inputs[0],) if inputs[0].sum() < 1e9 else None  # noqa: E731  (vmap cannot)
    model.untuned.module.register_forward_pre_hook(decides)
    ours, theirs = private(trainer), private(OnnxModel(digits).trainer("head"))
    x, y = np.ones((3, 1, 8, 8), np.float32), np.arange(3)
    with caplog.at_level(logging.INFO):
        for step in (ours, theirs, ours):
            step.loss_and_grads(x, y)
    np.testing.assert_allclose(ours.grads.vector, theirs.grads.vector, atol=1e-6)
    assert caplog.text.count("sample by sample") == 1
