import numpy as np
import pytest

from device_runtime.models.errors import TensorError
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd

torch = pytest.importorskip("torch")


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((60, 64)).astype(np.float32), rng.integers(0, 10, 60)


def linear(digits) -> "torch.nn.Linear":
    layer = torch.nn.Linear(64, 10)
    weights = digits.weights()
    layer.weight.data = torch.from_numpy(weights["head.weight"])
    layer.bias.data = torch.from_numpy(weights["head.bias"])
    return layer


def test_loss_and_gradients_are_those_of_torch(digits, data):
    features, y = data
    head = SoftmaxHead(digits.manifest, digits.weights())
    layer = linear(digits)
    loss = torch.nn.functional.cross_entropy(layer(torch.from_numpy(features)), torch.from_numpy(y))
    loss.backward()
    assert head.loss_and_grads(features, y) == pytest.approx(loss.item(), abs=2e-6)
    np.testing.assert_allclose(head.grads.views["head.weight"], layer.weight.grad.numpy(), atol=2e-6)
    np.testing.assert_allclose(head.grads.views["head.bias"], layer.bias.grad.numpy(), atol=2e-6)


def test_two_epochs_end_where_torch_ends(digits, data):
    features, y = data
    batches = [np.arange(start, start + 20) for start in (0, 20, 40)] * 2
    head = SoftmaxHead(digits.manifest, digits.weights())
    layer = linear(digits)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        logits = layer(torch.from_numpy(features[batch]))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y[batch]))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    mean_loss = head.train(features, y, batches, Sgd(lr=0.1, momentum=0.9))
    assert mean_loss == pytest.approx(np.mean(losses), abs=2e-6)
    np.testing.assert_allclose(head.params.views["head.weight"], layer.weight.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(head.params.views["head.bias"], layer.bias.detach().numpy(), atol=2e-6)


def test_features_of_another_width_are_refused(digits):
    head = SoftmaxHead(digits.manifest, digits.weights())
    with pytest.raises(TensorError, match=r"features are \(2, 32\), expected \(n, 64\)"):
        head.logits(np.zeros((2, 32), np.float32))
