"""Batch statistics as graphs compute them, in plain operators, against torch's own layers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.torch_engine.engine import TorchModel

nn = torch.nn


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


@pytest.fixture
def bundle(network, tmp_path):
    spec = ExportSpec("n", InputSpec((8,)), ("a", "b", "c"), sets={"all": {}}, batchnorm="training")
    return export(network, spec, tmp_path / "b")


@pytest.fixture
def trainer(bundle):
    return open_model(bundle).trainer()


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, 8), np.float32), np.zeros(n, np.int64)


def test_running_statistics_move_as_torch_moves_them(network, trainer):
    x, y = samples(5)
    trainer.loss_and_grads(x, y)
    norm = nn.BatchNorm1d(6)
    norm(network[0](torch.from_numpy(x)))
    for name, moved in trainer.statistics.views.items():
        np.testing.assert_allclose(moved, norm.get_buffer(name.partition(".")[2]).numpy(), atol=1e-6)


def test_a_sample_alone_has_no_variance_and_moves_no_statistics(trainer):
    """The last batch of an epoch may be one sample: n / (n - 1) of its variance would be 0 / 0."""
    before = trainer.statistics.vector.copy()
    assert np.isfinite(trainer.loss_and_grads(*samples(1)))
    np.testing.assert_array_equal(trainer.statistics.vector, before)
    assert np.isfinite(trainer.grads.vector).all()
    trainer.loss_and_grads(*samples(2))
    assert (trainer.statistics.vector != before).all()


def test_torch_takes_a_sample_alone_as_the_graph_does(network, bundle, trainer):
    """Its own layers refuse one value for each channel."""
    other = TorchModel(bundle, module=network).trainer()
    for n in (1, 5):
        assert other.loss_and_grads(*samples(n)) == pytest.approx(
            trainer.loss_and_grads(*samples(n)), abs=1e-6
        )
        np.testing.assert_allclose(other.grads.vector, trainer.grads.vector, atol=1e-6)
        np.testing.assert_allclose(other.statistics.vector, trainer.statistics.vector, atol=1e-6)
