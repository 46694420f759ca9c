"""Where the fleet's samples are while networks are trained together."""

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import encode
from device_runtime.models.errors import GpuOutOfMemory
from device_runtime.models.torch_engine import many
from device_runtime.models.torch_engine.place import TorchProcessor
from device_runtime.simulation.executors import fleet_samples
from device_runtime.simulation.executors.batched_many import BatchedNetworks
from device_runtime.simulation.executors.fleet_samples import FleetSamples
from device_runtime.simulation.executors.job import ExecutorInputs, TrainingJob
from device_runtime.strategies.kinds import registry

CPU = TorchProcessor(torch.device("cpu"), 1, None)


@dataclass(frozen=True)
class AsGpu(TorchProcessor):
    """A processor that is taken for a GPU of so many bytes."""

    memory: int = 0

    @property
    def on_cpu(self) -> bool:
        return False

    @property
    def gpu_bytes(self) -> int:
        return self.memory


def gpu(memory: int) -> AsGpu:
    return AsGpu(torch.device("cpu"), 1, None, memory=memory)


def samples_of(inputs: ExecutorInputs, place: TorchProcessor) -> FleetSamples:
    return FleetSamples(inputs.clients, inputs.bundle.manifest, place)


def test_samples_of_a_group_are_prepared_at_once_and_shared_by_its_plans(inputs):
    spec, group = inputs.bundle.manifest.input, samples_of(inputs, CPU).of([2, 0])
    assert group[0].x is group[1].x
    assert [len(each.rows) for each in group] == [7, 1]
    for device, each in zip((2, 0), group, strict=True):
        expected = inputs.clients.local(device, spec)
        np.testing.assert_array_equal(each.x[each.rows], expected.x)
        np.testing.assert_array_equal(each.y[each.rows], expected.y)
        np.testing.assert_array_equal(each.local.y, expected.y)
        assert np.shares_memory(each.local.x, each.x)


def test_a_gpu_with_room_has_the_samples_of_all_devices_once(inputs, monkeypatch):
    monkeypatch.setattr(fleet_samples, "PREPARED_TOGETHER", 700)  # of 1797
    manifest, clients = inputs.bundle.manifest, inputs.clients
    bytes_of_all = len(clients.y) * (4 * 64 + 8)
    fits = samples_of(inputs, gpu(4 * bytes_of_all))
    group, other = fits.of([3, 1]), fits.of([2])
    assert group[0].x is group[1].x is other[0].x
    np.testing.assert_array_equal(group[0].x.numpy(), manifest.input.prepare(clients.x))
    np.testing.assert_array_equal(group[0].y.numpy(), clients.y)
    for device, each in zip((3, 1), group, strict=True):
        assert each.rows.tolist() == clients.indices(device).tolist()
        assert "x" not in vars(each.local)
        np.testing.assert_array_equal(each.local.x, clients.local(device, manifest.input).x)
    assert isinstance(samples_of(inputs, gpu(4 * bytes_of_all - 4)).of([3])[0].x, np.ndarray)


@pytest.mark.parametrize("memory", [0, 1 << 40])
def test_networks_are_trained_alike_wherever_the_samples_are(bundle, inputs, memory, monkeypatch):
    kind, base = registry.make("full", {"epochs": 1, "batch": 4}), bundle.weights()
    jobs = [TrainingJob(device, f"pi-{device}", kind, 7, "1") for device in range(6)]
    inputs = ExecutorInputs(bundle, inputs.clients, EngineSettings("torch"))
    expected = BatchedNetworks(inputs).train(base, jobs)
    elsewhere = BatchedNetworks(inputs)
    monkeypatch.setattr(elsewhere._opened(), "place", gpu(memory))
    for result, other in zip(elsewhere.train(base, jobs), expected, strict=True):
        assert result.train_loss == other.train_loss
        assert encode(result.tensors) == encode(other.tensors)


def test_fewer_networks_are_trained_together_where_memory_does_not_suffice(
    bundle, inputs, monkeypatch, caplog
):
    kind, base = registry.make("full", {"epochs": 1, "batch": 4}), bundle.weights()
    jobs = [TrainingJob(device, f"pi-{device}", kind, 7, "1") for device in range(6)]
    inputs = ExecutorInputs(bundle, inputs.clients, EngineSettings("torch"))
    expected = BatchedNetworks(inputs).train(base, jobs)
    groups: list[int] = []
    step = many._Training._step

    def with_room_for_two(training, batches):
        groups.append(len(training._copies))
        if len(training._copies) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(training, batches)

    monkeypatch.setattr(many._Training, "_step", with_room_for_two)
    networks = BatchedNetworks(inputs)
    for result, other in zip(networks.train(base, jobs), expected, strict=True):
        assert result.train_loss == pytest.approx(other.train_loss, rel=1e-4)
        for name, value in other.tensors.items():
            np.testing.assert_allclose(result.tensors[name], value, atol=1e-5)
    assert list(dict.fromkeys(groups)) == [6, 3, 2]
    assert networks.together == 2
    assert "3 networks are trained together from now on, not 6: torch, graph train.all" in caplog.text
    assert "2 networks are trained together from now on, not 3" in caplog.text
    networks.together = 1

    def full(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(many._Training, "run", full)
    with pytest.raises(GpuOutOfMemory, match="on 1 samples: CUDA out of memory"):
        networks.train(base, jobs)
