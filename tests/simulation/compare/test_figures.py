"""What runs come to, worked by hand."""

from dataclasses import replace
from math import isnan, nan

import pytest

from device_runtime.simulation.compare.figures import (
    ComparisonTerms,
    FinishedRun,
    figures,
    spread,
    summarise,
    t_of_95,
    terms,
)
from device_runtime.simulation.compare.run_folder import RunInfo, RunName
from device_runtime.simulation.history.metrics import PaperCost, tally


@pytest.fixture
def ran(round_line, ask):
    def make(policy="choose", seed=0, accuracies=(0.4, 0.8, 0.6), labels=()):
        rounds = tuple(
            round_line(round=n, opened_s=10.0 * (n - 1), closed_s=10.0 * n, eval_acc=accuracy)
            for n, accuracy in enumerate(accuracies, 1)
        )
        asks = [
            ask(),
            ask(round=2),
            ask(device="pi-5-1", fate="late"),
            ask(round=2, kind="few-shot", device="a"),
        ]
        info = RunInfo(
            policy=policy,
            seed=seed,
            sha256="",
            labels=labels,
            paper_costs={"full": PaperCost(8000, 3), "few-shot": PaperCost(80)},
        )
        return FinishedRun(RunName(policy, seed), info, rounds, tally(asks))

    return make


def test_the_figures_of_one_run(ran):
    got = figures(ran(), ComparisonTerms(at_s=25.0, target=0.5, devices=10))
    assert got.acc_at_equal_time == pytest.approx(0.6)  # the mean of 0.4 and 0.8, evaluated by then
    assert (got.final_acc, got.best_acc) == (0.6, 0.8)
    assert (got.time_to_target_s, got.virtual_s) == (20.0, 30.0)
    assert (got.bytes_up, got.bytes_down) == (3000, 9000)
    assert got.bytes_analytic == 2 * 4 * (2 * 1000 + 10)
    assert (got.energy_j, got.wasted_j) == (90.0, 15.0)
    assert (got.devices_that_counted, got.asks_that_counted) == (0.2, 0.75)
    assert got.fairness == pytest.approx(9 / (10 * 5))
    assert got.train_time_s == 60.0
    assert got.learning_efficiency == pytest.approx(0.8 / 60)
    assert got.forward_passes == 1800
    assert isnan(got.passes_analytic)  # few-shot has no formula
    assert got.bytes_after_first == 12_000 - 3 * 1500  # of three devices


def test_work_that_the_end_cut_off_is_spent_and_wasted(ran, ask):
    run = ran()
    cut_off = [ask(), ask(fate="unheard", into=0), ask(fate="unheard", into=0, device="b", bytes_up=0)]
    got = figures(replace(run, tally=tally(cut_off)), ComparisonTerms(25.0, 0.5, 10))
    assert (got.energy_j, got.wasted_j) == (90.0 + 24.0, 15.0 + 24.0)
    assert (got.bytes_up, got.bytes_down, got.bytes_after_first) == (3500, 12_000, 15_500 - 2 * 1500)
    assert (got.train_time_s, got.forward_passes) == (70.0, 2400.0)
    assert got.learning_efficiency == pytest.approx(0.8 / 70)


def test_where_no_update_counted_there_is_no_learning_efficiency(ran, ask):
    run = replace(ran(), tally=tally([ask(fate="refused", into=0)]))
    assert isnan(figures(run, ComparisonTerms(25.0, 0.5, 10)).learning_efficiency)


def test_equal_time_is_the_earliest_end_and_the_target_what_all_reach(ran):
    runs = [ran(), ran("drop", accuracies=(0.3, 0.5))]
    points = {"rounds": 2, "energy_j": 60.0, "bytes": 8000.0}  # of the run of two rounds
    assert terms(runs, 10, None) == ComparisonTerms(at_s=20.0, target=0.5, devices=10, **points)
    assert terms(runs, 10, 0.7).target == 0.7


def test_energy_and_bytes_of_pooled_data_are_no_point_to_compare_fleets_at(ran):
    pooled = ran("here/centralised", accuracies=(0.3,))
    at = terms([ran(), pooled], 10, None)
    assert (at.at_s, at.rounds) == (10.0, 1)
    assert (at.energy_j, at.bytes) == (90.0, 12000.0)
    assert terms([pooled], 10, None).energy_j == 30.0


def test_a_target_is_above_chance_also_where_a_run_learns_nothing(ran):
    ten = tuple("0123456789")
    runs = [ran(labels=ten), ran("drop", accuracies=(0.1, 0.092), labels=ten)]
    assert terms(runs, 10, None).target == pytest.approx(0.1 + (0.8 - 0.1) / 2)
    assert isnan(summarise(runs, terms(runs, 10, None))["drop"]["time_to_target_s"].mean)
    assert isnan(terms(runs[1:], 10, None).target)


def test_runs_that_were_never_evaluated_have_no_target(ran):
    assert isnan(terms([ran(accuracies=(nan, nan))], 10, None).target)


def test_a_policy_is_the_mean_of_its_seeds_with_the_sample_s_deviation(ran):
    runs = [ran(seed=0), ran(seed=1, accuracies=(0.2, 0.4, 0.4)), ran("drop")]
    summary = summarise(runs, ComparisonTerms(at_s=30.0, target=0.5, devices=10))
    assert list(summary) == ["choose", "drop"]
    final = summary["choose"]["final_acc"]
    assert (final.mean, final.n, final.of) == (pytest.approx(0.5), 2, 2)
    assert final.sd == pytest.approx(0.02**0.5)  # of 0.6 and 0.4
    reached = summary["choose"]["time_to_target_s"]
    assert (reached.mean, reached.n, reached.of) == (20.0, 1, 2)
    assert isnan(reached.sd)


def test_a_figure_that_no_seed_has_is_unknown():
    nothing = spread([nan, nan])
    assert isnan(nothing.mean)
    assert (nothing.n, nothing.of) == (0, 2)


def test_a_mean_of_seeds_has_an_interval_by_students_t():
    low, high = spread([0.1, 0.2, 0.3]).interval  # 4.303 * 0.1 / sqrt(3) = 0.2484
    assert (low, high) == (pytest.approx(0.2 - 0.2484, abs=1e-4), pytest.approx(0.2 + 0.2484, abs=1e-4))
    assert spread([0.1, nan]).interval is None


def test_students_t_of_many_seeds_is_near_the_tables():
    assert [t_of_95(freedom) for freedom in (1, 10)] == [12.706, 2.228]
    assert [t_of_95(freedom) for freedom in (11, 30, 120)] == [
        pytest.approx(printed, abs=0.003) for printed in (2.201, 2.042, 1.980)
    ]
