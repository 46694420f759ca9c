"""Devices and updates of a result: one small run, with test samples of each device's own."""

from math import isnan

import pytest

import device_runtime as dr
from device_runtime.simulation.errors import SimulationError


@pytest.fixture(scope="module")
def tested():
    return dr.simulate(
        "digits",
        fleet="phones",
        data=dr.data.digits(device_test_share=0.25, alpha=1.0),
        policies=["mixed"],
        devices=6,
        rounds=2,
        callbacks=[dr.Callback()],
        progress=False,
    )


def test_each_device_is_tested_on_samples_that_it_does_not_train_on(tested):
    devices = tested.devices()
    assert len(devices) == 6
    assert all(row.test_samples and 0 <= row.accuracy <= 1 for row in devices)
    train, test = sum(row.samples for row in devices), sum(row.test_samples for row in devices)
    assert train + test == 6 * (1437 // 6)  # of 1437 digits, as many for each
    assert test == pytest.approx(0.25 * 1437, abs=6)
    most = {row.device: row.samples for row in devices}
    assert all(row.samples <= most[row.device] for row in tested.updates())
    assert 0 < devices.summary("mixed").fairness <= 1
    assert any(not isnan(row.personal_accuracy) for row in devices)


def test_rows_add_up_to_the_figures_of_the_run(tested):
    run = tested.run("mixed")
    assert sum(row.energy_j for row in tested.devices()) == pytest.approx(run.figures.energy_j)
    assert sum(row.bytes_up for row in tested.updates()) == run.figures.bytes_up
    counted = [row for row in tested.updates() if row.fate == "counted"]
    assert len(counted) == sum(row.contributions for row in tested.devices())
    assert all(row.norm > 0 for row in counted if row.kind not in ("class-means", ""))


def test_a_run_that_does_not_exist_is_named(tested):
    with pytest.raises(SimulationError, match=r"no run of policy 'drop'; there are mixed-0"):
        tested.devices("drop")
    with pytest.raises(SimulationError, match="no run of mixed with seed 3"):
        tested.updates("mixed", seed=3)


def test_rows_become_data_frames(tested):
    pytest.importorskip("pandas")
    assert tested.devices().to_pandas().device.is_unique
    assert len(tested.updates().to_pandas()) == len(tested.updates())
