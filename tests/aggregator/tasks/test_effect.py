"""Settings that change nothing in a task are said."""

from types import SimpleNamespace

import msgspec
import pytest

from device_runtime.aggregator.tasks.feasible import without_effect
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec

CLASSES = SimpleNamespace(target=CROSS_ENTROPY)
NUMBERS = SimpleNamespace(target=TargetSpec("mse", "values", ("price",)))
FULL = {"name": "full"}


def effect_of(manifest=CLASSES, **settings):
    task = msgspec.convert({"bundle": "digits-wrn-10-1", "rounds": 5, **settings}, Task)
    return " / ".join(without_effect(task, manifest))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ask_all_rounds": 1}, "ask_all_rounds has no effect without devices_per_round"),
        ({"stop_gain": 0.1}, "stop_gain has no effect without stop_after"),
        (
            {"robust": "median", "robust_trim": 0.1},
            "robust_trim has no effect: it is of trimmed-mean, and robust is median",
        ),
        (
            {"server": {"name": "fedavgm", "beta1": 0.5}},
            "server.beta1 has no effect: it is of fedadam or fedyogi, and server is fedavgm",
        ),
        ({"max_staleness": 2, "wait_for": "all"}, "max_staleness has no effect: late updates do not"),
        (
            {"kinds": [FULL, {"name": "few-shot", "from_round": 9}]},
            "few-shot is never offered: from_round is 9, of 5 rounds",
        ),
        ({"kinds": [FULL], "statistics": {"samples": 9}}, "statistics has no effect: the trained head is"),
        ({"generic": "some.npz"}, "generic has no effect: no kind of update that is offered trains on"),
        ({"family": ["small"], "kinds": [FULL]}, "family has no effect: of the kinds of update"),
    ],
)
def test_a_setting_that_changes_nothing_is_named(settings, sentence):
    assert sentence in effect_of(**settings)


def test_heads_and_statistics_are_nothing_where_the_loss_is_ones_own():
    settings = {"head": "closed-form", "statistics": {"samples": 9}}
    assert effect_of(NUMBERS, **settings) == ""
    own = SimpleNamespace(target=TargetSpec("pinball", "values", ("price",), own=True))
    why = "the bundle's loss is pinball of price, which only its graphs know"
    assert effect_of(own, **settings).split(" / ") == [
        f"head = closed-form has no effect: {why}",
        f"statistics has no effect: {why}",
    ]
    assert effect_of(**settings) == ""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ask_all_rounds": 1, "devices_per_round": 3},
        {"robust": "trimmed-mean", "robust_trim": 0.1, "kinds": [FULL]},
        {"server": {"name": "fedadam", "beta1": 0.5, "tau": 0.1}},
        {"max_staleness": 2},
        {"max_staleness": 2, "late": "count", "staleness_weight": 1.0},
        {"head": "closed-form", "kinds": [FULL], "statistics": {"samples": 9}},
    ],
)
def test_nothing_is_said_of_settings_that_act(settings):
    assert effect_of(**settings) == ""
