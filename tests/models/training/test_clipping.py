import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.engines.base import BLOCK
from device_runtime.models.errors import EngineError
from device_runtime.models.training.optimizer import Privacy, PrivateGradients, clip, norm


class Rows:
    """A trainer of a linear model without bias: the gradient of a batch is the mean of its rows of x.

    Adds the extra `shift`, one for all, and the extra `each`, of which there is one for each sample.
    """

    def __init__(self, width: int = 2, statistics: int = 0) -> None:
        self.params, self.grads = (Flat([TensorSpec("w", (width,))]) for _ in range(2))
        self.statistics = Flat([TensorSpec(f"mean.{i}", (1,)) for i in range(statistics)])

    def loss_and_grads(self, x, y, extras):
        self.grads.vector[:] = x.mean(axis=0)
        if extras:
            assert extras["each"].shape == (len(x), 1)
            self.grads.vector += extras["shift"] + extras["each"].mean()
        return float(y.mean())


def private(noise=0.0, max_norm=1.0, seed=0):
    return Privacy(max_norm, noise, np.random.default_rng(seed))


def test_the_norm_is_that_of_the_whole_vector():
    values = np.random.default_rng(0).standard_normal(3 * BLOCK + 7).astype(np.float32)
    assert norm(values) == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-6)


