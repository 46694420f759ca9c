import numpy as np
import pytest

from device_runtime.profiles import shipped
from device_runtime.strategies.directions import directions
from device_runtime.strategies.interface.device_half import OutOfTime, Run, Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.local_zeroth_order import LocalZerothOrder
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.training.workload import workload

TWO = LocalZerothOrder(steps=2, num_z=2, eps=1e-2, lr=0.05, tunable="head")


def test_each_step_is_mezo_along_directions_of_the_device_s_own(model, digits, run):
    """w -= lr / num_z * sum_p g_p z_p, written out with whole directions."""
    sent = TWO.train(model, digits, run())
    probe, rng = model.probe("head"), run().rng()
    w, losses = probe.params.vector, []
    for _ in range(2):
        seed, start = int(rng.integers(1 << 53)), w.copy()
        step = np.zeros(len(w))
        for p in range(2):
            z = directions.direction(seed, p, 0, len(w))
            pair = []
            for sign in (1, -1):
                w[:] = start + np.float32(sign * 1e-2) * z
                pair.append(probe.loss(digits.x, digits.y))
            step += (pair[0] - pair[1]) / 2e-2 * z
            losses += pair
        w[:] = start - 0.05 / 2 * step
    for name, expected in probe.params.views.items():
        np.testing.assert_allclose(sent.tensors[name], expected, atol=1e-5)
    assert sent.train_loss == pytest.approx(np.mean(losses), abs=1e-5)
    assert set(sent.tensors) == set(model.manifest.names("head"))


def test_devices_of_one_round_go_along_directions_of_their_own(model, digits, run):
    """What tells it from FedMeZO, where all go along the same."""
    changes = []
    for device in ("pi-1", "pi-2"):
        sent = LocalZerothOrder(steps=1, num_z=1, tunable="head").train(model, digits, run(device)).tensors
        changes.append(np.concatenate([(v - model.weights[n]).ravel() for n, v in sent.items()]))
    cosine = changes[0] @ changes[1] / np.prod([np.linalg.norm(change) for change in changes])
    assert abs(cosine) < 0.2  # of independent directions in 650 dimensions


def test_weights_are_averaged_by_samples_beside_those_of_other_kinds(round_model):
    name = round_model.manifest.head.bias
    effects = {}
    for strategy, value, samples in ((LocalZerothOrder(tunable="head"), 1.0, 30), (FedAvg(), 5.0, 10)):
        sent = Update(strategy.name, {name: np.full(10, value, np.float32)}, samples, 0.0)
        state = strategy.fold(strategy.start(round_model), sent, samples)
        effects[strategy.name] = strategy.finish(state, round_model)
    assert (merge(round_model, effects).base[name] == 2.0).all()  # (30 * 1 + 10 * 5) / 40


def test_steps_lower_the_loss(model, digits, run):
    before = model.probe("head").loss(digits.x, digits.y)
    model.load(
        LocalZerothOrder(steps=30, num_z=4, lr=0.02, tunable="head").train(model, digits, run()).tensors
    )
    assert model.probe("head").loss(digits.x, digits.y) < before


def test_the_device_s_own_clock_stops_it(model, digits, clock):
    def ticking(done):
        clock.now += 1

    with pytest.raises(OutOfTime):
        TWO.train(model, digits, Run(1, "slow", clock, upload_at=3.0, progress=ticking))
    assert clock.now < 8


def test_it_costs_the_forward_passes_of_each_step_and_sends_weights(bundle):
    load, board = workload(bundle.manifest, (6,) * 10), shipped("pi-4")
    single = ZerothOrder(num_z=2).cost(load, board)
    many = LocalZerothOrder(num_z=2, steps=7).cost(load, board)
    assert many.flops == 7 * single.flops
    assert many.bytes_up == FedAvg().cost(load, board).bytes_up
    assert many.peak_memory_bytes == single.peak_memory_bytes + 4 * load.values("all")  # where it stands


@pytest.mark.parametrize("settings", [{"steps": 0}, {"num_z": 0}, {"eps": 0.0}, {"tunable": "toes"}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match=r"expected|no tunable set"):
        LocalZerothOrder(**settings)
