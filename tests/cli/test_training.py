from argparse import ArgumentParser

import pytest

from device_runtime.cli.research import simulate
from device_runtime.cli.research.simulate_options import plan_of
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario


def plan_for(*arguments):
    parser = ArgumentParser()
    simulate.add_arguments(parser)
    return plan_of(parser.parse_args(arguments))


def mixed(plan):
    return scenario.of_policy(plan.scenario, "mixed").task


def test_learning_rate_epochs_and_batch_size_are_set_for_the_fleet_and_it_is_another_run():
    plain, changed = plan_for("digits"), plan_for("digits", "--lr", "0.02", "--epochs", "3", "--batch", "8")
    full = {kind.name: kind.strategy for kind in mixed(changed).kinds}["full"]
    assert (full.lr, full.epochs, full.batch) == (0.02, 3, 8)
    assert plain.folder != changed.folder


@pytest.mark.parametrize("policy", ["drop", "fedprox", "moon+", "heterofl", "fedpeft-head", "few-shot"])
def test_policies_train_by_them_too(policy):
    task = scenario.of_policy(plan_for("digits", "--lr", "0.02").scenario, policy).task
    assert {kind.strategy.lr for kind in task.kinds} == {0.02}


def test_what_may_not_be_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        plan_for("digits", "--lr", "-1")
    assert "argument --lr: '-1': expected a number, more than 0\n" in capsys.readouterr().err


def test_what_no_kind_of_any_policy_has_is_refused_and_else_each_policy_takes_what_it_has():
    with pytest.raises(ScenarioError, match="all_kinds.epochs.: no kind of fedncm has this setting"):
        plan_for("digits", "--epochs", "3", "--compare", "kinds=fedncm")
    plan = plan_for("digits", "--epochs", "3", "--compare", "kinds=fedncm,fedavg")
    [full] = scenario.of_policy(plan.scenario, "fedavg").task.kinds
    assert full.strategy.epochs == 3


def test_they_may_stand_in_the_file_and_are_kept_with_the_runs(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text('fleet = "uniform"\n[all_kinds]\nlr = 0.02\n')
    preset = plan_for(str(file)).scenario
    assert scenario.decode(preset.json()) == preset
    assert {kind.strategy.lr for kind in scenario.of_policy(preset, "drop").task.kinds} == {0.02}
    assert b"all_kinds" not in plan_for("digits").scenario.json()
