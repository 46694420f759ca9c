from argparse import ArgumentParser

import pytest

from device_runtime.cli.research import simulate
from device_runtime.cli.research.simulate_options import plan_of
from device_runtime.simulation import scenario
from device_runtime.simulation.errors import ScenarioError


def asked(*arguments):
    parser = ArgumentParser()
    simulate.add_arguments(parser)
    return plan_of(parser.parse_args(arguments))


def test_learning_rate_epochs_and_batch_size_are_set_for_the_fleet_and_it_is_another_run():
    plain, changed = asked("digits"), asked("digits", "--lr", "0.02", "--epochs", "3", "--batch", "8")
    full = {kind.name: kind.strategy for kind in changed.scenario.task.kinds}["full"]
    assert (full.lr, full.epochs, full.batch) == (0.02, 3, 8)
    assert plain.folder != changed.folder


@pytest.mark.parametrize("policy", ["drop", "fedprox", "moon+", "heterofl"])
def test_policies_train_by_them_too(policy):
    task = scenario.under(policy, asked("digits", "--lr", "0.02").scenario.task)
    assert {kind.strategy.lr for kind in task.kinds} == {0.02}


def test_what_may_not_be_is_refused_in_one_line():
    with pytest.raises(ScenarioError, match="lr is -1.0, expected more than 0"):
        asked("digits", "--lr", "-1")
