"""The table's cells, worked by hand."""

from dataclasses import replace
from math import nan

import pytest

from device_runtime.simulation.compare.figures import ComparisonTerms, SeedSpread
from device_runtime.simulation.report import table

POINTS = ("points", 0.01)
AT = ComparisonTerms(at_s=120.0, target=0.8, devices=10)
PERCENT, SECONDS = ("%", 0.01), ("s", 1.0)


@pytest.mark.parametrize(
    "each, unit, text",
    [
        (SeedSpread(0.9312, 0.004, 3, 3), PERCENT, "93.1 ± 0.4%"),
        (SeedSpread(0.9312, 0.0, 1, 1), PERCENT, "93.1%"),
        (SeedSpread(41.26, 3.14, 2, 3), SECONDS, "41.3 ± 3.1 s (2 of 3)"),
        (SeedSpread(1234.5, 60.0, 3, 3), SECONDS, "1,234 ± 60 s"),
        (SeedSpread(nan, 0.0, 0, 3), SECONDS, "–"),
        (SeedSpread(0.0, 0.0, 2, 2), SECONDS, "0 ± 0 s"),
        (SeedSpread(0.104, 0.02, 4, 4), POINTS, "+10.4 [+7.2, +13.6]"),  # 3.182 * 2.0 / 2 = 3.182
        (SeedSpread(0.0, 0.02, 4, 5), POINTS, "+0.0 [-3.2, +3.2] (4 of 5)"),
        (SeedSpread(-0.104, 0.0, 1, 1), POINTS, "-10.4 (no interval)"),
        (SeedSpread(-0.0004, 0.0, 1, 1), POINTS, "+0.0 (no interval)"),
    ],
)
def test_a_cell_has_three_digits_a_unit_and_how_many_seeds_have_it(each, unit, text):
    assert table.figure_text(each, unit) == text


def summary(**values):
    usual = {measure.field: SeedSpread(nan, nan, 0, 1) for measure in table.measures(AT)}
    return {**usual, **{name: SeedSpread(value, nan, 1, 1) for name, value in values.items()}}


def test_all_policies_of_a_row_have_one_unit():
    text = table.main_table({"a": summary(bytes_up=5e6), "b": summary(bytes_up=4e4)}, AT).text()
    [row] = [line for line in text.splitlines() if line.startswith("bytes up")]
    assert row.split() == ["bytes", "up", "5.00", "MB", "0.0400", "MB"]


def test_what_is_nothing_beside_the_others_has_their_unit_too():
    text = table.main_table({"a": summary(bytes_up=5e6), "b": summary(bytes_up=9690.0)}, AT).text()
    [row] = [line for line in text.splitlines() if line.startswith("bytes up")]
    assert row.split() == ["bytes", "up", "5.00", "MB", "0.00969", "MB"]


def test_a_table_that_is_wider_than_the_terminal_comes_in_parts_of_whole_policies():
    policies = {f"policy-{n}": summary(final_acc=n / 10) for n in range(5)}
    whole = table.main_table(policies, AT).text()
    width = len(whole.splitlines()[1])
    assert table.main_table(policies, AT).text(width) == whole
    parts = table.main_table(policies, AT).text(40).split("\n\n")
    assert [part.splitlines()[0].split() for part in parts] == [
        ["policy-0", "policy-1"], ["policy-2", "policy-3"], ["policy-4"],
    ]  # fmt: skip
    assert max(len(line) for part in parts for line in part.splitlines()) <= 40
    assert parts[2].splitlines()[2].split() == ["final", "accuracy", "40.0%"]
    assert len(table.main_table(policies, AT).text(10).split("\n\n")) == 5


def test_the_best_of_a_row_is_marked_and_equals_are_not():
    compared = {
        "a": summary(final_acc=0.9, energy_j=70.0, fairness=0.5, bytes_up=9.0),
        "b": summary(final_acc=0.8, energy_j=50.0, fairness=0.5),
    }
    page = table.main_table(compared, AT).html({"a": "#123456"})
    assert '<td class="best">90.0%</td><td>80.0%</td>' in page
    assert '<td>70.0 J</td><td class="best">50.0 J</td>' in page
    assert "<td>0.500</td><td>0.500</td>" in page
    assert '<span class="swatch" style="background:#123456"></span>a</th><th scope="col">b</th>' in page
    assert '<tr title="sent by all devices, counted"><th scope="row">bytes up</th>' in page


def test_equal_time_and_target_stand_in_the_heads():
    text = table.main_table({"a": summary(acc_at_equal_time=0.5, time_to_target_s=9.0)}, AT).text()
    assert "accuracy at 2 min" in text
    assert "time to 80.0%" in text


def test_a_measure_that_no_policy_has_gets_no_row():
    text = table.main_table({"a": summary(), "b": summary(final_acc=0.5)}, AT).text()
    assert [line.split() for line in text.splitlines()[2:]] == [["final", "accuracy", "–", "50.0%"]]


def test_a_learning_efficiency_has_a_unit_of_few_digits():
    # 50,627,231 % an hour are 14.06 % a millisecond
    text = table.main_table({"a": summary(learning_efficiency=50_627_231 * 0.01 / 3600)}, AT).text()
    assert text.splitlines()[-1].split() == ["learning", "efficiency", "14.1", "%/ms"]


@pytest.mark.parametrize(
    "ahead, metric, text",
    [
        (
            SeedSpread(0.029, 0.0093, 3, 3),
            "accuracy",
            "2.9 [0.6, 5.2] points",
        ),  # 4.303 * 0.93 / sqrt(3) = 2.31
        (SeedSpread(0.029, nan, 1, 1), "accuracy", "2.9 points"),
        (SeedSpread(0.25, nan, 1, 1), "R2", "0.250"),
    ],
)
def test_a_lead_is_in_points_with_its_interval(ahead, metric, text):
    assert table.lead_text(ahead, metric) == text


def test_sums_that_are_not_opened_have_a_row_only_where_updates_are_masked():
    masked = replace(AT, masked=True, noisy=True)
    text = table.main_table({"a": {**summary(), **two(unopened=0.125, central_epsilon=2.5)}}, masked).text()
    assert [line.split()[-1] for line in text.splitlines() if "not opened" in line] == ["12.5%"]
    assert [line.split()[-1] for line in text.splitlines() if "epsilon spent" in line] == ["2.50"]
    plain = table.main_table({"a": summary(final_acc=0.5)}, AT).text()
    assert "not opened" not in plain and "epsilon" not in plain


def two(**values):
    return {name: SeedSpread(value, 0.0, 1, 1) for name, value in values.items()}
