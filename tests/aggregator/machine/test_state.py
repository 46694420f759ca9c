from dataclasses import fields, replace

import pytest

from device_runtime.aggregator.machine.state import RoundsState, Rules
from device_runtime.aggregator.tasks.closing import FullBuffer
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task

OTHERS = {"richest", "bound", "all_devices", "max_contributions", "given", "masked"}
"""Rules that are no settings of a task."""


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 7, "round_deadline_s": 9.0, "min_contributions": 2, "min_devices": 3, "late": "count"},
        {"devices_per_round": 4, "ask_all_rounds": 1, "untimed_rounds": 2, "deadline_quantile": 0.8},
        {"buffer_size": 2, "max_staleness": 7, "staleness_weight": 0.25},
        {"stop_after": 3, "stop_gain": 0.1, "max_extensions": 2, "wait_for": "fast"},
    ],
)
def test_the_rules_of_a_run_are_the_settings_of_its_task(settings):
    task = Task(bundle="b", **settings)
    rules = Rules.of(task)
    for name in (field.name for field in fields(Rules) if field.name not in OTHERS):
        assert getattr(rules, name) == getattr(task, name), name
    assert not rules.masked


def test_kinds_whose_round_must_be_their_own_never_count_in_a_later_one():
    task = Task(bundle="b", kinds=(KindSettings(name="prototypes"), KindSettings(name="class-means")))
    assert Rules.of(task).bound == {"prototypes"}


def test_a_device_has_the_rest_of_the_round_and_in_a_buffered_run_a_whole_deadline():
    state = RoundsState(Rules(9, 10.0, untimed_rounds=1), "collect", round=2, closes_at=30.0)
    assert [state.remaining_s(now) for now in (20.5, 29.5, 31.0)] == [9.5, 0.5, 0.0]
    assert replace(state, phase="merge").remaining_s(20.5) == 0.0
    assert replace(state, rules=replace(state.rules, closing=FullBuffer(1))).remaining_s(29.0) == 10.0
