import numpy as np
import pytest

from models.sgd import Sgd, SgdState

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_ten_steps_are_those_of_torch(momentum, weight_decay):
    rng = np.random.default_rng(0)
    params = rng.standard_normal(100).astype(np.float32)
    theirs = torch.from_numpy(params.copy()).requires_grad_()
    optimiser = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    state = SgdState(Sgd(0.1, momentum, weight_decay), params)
    for _ in range(10):
        grads = rng.standard_normal(100).astype(np.float32)
        theirs.grad = torch.from_numpy(grads.copy())
        optimiser.step()
        state.step(params, grads)
    np.testing.assert_allclose(params, theirs.detach().numpy(), rtol=0, atol=2e-6)


def test_proximal_term_pulls_back_to_where_the_round_started():
    params = np.array([1.0], np.float32)
    state = SgdState(Sgd(lr=0.5, proximal=0.2), params)
    state.step(params, np.array([2.0], np.float32))  # at the anchor: 1 - 0.5 * 2
    assert params[0] == 0
    state.step(params, np.array([0.0], np.float32))  # 0 - 0.5 * 0.2 * (0 - 1)
    np.testing.assert_allclose(params, [0.1], rtol=1e-6)


def test_step_changes_parameters_in_place_and_leaves_gradients():
    params, grads = np.ones(3, np.float32), np.full(3, 2, np.float32)
    SgdState(Sgd(lr=0.25, momentum=0.9, weight_decay=1, proximal=1), params).step(params, grads)
    np.testing.assert_array_equal(grads, 2)
    np.testing.assert_allclose(params, 1 - 0.25 * 3)
