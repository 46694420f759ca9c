"""Settings by name, their values, and scenarios at a point of them."""

import numpy as np
import pytest

from device_runtime.simulation.compare.swept_settings import at_point, point_text, setting_named
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario

DIGITS = scenario.load("digits")


@pytest.mark.parametrize(
    "name, declared, place",
    [
        ("lr", "lr", ("all_kinds", "lr")),
        ("rounds", "rounds", ("task", "rounds")),
        ("deadline", "round_deadline_s", ("task", "round_deadline_s")),
        ("devices-per-round", "devices_per_round", ("task", "devices_per_round")),
        ("server.lr", "server.lr", ("task", "server", "lr")),
        ("min-group", "masks.min_group", ("task", "masks", "min_group")),
        ("devices", "devices", ("devices",)),
        ("alpha", "alpha", ("data", "alpha")),
        ("few-shot.shots", "few-shot.shots", ("kinds", "few-shot", "shots")),
        ("few_shot.shots", "few-shot.shots", ("kinds", "few-shot", "shots")),
        ("full.terms.fedprox.mu", "full.terms.fedprox.mu", ("kinds", "full", "terms", "fedprox", "mu")),
    ],
)
def test_settings_are_named_as_in_files_and_as_options(name, declared, place):
    setting = setting_named(name, DIGITS)
    assert (setting.name, setting.place) == (declared, place)


@pytest.mark.parametrize(
    "name, message",
    [
        ("lrr", "no setting is called 'lrr'; near it are lr"),
        ("kinds", "no setting is called 'kinds'"),
        ("seed", "no setting is called 'seed'"),
        ("max_test", "no setting is called 'max_test'"),
        ("full.colour", "full has no setting 'colour'; there are "),
        ("full.terms.fedprox.nu", "full has no setting 'terms.fedprox.nu'"),
        ("peft.lr", "peft.lr: the task offers full, entropy-subset, "),
    ],
)
def test_unknown_settings_are_refused_with_what_there_is(name, message):
    with pytest.raises(ScenarioError) as error:
        setting_named(name, DIGITS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "name, raw, value",
    [
        ("lr", "0.01", 0.01),
        ("lr", 1, 1.0),
        ("lr", np.float32(0.5), 0.5),
        ("epochs", "3", 3),
        ("epochs", np.int64(3), 3),
        ("late", "count", "count"),
        ("devices-per-round", "none", None),
        ("reuse", "true", True),
        ("policy", "fedavg", "fedavg"),
    ],
)
def test_values_are_those_of_the_declared_type(name, raw, value):
    converted = setting_named(name, DIGITS).value(raw)
    assert (converted, type(converted)) == (value, type(value))


@pytest.mark.parametrize(
    "name, raw, message",
    [
        ("lr", "fast", "lr=fast: expected a number, more than 0"),
        ("lr", 0, "lr=0: expected a number, more than 0"),
        ("epochs", 1.5, "epochs=1.5: expected a whole number, 1 to 1000000"),
        ("epochs", True, "epochs=True: expected a whole number"),
        ("late", "never", "late=never: expected one of discard, count"),
        ("alpha", "-1", "alpha=-1: expected a number (expected float > 0.0)"),
        ("devices", "few", "devices=few: expected a whole number"),
    ],
)
def test_other_values_are_refused_with_what_was_expected(name, raw, message):
    with pytest.raises(ScenarioError) as error:
        setting_named(name, DIGITS).value(raw)
    assert message in str(error.value)


def test_a_point_changes_its_settings_and_nothing_else():
    values = {"lr": 0.2, "alpha": 5.0, "devices": 7, "few-shot.shots": 4, "server.lr": 0.5, "policy": "drop"}
    changed = at_point(DIGITS, values)
    assert (changed.all_kinds.lr, changed.data.alpha) == (0.2, 5.0)
    assert (changed.devices, changed.task.server.lr) == (7, 0.5)
    settings = {kind.name: kind.settings for kind in changed.task.kinds}
    assert settings["few-shot"]["shots"] == 4
    before = {"few-shot.shots": 10, "server.lr": None, "alpha": DIGITS.data.alpha, "devices": DIGITS.devices}
    back = at_point(changed, {**before, "lr": None})
    assert back.json() != DIGITS.json(), "shots are written out"
    assert [kind.strategy for kind in back.task.kinds] == [kind.strategy for kind in DIGITS.task.kinds]
    assert at_point(DIGITS, {}).json() == DIGITS.json()


def test_terms_and_masks_that_a_task_has_not_are_put_in():
    changed = at_point(DIGITS, {"full.terms.fedprox.mu": 0.5, "min-group": 4, "policy": "fedavg"})
    [full] = [kind.strategy for kind in changed.task.kinds if kind.name == "full"]
    assert [(term.name, term.mu) for term in full.terms] == [("fedprox", 0.5)]
    assert changed.task.masks.min_group == 4


def test_a_point_that_no_task_can_have_is_refused_with_its_values():
    with pytest.raises(ScenarioError, match=r"^robust_trim=0.1: robust_trim has no effect without robust"):
        at_point(DIGITS, {"robust_trim": 0.1})
    with pytest.raises(ScenarioError, match=r"^buffer_size=5, wait_for=fast: .* a round closes in one way"):
        at_point(DIGITS, {"buffer_size": 5, "wait_for": "fast"})


def test_values_are_written_as_they_are_typed():
    values = {"lr": 0.1, "epochs": 2, "reuse": True, "devices_per_round": None, "late": "count"}
    assert point_text(values) == "lr=0.1, epochs=2, reuse=true, devices_per_round=none, late=count"


def test_a_deadline_may_be_swept_by_its_share_of_stragglers():
    deadline = setting_named("deadline", DIGITS)
    assert deadline.value("30% stragglers") == "30% stragglers"
    assert at_point(DIGITS, {deadline.name: "30% stragglers"}).stragglers == 0.3
    found_later = at_point(DIGITS, {"stragglers": setting_named("stragglers", DIGITS).value("0.5")})
    assert found_later.stragglers == 0.5
    assert at_point(found_later, {deadline.name: 4.0}).stragglers is None
