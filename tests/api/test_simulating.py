"""`device_runtime.simulate` and `compare`: small fleets, one or two rounds, real training."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.aggregator.errors import TaskError
from device_runtime.api.simulating import offered, scenario_of
from device_runtime.cli import main
from device_runtime.simulation.compare import completing
from device_runtime.simulation.compare.plan import WantedRuns, planned
from device_runtime.simulation.data import loading
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.rounds.callbacks import CallbackError
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.strategies.kinds import registry

SMALL = {"fleet": "phones", "devices": 10, "rounds": 1, "progress": False}


class Stops(dr.Callback):
    def on_run_start(self, run):
        raise ValueError("enough")


def test_a_task_learns_in_this_process_if_there_is_one_run():
    task = dr.Task(bundle="digits-wrn-10-1", rounds=1)
    result = dr.simulate(task, fleet="phones", devices=10, data=dr.data.digits(alpha=0.5), progress=False)
    assert result.policies == ("mixed",)
    assert result.scenario.data.alpha == 0.5
    assert result.runs[0].accuracy[-1] > 0.5
    assert not (result.runs[0].folder / "log.txt").exists()


def test_several_runs_are_done_by_processes_and_give_what_this_process_gives(small):
    result = dr.simulate("digits", policies=["few-shot", "class-means"], **{**SMALL, "rounds": 2})
    assert all((run.folder / "log.txt").exists() for run in result.runs)
    for theirs, ours in zip(result.runs, small.runs, strict=True):
        assert theirs.accuracy.tolist() == ours.accuracy.tolist()


def test_callbacks_are_called_in_this_process():
    class Seen(dr.Callback):
        def __init__(self):
            self.rounds, self.process = [], set()

        def on_round(self, round):  # noqa: A002
            self.rounds.append(round.number)
            self.process.add(os.getpid())

    watch = Seen()
    dr.simulate("digits", policies=["few-shot"], seeds=2, callbacks=[watch], **SMALL)
    assert (watch.rounds, watch.process) == ([1, 1], {os.getpid()})


def test_in_one_process_the_data_of_each_seed_are_loaded_once(monkeypatch):
    seeds, load = [], loading.load
    monkeypatch.setattr(
        loading, "load", lambda spec, seed, bundle: (seeds.append(seed), load(spec, seed, bundle))[1]
    )
    dr.simulate("digits", policies=["few-shot", "class-means"], seeds=2, callbacks=[dr.Callback()], **SMALL)
    assert seeds == [0, 1]


def test_an_error_of_a_callback_ends_the_simulation_at_once():
    with pytest.raises(CallbackError, match="enough"):
        dr.simulate("digits", policies=["few-shot", "class-means"], callbacks=[Stops()], **SMALL)


def test_runs_of_a_folder_are_kept_and_not_done_again():
    first = dr.simulate("digits", policies=["few-shot"], run_dir="here", **SMALL)
    changed_at = (first.runs[0].folder / "run.json").stat().st_mtime_ns
    again = dr.simulate("digits", policies=["few-shot"], run_dir="here", **SMALL)
    assert (again.runs[0].folder / "run.json").stat().st_mtime_ns == changed_at
    with pytest.raises(ScenarioError, match=r"here holds another scenario \(devices is \d+, not 2\)"):
        dr.simulate("digits", policies=["few-shot"], run_dir="here", **{**SMALL, "devices": 2})


def test_without_a_folder_the_runs_go_with_the_result():
    result = dr.simulate("digits", policies=["few-shot"], **SMALL)
    folder = result.folder
    assert folder.is_dir()
    del result
    assert not folder.exists()


def test_a_failed_simulation_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SimulationError, match="5000 devices"):
        dr.simulate("digits", devices=5000, progress=False)
    with pytest.raises(CallbackError, match="enough"):
        dr.simulate("digits", policies=["few-shot"], callbacks=[Stops()], **SMALL)
    assert not list(tmp_path.glob("device-runtime-*"))


@pytest.mark.slow
def test_a_policy_that_fails_is_left_out_with_a_warning():
    with pytest.warns(RuntimeWarning, match="left out: fedavg"):
        result = dr.simulate("digits", devices=6, rounds=1, policies=["few-shot", "fedavg"], progress=False)
    assert (result.policies, list(result.failed)) == (("few-shot",), ["fedavg"])


def test_finished_folders_are_compared_as_the_command_does(capsys):
    for policy in ("few-shot", "class-means"):
        dr.simulate("digits", policies=[policy], run_dir=f"runs/{policy}", **SMALL)
    comparison = dr.compare("runs/few-shot", "runs/class-means")
    assert comparison.policies == ("few-shot", "class-means")  # parts of one scenario are joined
    assert main(["compare", "runs/few-shot", "runs/class-means"]) == 0
    assert capsys.readouterr().out == f"{comparison.table()}\n"
    assert main(["compare", "--format", "json", "runs/few-shot", "runs/class-means"]) == 0
    assert json.loads(capsys.readouterr().out) == comparison.to_dict()
    assert "few-shot" in comparison._repr_html_()
    apart = dr.compare("runs/few-shot", "runs/class-means", apart=True)
    assert apart.policies == ("few-shot/few-shot", "class-means/class-means")
    with pytest.raises(ScenarioError, match="nowhere is not the folder of a simulation"):
        dr.compare("nowhere")


@pytest.mark.slow
def test_the_same_command_gives_the_same_figures(capsys):
    words = ["phones", "--devices", "10", "--rounds", "2", "--compare", "kinds=mixed,fedavg"]
    assert main(["simulate", *words, "--run-dir", "here", "--format", "json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    ours = dr.simulate("phones", devices=10, rounds=2, policies=["mixed", "fedavg"], progress=False)
    assert policies == ours.to_dict()["policies"]
    assert dr.SimulationResult.load("here").to_dict()["policies"] == policies


def test_arguments_stand_over_a_scenario():
    scenario = scenario_of(
        "digits", fleet="phones", devices=7, rounds=3, data=dr.data.digits(partition="iid")
    )
    assert (scenario.fleet.name, scenario.devices, scenario.task.rounds) == ("phones", 7, 3)
    assert scenario.data.partition == "iid"
    assert scenario.slow == scenarios.load("digits").slow


def test_a_bundle_is_learnt_by_name_by_path_and_by_itself():
    shipped = scenario_of("digits-wrn-10-1")
    opened = dr.Bundle.open(Path(dr.__file__).parents[1] / "models" / "bundles" / "digits-wrn-10-1")
    assert shipped.task.bundle == "digits-wrn-10-1"
    assert scenario_of(opened).task.bundle == str(opened.path)
    assert scenario_of(opened).name == shipped.name == "digits-wrn-10-1"
    assert shipped.task.rounds == scenario_of("phones").task.rounds


def test_kinds_are_names_instances_or_names_with_settings():
    full = registry.make("full", {"epochs": 1})
    kinds = offered([full, ("few-shot", {"epochs": 2}), "class-means", dr.KindSettings(name="zeroth-order")])
    assert [kind.name for kind in kinds] == ["full", "few-shot", "class-means", "zeroth-order"]
    assert kinds[0].settings["epochs"] == 1
    assert kinds[1].settings == {"join_base": True, "least_samples": 40, "epochs": 2}
    assert kinds[2].settings == dict(registry.default_settings(["class-means", "full"]))["class-means"]
    assert scenario_of("digits", kinds="few-shot").task.kinds[0].name == "few-shot"


def test_kinds_that_only_this_process_knows_are_trained_here(tmp_path):
    class Mine(type(registry.make("few-shot"))):
        name = "mine"

    registry.KINDS["mine"] = Mine
    try:
        here = planned(scenario_of("digits", kinds=[Mine()]), WantedRuns(seeds=2), tmp_path / "run")
        assert not completing.may_run_elsewhere(here)
        result = dr.simulate("digits", kinds=[Mine()], seeds=2, **SMALL)
        assert len(result.runs) == 2
        assert np.isfinite(result.runs[1].accuracy).all()
    finally:
        del registry.KINDS["mine"]
    shipped = planned(scenario_of("digits"), WantedRuns(seeds=2), tmp_path / "run")
    assert completing.may_run_elsewhere(shipped)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"task": "nowhere"}, Exception, "nowhere is neither a bundle folder or zip nor a shipped bundle"),
        ({"task": "nowhere.toml"}, ScenarioError, "cannot read nowhere.toml"),
        ({"fleet": "nowhere"}, Exception, "no fleet named 'nowhere'"),
        ({"policies": ["telepathy"]}, ScenarioError, "no system is called 'telepathy'"),
        ({"policies": []}, ScenarioError, "policies is empty"),
        ({"kinds": ["telepathy"]}, TaskError, "no kind of update is called 'telepathy'"),
        ({"seeds": 0}, ScenarioError, "seeds is 0, expected a whole number, 1 or more"),
        (
            {"seeds": "a"},
            ScenarioError,
            "seeds is 'a', expected a number of seeds, or whole numbers from 0 on",
        ),
        ({"devices": "5"}, ScenarioError, "devices is '5', expected a whole number, 1 or more"),
        ({"parallel": 0}, ScenarioError, "parallel is 0, expected a whole number, 1 or more"),
        ({"policies": [3]}, ScenarioError, "policies has 3, expected names"),
        ({"task": 3}, ScenarioError, "task is 3, expected a Task, a Scenario, a bundle"),
        (
            {"data": "digits"},
            ScenarioError,
            "data is 'digits', expected samples as device_runtime.data names",
        ),
        ({"devices": 5000}, SimulationError, "5000 devices, but 1437 training samples"),
        ({"executor": "magic"}, SimulationError, "there is no executor 'magic'"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_run(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        dr.simulate(**{"task": "digits", "progress": False, **arguments})
    assert not list(tmp_path.iterdir())
