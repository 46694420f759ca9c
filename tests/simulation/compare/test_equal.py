"""Accuracy at equal points, worked by hand: rounds of 10 s, 30 J and 4,000 bytes."""

from dataclasses import replace
from math import nan

import pytest

from device_runtime.simulation.compare.equal import EqualTerms, equal
from device_runtime.simulation.compare.figures import ComparisonTerms, FinishedRun
from device_runtime.simulation.compare.run_folder import RunInfo, RunName
from device_runtime.simulation.history.metrics import tally
from device_runtime.simulation.scenarios import scenario

AT = ComparisonTerms(at_s=25.0, target=nan, devices=4, rounds=3, energy_j=60.0, bytes=4000.0)
SHARED = scenario.load("digits", {})
GROUPED = scenario.load("straggler-classes", {"data": {"groups": {"weak": {"classes": [2]}}}})


@pytest.fixture
def ran(round_line):
    def make(policy, seed, *by_class, labels=("a", "b", "c")):
        """With the accuracies of the classes of each round, and their mean as that over all."""
        rounds = tuple(
            round_line(
                round=n, closed_s=10.0 * n, eval_acc=sum(each) / len(each), eval_acc_by_class=tuple(each)
            )
            for n, each in enumerate(by_class, 1)
        )
        return FinishedRun(
            RunName(policy, seed),
            RunInfo(policy=policy, seed=seed, sha256="", labels=labels),
            rounds,
            tally([]),
        )

    return make


def means(terms, part, policy, against=""):
    [row] = [row for row in terms.rows if (row.part, row.policy, row.against) == (part, policy, against)]
    return {axis: pytest.approx(each.mean, nan_ok=True) for axis, each in row.at.items()}


def test_each_point_has_the_mean_of_the_latest_five_evaluations_up_to_it(ran):
    run = ran("choose", 0, *([share] * 3 for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)))
    at = replace(AT, rounds=6, energy_j=29.0)
    assert means(equal([run], at, SHARED), "all classes", "choose") == {
        "rounds": (0.3 + 0.5 + 0.7 + 0.9 + 1.0) / 5,
        "time": (0.1 + 0.3) / 2,  # fewer than five
        "energy": pytest.approx(nan, nan_ok=True),  # before the first
        "bytes": 0.1,
    }


def test_without_groups_of_classes_there_are_their_mean_and_the_worst_of_each_evaluation(ran):
    terms = equal([ran("choose", 0, (0.9, 0.0, nan), (0.1, 0.8, nan))], AT, SHARED)  # of c no samples
    assert means(terms, "mean of classes", "choose")["rounds"] == 0.45
    assert means(terms, "worst class", "choose")["rounds"] == (0.0 + 0.1) / 2
    assert {row.part for row in terms.rows} == {"mean of classes", "worst class"}  # accuracy over all is nan


def test_classes_of_one_group_are_told_beside_all(ran):
    terms = equal([ran("choose", 0, (1.0, 0.6, 0.2))], AT, GROUPED)
    assert means(terms, "weak alone: c", "choose")["rounds"] == 0.2
    assert means(terms, "fast alone: a, b", "choose")["rounds"] == 0.8
    assert means(terms, "all classes", "choose")["rounds"] == 0.6
    assert {row.part for row in terms.rows} == {"all classes", "fast alone: a, b", "weak alone: c"}
    assert [(row.part, row.at["rounds"].mean) for row in terms.by_class] == [
        ("a", 1.0),
        ("b", 0.6),
        ("c", 0.2),
    ]


def test_both_heads_of_a_run_stand_beside_what_it_served(ran):
    run = ran("choose", 0, (1.0, 0.6, 0.2))
    [line] = run.rounds
    heads = {
        "base_eval_acc": 0.4,
        "closed_form_eval_acc": 0.5,
        "closed_form_eval_acc_by_class": (0.9, 0.7, 0.1),
    }
    terms = equal([replace(run, rounds=(replace(line, **heads),))], AT, GROUPED)
    assert means(terms, "all classes", "choose")["rounds"] == 0.6
    assert means(terms, "all classes, trained head", "choose")["rounds"] == 0.4
    assert means(terms, "all classes, closed-form head", "choose")["rounds"] == 0.5
    assert means(terms, "weak alone: c, closed-form head", "choose")["rounds"] == 0.1
    assert not [row for row in terms.rows if row.part == "weak alone: c, trained head"]  # none are kept


