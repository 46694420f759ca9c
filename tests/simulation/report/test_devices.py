"""Tables of devices and updates: what is summed, what is told, what a file holds."""

from dataclasses import replace
from math import isnan, nan

import pytest

from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan
from device_runtime.simulation.compare.run_folder import ASKS, DEVICES, RecordWriter, RunName
from device_runtime.simulation.history.records import DeviceEvaluation
from device_runtime.simulation.report.devices import (
    DeviceFigures,
    DeviceSummary,
    DeviceTable,
    device_table,
    update_table,
)
from device_runtime.simulation.scenarios import scenario

FLEET = scenario.load("uniform", {"devices": 3})
NAME = RunName("choose", 0)


def row(device="a", accuracy=nan, **changes):
    return DeviceFigures("choose", 0, device, "boards", accuracy=accuracy, **changes)


@pytest.fixture
def plan(tmp_path, ask):
    """A run of three devices: the first counted once and was late once, the second sat out."""
    plan = ComparisonPlan(FLEET, Comparison(policies=("choose",)), tmp_path)
    fleet = FLEET.fleet.draw(3, 0)
    group = fleet.group(0)
    asks = (
        ask(device=fleet.name(0), group=group, norm=0.5, train_loss=1.5),
        ask(device=fleet.name(0), group=group, fate="late", into=0, energy_j=3.0, why="round 2 is closed"),
        ask(device=fleet.name(1), group=group, kind="", fate="sat out", into=0, bytes_up=0, num_examples=0),
    )
    plan.of(NAME).mkdir(parents=True)
    with RecordWriter(plan.of(NAME) / ASKS) as file:
        for each in asks:
            file.add(each)
    return plan


def test_a_device_s_row_sums_all_that_it_was_asked_for(plan):
    first, second, third = device_table(plan, plan.names)
    assert (first.asks, first.contributions, first.kinds) == (2, 1, {"full": 1})
    assert (first.seconds, first.energy_j) == (2 * 8.0, 12.0 + 3.0)
    assert (first.bytes_up, first.bytes_down, first.train_loss) == (1000, 3000, 1.5)
    assert (second.asks, second.contributions, second.kinds) == (1, 0, {})
    assert (third.asks, third.seconds) == (0, 0.0)
    assert isnan(third.train_loss) and isnan(third.accuracy)


def test_an_update_s_row_says_what_became_of_it(plan):
    counted, late, sat_out = update_table(plan, plan.names)
    assert (counted.fate, counted.norm, counted.loss, counted.seconds) == ("counted", 0.5, 1.5, 8.0)
    assert (late.fate, late.why, late.into) == ("late", "round 2 is closed", 0)
    assert (sat_out.kind, sat_out.samples) == ("", 0)
    text = str(update_table(plan, plan.names))
    assert text.splitlines()[0] == "choose: 3 updates were asked for, 1 counted"
    assert "sat out" in text and "0.500" in text


def test_the_tests_of_devices_are_read_from_the_run_s_folder(plan):
    fleet = FLEET.fleet.draw(3, 0)
    with RecordWriter(plan.of(NAME) / DEVICES) as file:
        file.add(DeviceEvaluation(fleet.name(2), fleet.group(2), 9, 3, 2 / 3, 0.5, 1.0, 0.1))
    table = device_table(plan, plan.names)
    assert (table[2].samples, table[2].test_samples) == (9, 3)
    assert table.summary().devices == 1
    assert table.summary().personal_accuracy == 1.0
    assert "own head" in str(table) and "with classifiers of their own 100.0%" in str(table)


def test_without_tests_the_text_says_which_setting_gives_them(plan):
    text = str(device_table(plan, plan.names))
    assert text.startswith("choose: the updates of 1 of 3 devices counted; their accuracy needs")
    assert "device_test_share" in text and "own head" not in text


def test_worst_tenth_spread_and_fairness_are_over_devices():
    summary = DeviceSummary.of([row(str(i), i / 10) for i in range(1, 11)] + [row("untested")])
    assert summary.devices == 10
    assert summary.accuracy == pytest.approx(0.55)
    assert summary.worst_tenth == pytest.approx(0.1)  # one of ten devices
    assert summary.spread == pytest.approx((8.25 / 100) ** 0.5)  # variance of 1 to 10: (n^2 - 1) / 12
    assert summary.fairness == pytest.approx(5.5**2 / (10 * 3.85))
    eleven = DeviceSummary.of(row(str(i), i / 10) for i in range(11))
    assert eleven.worst_tenth == pytest.approx(0.05)  # the worst two of eleven


def test_a_csv_has_the_fields_of_the_rows_and_empty_cells_for_nan(tmp_path):
    table = DeviceTable([row(kinds={"full": 3, "few-shot": 1}), replace(row("b"), accuracy=0.5)])
    table.to_csv(tmp_path / "devices.csv")
    heads, first, second = (tmp_path / "devices.csv").read_text().splitlines()
    assert heads.startswith("policy,seed,device,group,kinds,asks,contributions,seconds,energy_j,bytes_up")
    assert "full=3 few-shot=1" in first and "nan" not in first
    assert second.endswith(",0.5,,,")


def test_rows_are_a_sequence(plan):
    table = device_table(plan, plan.names)
    assert len(table) == 3 and table[0] in table and table[:2] == table.rows[:2]
    assert repr(table) == "<DeviceTable of 3 rows>"