def test_a_long_gradient_is_scaled_to_the_norm_and_a_short_one_left():
    """|(3, 4)| = 5, clipped to 1: (0.6, 0.8)."""
    grads = np.array([3, 4], np.float32)
    assert clip(grads, 1.0) == 5
    np.testing.assert_allclose(grads, [0.6, 0.8], rtol=1e-6)
    assert clip(grads, 2.0) == pytest.approx(1.0)
    np.testing.assert_allclose(grads, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("max_norm", [1e-6, 0.5, 5.0, 1e3])
def test_a_step_is_clipped_as_torch_clips_it(max_norm):
    torch = pytest.importorskip("torch")
    grads = np.random.default_rng(1).standard_normal(BLOCK + 9).astype(np.float32)
    grads *= np.float32(0.01)
    parameters = [torch.zeros(BLOCK), torch.zeros(9)]
    for parameter, grad in zip(parameters, torch.from_numpy(grads.copy()).split([BLOCK, 9]), strict=True):
        parameter.grad = grad
    before = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    assert clip(grads, max_norm) == pytest.approx(before.item(), rel=1e-6)
    theirs = torch.cat([parameter.grad for parameter in parameters]).numpy()
    np.testing.assert_allclose(grads, theirs, rtol=2e-6)


def test_each_sample_is_clipped_before_the_mean():
    """(3, 4) becomes (0.6, 0.8), (0, 0.5) stays: over a lot of 2 (0.3, 0.65)."""
    trainer = PrivateGradients(Rows(), private(), lot=2)
    trainer.loss_and_grads(np.array([[3, 4], [0, 0.5]], np.float32), np.array([1, 3]))
    np.testing.assert_allclose(trainer.grads.vector, [0.3, 0.65], rtol=1e-6)


def test_the_loss_which_nothing_protects_is_not_told():
    trainer = PrivateGradients(Rows(), private(), lot=2)
    for x, y in (([[3, 4], [0, 0.5]], [1, 3]), (np.zeros((0, 2)), [])):
        assert np.isnan(trainer.loss_and_grads(np.array(x, np.float32), np.array(y, int)))


def test_the_sum_is_divided_by_the_lot_whatever_the_batch():
    trainer = PrivateGradients(Rows(), private(), lot=4)
    trainer.loss_and_grads(np.array([[0, 0.5]], np.float32), np.array([1]))
    np.testing.assert_allclose(trainer.grads.vector, [0, 0.125])


@pytest.mark.parametrize("broken", [np.nan, np.inf, 3e38])
def test_a_sample_without_a_finite_norm_adds_nothing(broken):
    """(broken, 0) is left out, (0, 0.5) stays: over a lot of 2 (0, 0.25)."""
    trainer = PrivateGradients(Rows(), private(), lot=2)
    trainer.loss_and_grads(np.array([[broken, 0], [0, 0.5]], np.float32), np.array([1, 3]))
    np.testing.assert_allclose(trainer.grads.vector, [0, 0.25])


def test_extras_go_to_each_sample_by_row_or_whole():
    """Rows (0, 0) + 0.1 + (0.2, 0.4): (0.3, 0.3) and (0.5, 0.5), both shorter than 1; the mean is 0.4."""
    trainer = PrivateGradients(Rows(), private(), lot=2, rows={"each"})
    extras = {"shift": np.float32(0.1), "each": np.array([[0.2], [0.4]], np.float32)}
    trainer.loss_and_grads(np.zeros((2, 2), np.float32), np.zeros(2, int), extras)
    np.testing.assert_allclose(trainer.grads.vector, [0.4, 0.4], rtol=1e-6)


def test_noise_has_the_stated_deviation_also_where_no_sample_was_drawn():
    """sigma 2 times norm 3 over a lot of 8: 0.75. Of 98,311 draws the deviation is within 1%."""
    trainer = PrivateGradients(Rows(3 * BLOCK + 7), private(noise=2.0, max_norm=3.0), lot=8)
    trainer.loss_and_grads(np.zeros((0, 3 * BLOCK + 7), np.float32), np.zeros(0, int))
    noise = trainer.grads.vector
    assert noise.std() == pytest.approx(0.75, rel=0.01)
    assert abs(noise.mean()) < 4 * 0.75 / np.sqrt(noise.size)
    assert np.unique(noise).size > 0.9 * noise.size


def test_noise_is_what_the_given_generator_draws():
    a, b, other = (PrivateGradients(Rows(), private(1.0, seed=seed), 1) for seed in (7, 7, 8))
    for trainer in (a, b, other):
        trainer.loss_and_grads(np.zeros((1, 2), np.float32), np.zeros(1, int))
    np.testing.assert_array_equal(a.grads.vector, b.grads.vector)
    assert not np.array_equal(a.grads.vector, other.grads.vector)


def test_a_trainer_with_batch_statistics_is_refused():
    with pytest.raises(EngineError, match=r"has 2, such as mean\.0; export it with frozen BatchNorm"):
        PrivateGradients(Rows(statistics=2), private(), lot=1)


@pytest.mark.parametrize("settings", [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (float("nan"), 1.0)])
def test_privacy_that_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        Privacy(*settings, np.random.default_rng(0))


@pytest.mark.parametrize("tunable", ["all", "head"])
def test_clipped_gradients_of_the_shipped_bundle_are_those_of_torch_func(digits, tunable):
    """vmap over grad gives every sample's gradient at once; half of the norms lie above the bound."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.networks.convolutional import wrn

    module = wrn(depth=10, width=1, in_channels=1, classes=10).eval()
    module.load_state_dict({name: torch.from_numpy(w) for name, w in digits.weights().items()})
    module.requires_grad_(False)
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((8, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 8)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    free = {name: state.pop(name) for name in digits.manifest.names(tunable)}

    def loss(values, sample, label):
        logits = torch.func.functional_call(module, {**state, **values}, (sample[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(
        free, torch.from_numpy(x), torch.from_numpy(y)
    )
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    bound = norms.median().item() * 1.0001
    factors = (bound / norms).clamp(max=1)
    trainer = PrivateGradients(OnnxModel(digits).trainer(tunable), private(max_norm=bound), lot=8)
    trainer.loss_and_grads(x, y)
    for name, grads in each.items():
        expected = torch.einsum("n,n...->...", factors, grads).numpy() / 8
        np.testing.assert_allclose(
            trainer.grads.views[name], expected, atol=1e-6 + 1e-4 * abs(expected).max()
        )
