"""What a round costs a fleet, who is a straggler, and the deadline of a share of stragglers."""

import numpy as np
import pytest

from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.rounds.forecast import _deadline_of, forecast, with_deadline
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from tests.simulation.rounds.test_simulation_loop import Notes

FLEET = {
    "name": "two",
    "groups": {
        "fast": {"profile": "pi-5", "share": 0.6, "speed": {"sigma": 0.3}},
        "slow": {"profile": "pi-zero-2w", "share": 0.4, "speed": {"sigma": 0.3}, "link": {"latency_s": 0.1}},
    },
}


def load(task=None, **over):
    deadline = {} if task and "deadline" in task else {"round_deadline_s": 3.0}
    settings = {"rounds": 2, **deadline, **(task or {})}
    small = {"partition": "iid", "samples_per_client": 40}
    return scenario.load(
        "uniform", {"fleet": FLEET, "devices": 10, "slow": 20.0, "data": small, "task": settings, **over}
    )


@pytest.mark.parametrize("kinds", [None, ["full", "class-means"]])
def test_stragglers_are_those_of_the_simulation(kinds):
    task = {"kinds": [{"name": name} for name in kinds]} if kinds else {}
    setting = load(task)
    predicted = forecast(setting)
    notes = Notes()
    simulate(prepare(setting, 0), observer=notes)
    late = {ask.device for ask in notes.asks if ask.straggler and ask.round == 2}
    fleet = setting.fleet.draw(10, 0)
    assert {fleet.name(int(device)) for device in np.flatnonzero(predicted.straggler)} == late
    assert 0 < len(late) < 10
    sent = {ask.kind for ask in notes.asks if ask.round == 2}
    assert {kind.kind for kind in predicted.kinds if kind.sends.any()} == sent


@pytest.mark.parametrize("kinds", [None, ["full", "class-means"]])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_the_deadline_of_a_share_makes_so_many_stragglers(kinds, share):
    task = {"kinds": [{"name": name} for name in kinds]} if kinds else {}
    setting = with_deadline(load({**task, "round_deadline_s": f"{100 * share:g}% stragglers"}))
    assert setting.stragglers is None
    predicted = forecast(setting)
    assert int(predicted.straggler.sum()) == round(10 * share)
    assert np.array_equal(predicted.straggler, predicted.needs_s > setting.task.round_deadline_s)


def test_devices_that_are_alike_are_all_stragglers_or_none():
    alike = {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}
    setting = with_deadline(load({"deadline": "30% stragglers"}, fleet=alike))
    assert not forecast(setting).straggler.any()


def test_devices_without_the_memory_are_stragglers_whatever_the_deadline():
    groups = {**FLEET["groups"], "slow": {**FLEET["groups"]["slow"], "memory": {"limit_mb": 10}}}
    tight = {"name": "tight", "groups": groups}
    predicted = forecast(load({"round_deadline_s": 1e6}, fleet=tight))
    assert int(predicted.straggler.sum()) == 4
    assert np.isinf(predicted.needs_s[predicted.straggler]).all()
    with pytest.raises(ScenarioError, match="4 of 10 devices lack the memory .* expected 40% or"):
        with_deadline(load({"deadline": "30% stragglers"}, fleet=tight))


def test_only_devices_that_train_are_looked_at():
    predicted = forecast(load({"devices_with": ["group=slow"]}))
    assert (set(predicted.groups), predicted.devices) == ({"slow"}, 4)


def test_deadlines_are_rounded_where_that_changes_nothing():
    """Of needs of 1, 2.3456 and 9 seconds: two devices need 2.3456 s at most, 2.35 in three digits."""
    needs = np.array([9.0, 1.0, 2.3456])
    assert _deadline_of(needs, 1 / 3) == 2.35
    assert _deadline_of(needs, 0.0) == 9.0
    assert _deadline_of(np.array([1.0001, 1.0002, 5.0]), 2 / 3) == pytest.approx(1.00015)
    assert _deadline_of(np.array([1.0, 1.0, 5.0]), 2 / 3) == 1.0  # the nearest: one straggler, not two
    with pytest.raises(ScenarioError, match="every device lacks the memory"):
        _deadline_of(np.array([np.inf]), 0.999)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"deadline": "100% stragglers"}, "deadline is '100% stragglers', expected 0 to less than 100%"),
        ({"deadline": 3.0, "round_deadline_s": 3.0}, "deadline and round_deadline_s are the same setting"),
        ({"deadline": "soon"}, "round_deadline_s"),
    ],
)
def test_a_deadline_that_is_not_understood_is_refused(task, message):
    with pytest.raises(ScenarioError) as caught:
        scenario.load("uniform", {"task": task})
    assert message in str(caught.value)
