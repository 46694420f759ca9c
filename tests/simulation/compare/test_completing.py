"""The missing runs of a comparison, done in this process by a stand-in for training."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from device_runtime.simulation.compare import completing
from device_runtime.simulation.compare.completing import (
    CompletionOptions,
    RunOptions,
    check_runs,
    complete,
    working_in,
)
from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan, comparison_in
from device_runtime.simulation.compare.progress import NoProgress
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.rounds.callbacks import CallbackError
from device_runtime.simulation.rounds.trackers import TrackerError
from device_runtime.simulation.scenarios import scenario

HERE = CompletionOptions(RunOptions(ExecutorRequest("plain")), here=True)


class Noted(NoProgress):
    def __init__(self):
        self.ticks, self.closed = [], 0

    def moved(self, name, tick):
        self.ticks.append((str(name), tick.round))

    def ended(self, name, why):
        self.ticks.append((str(name), why))

    def close(self):
        self.closed += 1


@pytest.fixture
def plan(tmp_path):
    comparison = Comparison(policies=("choose", "drop"), seeds=1)
    return ComparisonPlan(scenario.load("digits"), comparison, tmp_path / "run")


@pytest.fixture
def performed(monkeypatch, round_line):
    """Runs close one round; those of the policies in `wrong` then raise its error."""
    wrong = {}

    def perform(scenario, name, folder, how, observer):
        observer.closed(round_line(round=1))
        if name.policy in wrong:
            raise wrong[name.policy]
        finished.add(folder)

    finished = set()
    monkeypatch.setattr(completing, "perform", perform)
    monkeypatch.setattr(
        "device_runtime.simulation.compare.plan.finished", lambda folder, _: folder in finished
    )
    return wrong


def test_trackers_are_checked_also_where_every_run_is_finished(plan, performed):
    completed(plan, Noted())
    assert not plan.missing()
    check_runs(plan, HERE.run)
    with pytest.raises(TrackerError, match="tracker 'foo': expected tensorboard:FOLDER"):
        check_runs(plan, replace(HERE.run, trackers=("foo",)))


def completed(plan, view):
    with working_in(plan.folder) as lock:
        return complete(plan, HERE, lambda missing: view, lock)


def test_runs_of_this_process_tell_the_view_of_rounds_and_ends(plan, performed):
    view = Noted()
    done, failed = completed(plan, view)
    assert (done, failed, view.closed) == (plan, None, 1)
    assert view.ticks == [("choose-0", 1), ("choose-0", ""), ("drop-0", 1), ("drop-0", "")]


def test_a_policy_that_fails_is_left_out_and_the_others_go_on(plan, performed):
    performed["choose"] = SimulationError("nobody can do it")
    view = Noted()
    done, failed = completed(plan, view)
    assert (done.comparison.policies, str(failed)) == (("drop",), "choose-0: nobody can do it")
    assert done.without == {"choose": "nobody can do it"}
    assert view.ticks[1] == ("choose-0", "nobody can do it")


def test_nothing_is_left_where_every_policy_fails(plan, performed):
    performed |= {"choose": SimulationError("no"), "drop": SimulationError("never")}
    with pytest.raises(SimulationError, match=r"^choose-0: no \(and 1 more\)$"):
        completed(plan, Noted())


def test_an_error_of_a_callback_stops_everything(plan, performed):
    performed["choose"] = CallbackError("callback Mine.on_round: enough")
    view = Noted()
    with pytest.raises(CallbackError):
        completed(plan, view)
    assert (view.ticks, view.closed) == ([("choose-0", 1)], 1)


@pytest.fixture
def impatient_lock(monkeypatch):
    @contextmanager
    def impatient(folder, shared=False):
        with locked(folder, patience_s=0.0, shared=shared) as lock:
            yield lock

    locked = completing.folder_lock
    monkeypatch.setattr(completing, "folder_lock", impatient)


def test_two_do_not_work_in_one_folder(tmp_path, impatient_lock):
    busy = pytest.raises(ScenarioError, match="another simulation is at work")
    with working_in(tmp_path / "run"), busy, working_in(tmp_path / "run"):
        pass


def test_parts_of_a_comparison_are_done_in_one_folder_at_the_same_time(plan, performed):
    parts = [replace(plan, part=True, comparison=Comparison(policies=(p,))) for p in ("choose", "drop")]
    folders = [[part.of(name) for name in part.names] for part in parts]
    with working_in(plan.folder, folders[0]) as first, working_in(plan.folder, folders[1]) as second:
        parts[1].save()  # as the other command does first
        done, _ = complete(parts[0], HERE, lambda missing: Noted(), first)
        assert (done.names, done.part) == (parts[0].names, True)
        done, _ = complete(parts[1], HERE, lambda missing: Noted(), second)
        assert (set(done.names), done.part) == (set(plan.names), False), "all parts are finished"
    assert comparison_in(plan.folder).policies == ("drop", "choose")
    assert not plan.missing()


def test_a_part_that_another_command_does_is_refused_and_so_is_the_whole(plan, impatient_lock):
    part = [plan.of(plan.names[0])]
    busy = "another simulation is at work in"
    with working_in(plan.folder, part):
        with pytest.raises(ScenarioError, match=busy), working_in(plan.folder, part):
            pass
        with pytest.raises(ScenarioError, match=busy), working_in(plan.folder):
            pass
