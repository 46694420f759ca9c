from dataclasses import replace
from math import nan

import pytest

from benchmarks.papers.measures import MEASURES, MeasuredRun
from device_runtime.simulation.compare.figures import FinishedRun
from device_runtime.simulation.compare.run_folder import RunInfo, RunName
from device_runtime.simulation.history.metrics import tally


@pytest.fixture
def measured(round_line):
    def run_of(*rounds):
        info = RunInfo(policy="ft", seed=0, sha256="")
        lines = tuple(round_line(round=number, **each) for number, each in enumerate(rounds, 1))
        run = FinishedRun(RunName("ft", 0), info, lines, tally([]))
        return MeasuredRun(run, {"ft": run})

    return run_of


def test_the_gap_is_that_of_the_last_round_whose_test_loss_is_known(measured):
    rounds = (
        {"eval_loss": 2.0, "train_loss": 1.9},
        {"eval_loss": 1.5, "train_loss": 0.25},
        {"eval_loss": nan, "train_loss": 0.1},
    )
    assert MEASURES["loss_gap"].value(measured(*rounds)) == 1.25


def test_without_an_evaluation_there_is_no_gap(measured):
    gap = MEASURES["loss_gap"].value(measured({"eval_loss": nan, "train_loss": 0.1}))
    assert gap != gap


def test_costs_are_of_closed_rounds(measured, ask):
    among = measured({}, {})
    cut_off = replace(among, ran=replace(among.ran, tally=tally([ask(fate="unheard")])))
    for name in ("energy", "bytes_up", "bytes", "forward_passes"):
        assert MEASURES[name].value(cut_off) == MEASURES[name].value(among), name
