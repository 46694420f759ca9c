"""Which points a sweep has, where they lie, and how they are judged; a stand-in trains."""

import pytest

from device_runtime.simulation.compare import completing
from device_runtime.simulation.compare.completing import CompletionOptions, RunOptions, working_in
from device_runtime.simulation.compare.plan import plan_in, scenario_in
from device_runtime.simulation.compare.progress import NoProgress
from device_runtime.simulation.compare.sweep import (
    WantedSweep,
    check_sweep,
    complete_sweep,
    planned_sweep,
    sweep_in,
)
from device_runtime.simulation.errors import DataSetError, RunsFailed, ScenarioError, SimulationError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.scenarios import scenario

DIGITS = scenario.load("digits")
GRID = WantedSweep({"lr": ["0.01", "0.1"], "epochs": ["1", "2"]}, seeds=2)
HERE = CompletionOptions(RunOptions(ExecutorRequest("plain")), here=True)


@pytest.fixture
def performed(monkeypatch):
    """The runs that were done, by point and seed; those of the points in `wrong` fail with its text."""
    runs, wrong = [], {}

    def perform(setting, name, folder, how, observer):
        point = folder.parents[1].name
        if point in wrong:
            raise SimulationError(wrong[point])
        runs.append((point, name.seed))
        finished.add(folder)

    finished = set()
    monkeypatch.setattr(completing, "perform", perform)
    monkeypatch.setattr(
        "device_runtime.simulation.compare.plan.finished", lambda folder, _: folder in finished
    )
    return runs, wrong


def completed(plan):
    with working_in(plan.folder) as locks:
        return complete_sweep(plan, HERE, lambda missing: NoProgress(), locks)


def test_a_grid_has_every_combination_in_a_folder_of_its_own(tmp_path):
    plan = planned_sweep(DIGITS, GRID, tmp_path / "run")
    assert [point.text for point in plan.points] == [
        "lr=0.01, epochs=1", "lr=0.01, epochs=2", "lr=0.1, epochs=1", "lr=0.1, epochs=2",
    ]  # fmt: skip
    last = plan.points[-1]
    assert last.plan.folder == tmp_path / "run" / "points" / "lr=0.1,epochs=2"
    assert (last.plan.scenario.all_kinds.lr, last.plan.scenario.all_kinds.epochs) == (0.1, 2)
    assert (last.policy, last.plan.comparison.seeds) == ("choose", 2)
    assert [str(name) for name in plan.missing()][:5] == [
        *(f"{point.text}-0" for point in plan.points), "lr=0.01, epochs=1-1",
    ]  # fmt: skip


def test_points_are_judged_on_held_out_training_samples_and_the_best_runs_on_the_test_samples(tmp_path):
    [point] = planned_sweep(DIGITS, WantedSweep({"lr": [0.1]}), tmp_path / "run").points
    assert point.plan.scenario.data.validation_share == 0.2
    assert point.scenario.data.validation_share == 0.0
    validated = scenario.load("digits", {"data": {"validation_share": 0.3}})
    plan = planned_sweep(validated, WantedSweep({"lr": [0.1]}), tmp_path / "other")
    assert plan.points[0].plan.scenario.data.validation_share == 0.3
    assert plan.judged_by == "30% of the training samples, held out; no run saw the test samples"
    folder = plan.alone(plan.points[0])
    assert scenario_in(folder) == plan.points[0].scenario
    assert scenario_in(folder).all_kinds.lr == 0.1


def test_a_list_of_points_may_vary_the_policy(tmp_path):
    points = [{"policy": "fedavg", "lr": 0.1}, {"policy": "few-shot", "lr": "0.2"}]
    plan = planned_sweep(DIGITS, WantedSweep(points=points), tmp_path)
    assert [(point.policy, point.values["lr"]) for point in plan.points] == [
        ("fedavg", 0.1),
        ("few-shot", 0.2),
    ]
    assert plan.settings == ("policy", "lr")


