"""Claims against numbers that are made up."""

from math import nan

import pytest

from benchmarks.papers.claims import verdicts

BOTH = {"better": "few-shot", "than": "drop"}
VALUES = {
    ("drop", "even"): (0.70, 0.72),
    ("few-shot", "even"): (0.73, 0.73),
    ("drop", "uneven"): (0.50, 0.60),
    ("few-shot", "uneven"): (0.52, 0.56),
    ("drop", "efficiency"): (0.1, 0.2),
    ("few-shot", "efficiency"): (0.4, 0.7),
}


@pytest.fixture
def judged(changed):
    def judge(values=VALUES, **claim):
        table = changed(claims=[{"text": "it is so", **BOTH, **claim}])
        return verdicts(table, "cpu", values)

    return judge


def test_a_claim_is_judged_in_every_column_of_the_table_s_measure_in_points(judged):
    even, uneven = judged()
    assert (even.column, even.ours.mean, even.seeds, even.holds) == ("even", pytest.approx(2.0), 2, True)
    assert even.printed == pytest.approx(2.0)
    assert even.words == "holds, not significant"  # 3 and 1: 2 points, of two seeds +- 12.7
    assert (uneven.ours.mean, uneven.seeds, uneven.holds) == (pytest.approx(-1.0), 1, False)
    assert uneven.words == "does not hold, not significant"
    exact, _ = judged({key: (values[0],) * 3 for key, values in VALUES.items()})
    assert exact.words == "holds"


def test_a_margin_is_in_points(judged):
    [far] = judged(margin=2.5, columns=["even"])
    [near] = judged(margin=-1.5, columns=["uneven"])
    assert (far.holds, near.holds) == (False, True)


def test_a_factor_compares_by_division(judged):
    [found] = judged(factor=3, columns=["efficiency"])
    assert found.ours.mean == pytest.approx(3.75)  # 4 and 3.5
    assert (found.holds, found.seeds) == (True, 2)


def test_a_share_of_the_way_to_a_third_row_is_by_seed(changed):
    rows = [{"system": system} for system in ("drop", "few-shot", "no-stragglers")]
    claim = {
        "text": "half of the loss",
        **BOTH,
        "towards": "no-stragglers",
        "factor": 0.5,
        "columns": ["even"],
    }
    table = changed(rows=rows, claims=[claim])
    [found] = verdicts(table, "cpu", {**VALUES, ("no-stragglers", "even"): (0.74, 0.76)})
    assert found.ours.mean == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert (found.points, found.seeds, found.printed) == (False, 1, pytest.approx(nan, nan_ok=True))
    [unknown] = verdicts(table, "cpu", {**VALUES, ("no-stragglers", "even"): (0.70, 0.72)})
    assert unknown.words == "not run"  # dropping loses nothing


def test_what_is_within_a_bound_is_equal(judged):
    [equal] = judged(within=2.0, columns=["uneven"])
    [other] = judged(within=0.5, columns=["uneven"])
    assert (equal.words, other.words) == ("holds", "does not hold")


def test_who_falls_less_from_one_column_to_another_is_better(judged):
    [found] = judged(fall=["even", "uneven"])
    assert found.ours.mean == pytest.approx(-3.0)  # +3, +1 before; +2, -4 after: -1 and -5
    assert found.printed == pytest.approx(4.0)
    assert not found.holds


def test_what_was_not_run_is_not_judged(judged):
    [found] = judged({("drop", "even"): (nan,), ("few-shot", "even"): (0.5,)}, columns=["even"])
    assert found.words == "not run"


def test_columns_that_a_scale_does_not_have_are_passed_over(table):
    [found] = verdicts(table, "smoke", VALUES)
    assert found.column == "even"
