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
    assert (uneven.ours.mean, uneven.seeds, uneven.holds) == (pytest.approx(-1.0), 1, False)


def of(*differences):
    """Values of three seeds in which few-shot is ahead by these points."""
    return {
        ("drop", "even"): (0.5,) * len(differences),
        ("few-shot", "even"): tuple(0.5 + points / 100 for points in differences),
    }


@pytest.mark.parametrize(
    "points, margin, words",
    [
        ((2.0, 3.0, 4.0), 0.0, "holds"),  # mean 3, sd 1: 3 +- 4.303 / 3 ** 0.5 is 0.52 to 5.48
        ((2.0, 3.0, 4.0), 1.0, "not shown"),  # 1 is within it
        ((-2.0, -3.0, -4.0), 0.0, "fails"),
        ((-2.0, -3.0, -4.0), -6.0, "holds"),
        ((1.0, 2.0, 9.0), 0.0, "not shown"),  # every seed agrees, but 4 +- 10.8
        ((3.0, 3.0, 3.0), 0.0, "holds"),
        ((0.0, 0.0, 0.0), 0.0, "not shown"),  # neither is ahead
        ((3.0, 3.1), 0.0, "not shown: 2 of 3 seeds"),
        ((3.0,), 0.0, "not shown: 1 of 3 seeds"),
        ((3.0, nan, 3.1), 0.0, "not shown: 2 of 3 seeds"),
    ],
)
def test_a_claim_holds_or_fails_only_beyond_the_interval_of_three_seeds(judged, points, margin, words):
    [verdict] = judged(of(*points), columns=["even"], margin=margin)
    assert verdict.words == words


def test_what_most_seeds_contradict_is_not_shown(judged):
    """By hand: 25 of 49 seeds at -0.1 points and 24 at +10: the mean is 4.85, its interval 3.4 to 6.3."""
    [verdict] = judged(of(*(-0.1,) * 25, *(10.0,) * 24), columns=["even"])
    assert verdict.ours.interval[0] > 0
    assert (verdict.seeds, verdict.words) == (24, "not shown")


def test_rows_that_are_both_at_chance_claim_nothing(table):
    values = of(2.0, 3.0, 4.0)  # of 0.5
    [verdict] = verdicts(table, "smoke", values, {"even": 0.5})
    assert verdict.words == "at chance"
    [verdict] = verdicts(table, "smoke", values, {"even": 0.49})  # few-shot is 4 points above
    assert verdict.words == "holds"


def test_a_margin_is_in_points(judged):
    [far] = judged(margin=2.5, columns=["even"])
    [near] = judged(margin=-1.5, columns=["uneven"])
    assert (far.holds, near.holds) == (False, True)


def test_a_factor_compares_by_division(judged):
    [verdict] = judged(factor=3, columns=["efficiency"])
    assert verdict.ours.mean == pytest.approx(1.1 / 0.3)
    assert (verdict.holds, verdict.seeds) == (True, 2)
    [more] = judged(factor=3.6, columns=["efficiency"])  # 4 times in one seed and 3.5 in the other
    assert (more.ours.mean, more.holds, more.seeds) == (pytest.approx(1.1 / 0.3), True, 1)


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
    [verdict] = verdicts(table, "cpu", {**VALUES, ("no-stragglers", "even"): (0.74, 0.76)})
    assert verdict.ours.mean == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert (verdict.points, verdict.seeds, verdict.printed) == (False, 1, pytest.approx(nan, nan_ok=True))
    [small] = verdicts(table, "cpu", {**VALUES, ("no-stragglers", "even"): (0.76, 0.719)})
    assert (small.ours.mean, small.seeds) == (pytest.approx(0.04 / 0.059), 2)  # of 0.06 and -0.001
    [unknown] = verdicts(table, "cpu", {**VALUES, ("no-stragglers", "even"): (0.70, 0.72)})
    assert unknown.words == "not run"  # dropping loses nothing


def test_what_is_within_a_bound_is_equal(judged):
    values = of(0.2, 0.4, 0.6)  # 0.4 +- 0.5
    words = [judged(values, within=bound, columns=["even"])[0].words for bound in (1.0, 0.8, 0.1)]
    assert words == ["holds", "not shown", "not shown"]
    [apart] = judged(of(5.2, 5.4, 5.6), within=1.0, columns=["even"])
    assert apart.words == "fails"


def test_who_falls_less_from_one_column_to_another_is_better(judged):
    [verdict] = judged(fall=["even", "uneven"])
    assert verdict.ours.mean == pytest.approx(-3.0)  # +3, +1 before; +2, -4 after: -1 and -5
    assert verdict.printed == pytest.approx(4.0)
    assert not verdict.holds


def test_what_was_not_run_is_not_judged(judged):
    [verdict] = judged({("drop", "even"): (nan,), ("few-shot", "even"): (0.5,)}, columns=["even"])
    assert verdict.words == "not run"


def test_neighbours_of_an_ordering_are_claimed_as_the_paper_prints_them(changed):
    """It prints 80 and 60 for drop, 82 and 66 for few-shot: few-shot is ahead, which is claimed once."""
    table = changed(orderings=[["drop", "few-shot", "drop"]], claims=[])
    [even, uneven] = verdicts(table, "cpu", VALUES)
    assert (even.claim.better, even.claim.text) == ("few-shot", "few-shot over FedAvg")
    assert (even.column, uneven.column) == ("even", "uneven")
    rows = [
        {"system": "drop", "paper": {"even": "80.00±1.00", "uneven": "60.0"}},
        {"system": "few-shot", "paper": {"even": "80.00±2.00", "uneven": "50.0"}},
    ]
    [verdict] = verdicts(changed(orderings=[["drop", "few-shot"]], rows=rows, claims=[]), "cpu", VALUES)
    assert (verdict.column, verdict.claim.better) == ("uneven", "drop")  # equal numbers are no order


def test_an_ordering_that_is_claimed_in_words_is_not_claimed_again(changed):
    assert len(verdicts(changed(orderings=[["few-shot", "drop"]]), "cpu", VALUES)) == 2


def test_columns_that_a_scale_does_not_have_are_passed_over(table):
    [verdict] = verdicts(table, "smoke", VALUES)
    assert verdict.column == "even"
