import numpy as np
import pytest

from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.engines.base import BLOCK
from device_runtime.models.errors import TensorError
from device_runtime.models.training.optimizer import Adam, Sgd
from device_runtime.strategies.terms.proximal import Proximal

SPECS = [TensorSpec("body", (2, 2)), TensorSpec("head", (3,))]


def flat(**values: float) -> Flat:
    flat = Flat(SPECS)
    for name, value in values.items():
        flat.views[name].fill(value)
    return flat


def test_fedprox_adds_mu_times_the_way_from_the_anchor_everywhere():
    """0.5 * (3 - 1) = 1 on the body, 0.5 * (5 - 1) = 2 on the head, beside gradients of 10."""
    params, grads = flat(body=3, head=5), flat(body=10, head=10)
    Proximal(0.5, flat(body=1, head=1).tensors()).start(params).add(params, grads)
    np.testing.assert_allclose(grads.vector, [11, 11, 11, 11, 12, 12, 12])


def test_fscprox_pulls_the_classifier_alone_and_by_twice_its_weight():
    """The gradient of 0.25 * ||theta - theta_fs||^2 is 0.5 * (5 - 1) = 2."""
    params, grads = flat(body=3, head=5), flat()
    Proximal(2 * 0.25, {"head": np.ones(3, np.float32)}).start(params).add(params, grads)
    np.testing.assert_allclose(grads.vector, [0, 0, 0, 0, 2, 2, 2])


@pytest.mark.parametrize("optimizer", [Sgd(0.1, 0.9, 0.01), Adam(0.05)])
def test_any_optimizer_ends_where_torch_ends_with_the_term_in_its_loss(optimizer):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    params, grads = flat(), flat()
    params.vector[:] = rng.standard_normal(7)
    anchor = {"head": rng.standard_normal(3).astype(np.float32)}
    theirs = [torch.from_numpy(value).requires_grad_() for value in params.tensors().values()]
    if isinstance(optimizer, Sgd):
        reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.01)
    else:
        reference = torch.optim.Adam(theirs, lr=0.05)
    pull, run = Proximal(2 * 0.7, anchor).start(params), optimizer.start(params.vector)
    for _ in range(5):
        slopes = rng.standard_normal(7).astype(np.float32)
        grads.vector[:] = slopes
        pull.add(params, grads)
        run.step(params.vector, grads.vector)
        reference.zero_grad()
        slope_tensor = torch.from_numpy(slopes)
        term = 0.7 * ((theirs[1] - torch.from_numpy(anchor["head"])) ** 2).sum()
        (slope_tensor @ torch.cat([tensor.flatten() for tensor in theirs]) + term).backward()
        reference.step()
    expected = np.concatenate([tensor.detach().numpy().ravel() for tensor in theirs])
    np.testing.assert_allclose(params.vector, expected, atol=2e-6)


def test_a_tensor_longer_than_a_block_is_pulled_to_its_end():
    spec = [TensorSpec("long", (2, BLOCK + 3))]
    params, grads = Flat(spec), Flat(spec)
    anchor = np.arange(spec[0].size, dtype=np.float32).reshape(spec[0].shape)
    Proximal(1.0, {"long": anchor}).start(params).add(params, grads)
    np.testing.assert_array_equal(grads.views["long"], -anchor)


@pytest.mark.parametrize(
    ("anchor", "message"),
    [
        ({"toes": np.ones(3, np.float32)}, "proximal anchor toes is not among the 2 trained tensors"),
        ({"head": np.ones(4, np.float32)}, r"head is float32 \(4,\), expected float32 \(3,\)"),
        ({"head": np.ones(3)}, r"head is float64 \(3,\), expected float32 \(3,\)"),
    ],
)
def test_an_anchor_that_does_not_fit_is_refused(anchor, message):
    with pytest.raises(TensorError, match=message):
        Proximal(1.0, anchor).start(flat())