def test_differences_are_of_runs_with_the_same_seed(ran):
    shares = {"choose": (0.5, 0.8, 0.9), "drop": (0.4, 0.5, 0.2)}
    runs = [ran(policy, seed, [share] * 3) for policy, of in shares.items() for seed, share in enumerate(of)]
    [row] = [row for row in equal(runs, AT, SHARED).rows if row.against and row.part == "all classes"]
    assert row.title == "choose − drop"
    each = row.at["rounds"]
    assert (each.mean, each.n, each.of) == (pytest.approx((0.1 + 0.3 + 0.7) / 3), 3, 3)
    assert each.sd == pytest.approx(((0.8 / 3) ** 2 + (0.2 / 3) ** 2 + (1 / 3) ** 2) ** 0.5 / 2**0.5)
    alone = equal([*runs[:3], runs[4]], AT, SHARED).rows  # seed 1 is the only one that both have
    [row] = [row for row in alone if row.against and row.part == "all classes"]
    assert (row.at["rounds"].mean, row.at["rounds"].n) == (pytest.approx(0.3), 1)


def test_each_policy_is_set_against_the_nearest_rival_of_each_point_and_the_one_that_drops(ran):
    by_round = {
        "drop": (0.5, 0.5, 0.5),
        "choose": (0.4, 0.6, 0.8),
        "full": (0.3, 0.4, 0.4),
        "few-shot": (0.2,) * 3,
    }
    runs = [ran(policy, 0, *([share] * 3 for share in shares)) for policy, shares in by_round.items()]
    pairs = [row.title for row in equal(runs, AT, SHARED).rows if row.against and row.part == "all classes"]
    # By bytes (round 1) drop is the best; by rounds choose is, whose nearest rival is drop.
    assert pairs == ["choose − drop", "full − drop", "few-shot − drop", "choose − full", "choose − few-shot"]
    without = [row.title for row in equal(runs[1:], AT, SHARED).rows if row.against]
    assert set(without) == {"choose − full", "choose − few-shot"}
    assert not [row for row in equal(runs[:1], AT, SHARED).rows if row.against]


def test_runs_whose_folders_keep_no_recalls_are_named_and_have_their_accuracy(ran):
    old = ran("drop", 0, (0.5,) * 3)
    old = replace(old, rounds=tuple(replace(line, eval_acc_by_class=()) for line in old.rounds))
    terms = equal([ran("choose", 0, (0.9, 0.6, 0.3)), old], AT, GROUPED)
    assert terms.lacking == ("drop-0",)
    assert means(terms, "all classes", "choose", "drop")["rounds"] == 0.1
    assert means(terms, "weak alone: c", "choose")["rounds"] == 0.3
    nothing = means(terms, "weak alone: c", "choose", "drop")["rounds"]
    assert nothing == pytest.approx(nan, nan_ok=True)
    alone = equal([old], AT, GROUPED)
    assert {row.part for row in alone.rows} == {"all classes"}
    assert alone.by_class == ()


def test_more_than_twenty_classes_are_not_told_one_by_one(ran):
    many = tuple(str(number) for number in range(21))
    terms = equal([ran("choose", 0, [0.5] * 21, labels=many)], AT, SHARED)
    assert terms.by_class == ()
    assert means(terms, "worst class", "choose")["rounds"] == 0.5


def test_comparisons_side_by_side_have_the_rows_of_both(ran):
    first, other = (equal([ran(policy, 0, (0.5,) * 3)], AT, SHARED) for policy in ("a/drop", "b/drop"))
    both = EqualTerms() + first + other
    assert both.rows == first.rows + other.rows
    assert len(both.by_class) == 6
