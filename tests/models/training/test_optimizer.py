import tracemalloc

import numpy as np
import pytest

from device_runtime.models.engines.base import BLOCK
from device_runtime.models.training.optimizer import Adam, Sgd

SIZES = (100, BLOCK, 2 * BLOCK + 5)


def run_of(optimizer, size, steps=10):
    """Parameters after each of `steps` steps, and the gradients that led there."""
    rng = np.random.default_rng(0)
    params = rng.standard_normal(size).astype(np.float32)
    run, path, slopes = optimizer.start(params), [params.copy()], []
    for _ in range(steps):
        slopes.append(rng.standard_normal(size).astype(np.float32))
        run.step(params, slopes[-1])
        path.append(params.copy())
    return path, slopes


def check_against_torch(optimizer, make, size):
    torch = pytest.importorskip("torch")
    path, slopes = run_of(optimizer, size)
    theirs = torch.from_numpy(path[0].copy()).requires_grad_()
    reference = make(torch, [theirs])
    for params, grads in zip(path[1:], slopes, strict=True):
        theirs.grad = torch.from_numpy(grads)
        reference.step()
        np.testing.assert_allclose(params, theirs.detach().numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_ten_steps_of_sgd_are_those_of_torch(momentum, weight_decay, size):
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    check_against_torch(Sgd(**settings), lambda torch, ps: torch.optim.SGD(ps, **settings), size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("decoupled", "reference"), [(False, "Adam"), (True, "AdamW")])
def test_ten_steps_of_adam_are_those_of_torch(weight_decay, decoupled, reference, size):
    def make(torch, parameters):
        kind = getattr(torch.optim, reference)
        return kind(parameters, lr=0.01, betas=(0.8, 0.99), eps=1e-7, weight_decay=weight_decay)

    check_against_torch(Adam(0.01, 0.8, 0.99, 1e-7, weight_decay, decoupled), make, size)


def test_two_steps_of_sgd_by_hand():
    """v = 2 + 0.1 * 1 = 2.1, w = 1 - 0.5 * 2.1 = -0.05; v = 0.9 * 2.1 + 0 - 0.005 = 1.885, w = -0.9925."""
    params = np.array([1.0], np.float32)
    run = Sgd(lr=0.5, momentum=0.9, weight_decay=0.1).start(params)
    run.step(params, np.array([2.0], np.float32))
    np.testing.assert_allclose(params, [-0.05], rtol=1e-5)
    run.step(params, np.array([0.0], np.float32))
    np.testing.assert_allclose(params, [-0.9925], rtol=1e-5)


def test_the_first_step_of_adam_is_the_learning_rate_against_the_sign():
    """m / (1 - b1) = g and sqrt(v / (1 - b2)) = |g|: w - lr * sign(g), eps aside."""
    params = np.array([1.0, 1.0], np.float32)
    Adam(lr=0.25).start(params).step(params, np.array([3.0, -0.01], np.float32))
    np.testing.assert_allclose(params, [0.75, 1.25], rtol=1e-5)


def test_the_second_step_of_adam_by_hand():
    """Gradients 1, then 0, betas 1/2: m = 1/4 over 3/4, v = 1/4 over 3/4, so 1/3 / sqrt(1/3) = 0.57735."""
    params = np.array([0.0], np.float32)
    run = Adam(lr=1.0, beta1=0.5, beta2=0.5, eps=0.0).start(params)
    for slope, after in ((1.0, -1.0), (0.0, -1.57735)):
        run.step(params, np.array([slope], np.float32))
        np.testing.assert_allclose(params, [after], rtol=1e-6)


@pytest.mark.parametrize(("decoupled", "after"), [(True, 2 * (1 - 0.1 * 0.5)), (False, 2 - 0.1)])
def test_weight_decay_beside_a_gradient_of_zero_shrinks_or_counts_as_the_gradient(decoupled, after):
    params = np.array([2.0], np.float32)
    run = Adam(lr=0.1, eps=0.0 if not decoupled else 1e-8, weight_decay=0.5, decoupled=decoupled).start(
        params
    )
    run.step(params, np.zeros(1, np.float32))
    np.testing.assert_allclose(params, [after], rtol=1e-6)


OPTIMIZERS = [
    (Sgd(0.1), 0),
    (Sgd(0.1, 0.9, 0.01), 1),
    (Adam(weight_decay=0.1), 2),
    (Adam(weight_decay=0.1, decoupled=True), 2),
]


@pytest.mark.parametrize(("optimizer", "vectors"), OPTIMIZERS)
def test_a_run_holds_its_momenta_and_two_blocks_at_most(optimizer, vectors):
    size = 40 * BLOCK
    params, grads = np.ones(size, np.float32), np.ones(size, np.float32)
    tracemalloc.start()
    run = optimizer.start(params)
    run.step(params, grads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 4 * (vectors * size + 2 * BLOCK) + 20_000  # the rest: objects, views


@pytest.mark.parametrize(("optimizer", "vectors"), OPTIMIZERS)
def test_gradients_are_left_as_they_are_and_no_parameters_are_nothing_to_do(optimizer, vectors):
    params, grads = np.ones(3, np.float32), np.full(3, 2, np.float32)
    optimizer.start(params).step(params, grads)
    np.testing.assert_array_equal(grads, 2)
    empty = np.zeros(0, np.float32)
    optimizer.start(empty).step(empty, empty)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(-0.1), "lr is -0.1, expected 0 or more"),
        (lambda: Sgd(0.1, momentum=1.0), "momentum is 1.0, expected at least 0 and less than 1"),
        (lambda: Adam(beta2=1.0), "beta2 is 1.0, expected at least 0 and less than 1"),
        (lambda: Adam(eps=float("nan")), "eps is nan, expected 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