@pytest.mark.parametrize(
    "selection, message",
    [
        (WantedSweep(), "a sweep needs settings to vary, such as lr=0.01,0.1"),
        (WantedSweep(points=[{}]), "a sweep needs settings to vary"),
        (WantedSweep({"lr": []}), "each setting of a sweep has a list of values"),
        (WantedSweep({"lr": "0.1"}), "each setting of a sweep has a list of values"),
        (WantedSweep({"deadline": [1], "round_deadline_s": [1]}), "two names of one setting"),
        (
            WantedSweep({"lr": range(1, 102), "epochs": range(1, 101)}),
            "10,100 points, expected 10,000 at most",
        ),
        (WantedSweep({"policy": ["dreams"]}), "no system is called 'dreams'"),
        (WantedSweep({"codec": ["dreams"]}), "codec=dreams: "),
        (WantedSweep({"batch": [8], "policy": ["class-means"]}), "batch=8, policy=class-means: --batch"),
    ],
)
def test_what_cannot_be_swept_is_refused(tmp_path, selection, message):
    with pytest.raises(ScenarioError) as error:
        planned_sweep(DIGITS, selection, tmp_path / "run")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_equal_values_are_one_point(tmp_path):
    assert len(planned_sweep(DIGITS, WantedSweep({"lr": ["0.1", "0.10", 0.1]}), tmp_path).points) == 1


def test_values_that_are_no_names_of_files_get_folders_with_a_mark(tmp_path):
    plan = planned_sweep(DIGITS, WantedSweep({"bundle": ["digits-wrn-10-1", "models/../here.zip"]}), tmp_path)
    names = [point.plan.folder.name for point in plan.points]
    assert names[0] == "bundle=digits-wrn-10-1"
    assert names[1].startswith("bundle=models_.._here.zip-") and "/" not in names[1]


def test_a_stopped_sweep_goes_on_and_takes_further_points(tmp_path, performed):
    runs, _ = performed
    assert completed(planned_sweep(DIGITS, GRID, tmp_path / "run")) == {}
    assert len(runs) == 8
    with pytest.raises(ScenarioError, match="not the folder of a simulation: it is of a sweep"):
        plan_in(tmp_path / "run")
    again = sweep_in(tmp_path / "run")
    assert [point.values for point in again.points][-1] == {"lr": 0.1, "epochs": 2}
    assert (again.missing(), again.sweep.seeds) == ({}, 2)
    more = WantedSweep({"lr": [0.1, 1.0], "epochs": [2]}, seeds=2)
    completed(planned_sweep(DIGITS, more, tmp_path / "run"))
    assert runs[8:] == [("lr=1,epochs=2", 0), ("lr=1,epochs=2", 1)]


def test_a_point_that_fails_lets_the_others_go_on(tmp_path, performed):
    runs, wrong = performed
    wrong["lr=0.1"] = "diverged"
    plan = planned_sweep(DIGITS, WantedSweep({"lr": [0.01, 0.1]}), tmp_path / "run")
    assert completed(plan) == {"lr=0.1": "diverged"}
    assert runs == [("lr=0.01", 0)]
    wrong["lr=0.01"] = "diverged too"
    with pytest.raises(RunsFailed, match=r"lr=0.01-0: diverged too \(and 1 more\)"):
        completed(planned_sweep(DIGITS, WantedSweep({"lr": [0.01, 0.1]}), tmp_path / "other"))


def test_another_scenario_in_the_folder_is_refused_with_what_differs(tmp_path, performed):
    completed(planned_sweep(DIGITS, WantedSweep({"lr": [0.1]}), tmp_path / "run"))
    other = planned_sweep(
        scenario.load("digits", {"devices": 7}), WantedSweep({"lr": [0.1]}), tmp_path / "run"
    )
    with pytest.raises(ScenarioError, match=r"lr=0.1: .* another scenario \(devices is 40, not 7\)"):
        check_sweep(other, HERE.run)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ScenarioError, match="is not the folder of a sweep: give another --run-dir"):
        planned_sweep(DIGITS, GRID, tmp_path)
    with pytest.raises(ScenarioError, match="is not the folder of a sweep"):
        sweep_in(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"sweep\.json is damaged"):
        sweep_in(tmp_path)


def test_warnings_are_said_once_and_what_is_wrong_with_its_point(tmp_path, monkeypatch, caplog):
    def check(setting, missing, request, load, warn):
        warn("alpha has no effect")
        if setting.devices == 7:
            raise DataSetError("too few samples")

    monkeypatch.setattr("device_runtime.simulation.compare.sweep.check", check)
    check_sweep(planned_sweep(DIGITS, GRID, tmp_path / "one"), HERE.run)
    assert caplog.text.count("alpha has no effect") == 1
    with pytest.raises(ScenarioError, match="^devices=7: too few samples$"):
        check_sweep(planned_sweep(DIGITS, WantedSweep({"devices": [6, 7]}), tmp_path / "two"), HERE.run)
