"""Callbacks see a run from its start to its end, once for each round, and stop it by an exception."""

from collections import Counter

import pytest

from device_runtime.simulation.compare import run_folder
from device_runtime.simulation.compare.completing import RunOptions, perform
from device_runtime.simulation.compare.run_folder import (
    ASKS,
    RunName,
    fingerprint,
    finished,
    info_of,
    read,
    rounds_of,
)
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.history.metrics import UnheardWork
from device_runtime.simulation.history.records import AskRecord, NullObserver
from device_runtime.simulation.rounds.callbacks import Callback, CallbackError, EndedRun
from device_runtime.simulation.scenarios import scenario
from tests.simulation.conftest import SMALL

NAME = RunName("choose", 3)


class Notebook(Callback):
    """Keeps all that it is called with."""

    def __init__(self):
        self.starts, self.updates, self.rounds, self.ends, self.failures = [], [], [], [], []

    def on_run_start(self, run):
        self.starts.append(run)

    def on_update(self, job, update):
        self.updates.append((job.round, job.name, update.kind))

    def on_round(self, round):  # noqa: A002
        self.rounds.append(round)

    def on_run_end(self, result):
        self.ends.append(result)

    def on_run_failed(self, error):
        self.failures.append(error)


class Fails(Callback):
    """Fails when round 3 is closed."""

    def on_round(self, round):  # noqa: A002
        if round.number == 3:
            raise ValueError("the disk of the tracker is full")


def run(folder, *callbacks):
    perform(SMALL, NAME, folder, RunOptions(ExecutorRequest("plain"), callbacks), NullObserver())


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    folder, notebook = tmp_path_factory.mktemp("observed"), Notebook()
    run(folder, notebook, Callback())
    return folder, notebook


def test_a_callback_learns_policy_seed_and_settings_when_the_run_starts(observed):
    folder, notebook = observed
    (start,) = notebook.starts
    assert (start.policy, start.seed, start.name) == ("choose", 3, "choose-3")
    assert (start.folder, start.first_round) == (folder, 1)
    assert (start.settings["devices"], start.settings["task"]["rounds"]) == (3, 3)
    assert start.settings["fleet"]["groups"]


def test_every_round_is_reported_with_the_figures_of_its_record(observed):
    folder, notebook = observed
    assert [closed.record for closed in notebook.rounds] == list(rounds_of(folder))
    last = notebook.rounds[-1]
    assert (last.number, last.seconds, last.accuracy) == (3, last.record.closed_s, last.record.eval_acc)
    assert last.bytes_up > 0 and last.energy_j > 0


def test_contributions_of_a_round_are_counted_by_kind(observed):
    folder, notebook = observed
    asks = [ask for ask in read(folder / ASKS, AskRecord) if ask.fate == "counted"]
    for closed in notebook.rounds:
        assert closed.contributions == Counter(ask.kind for ask in asks if ask.into == closed.number)
    assert sum(sum(closed.contributions.values()) for closed in notebook.rounds) == len(asks) > 0


def test_every_update_that_counts_is_reported(observed):
    folder, notebook = observed
    asks = read(folder / ASKS, AskRecord)
    counted = [(ask.round, ask.device, ask.kind) for ask in asks if ask.fate == "counted"]
    assert sorted(notebook.updates) == sorted(counted)


def test_the_end_has_the_totals_and_the_served_model(observed):
    folder, notebook = observed
    (end,) = notebook.ends
    lines = rounds_of(folder)
    assert end.rounds == lines and end.accuracy == lines[-1].eval_acc
    assert end.best_accuracy == max(line.eval_acc for line in lines)
    assert (end.seconds, end.bytes_up) == (lines[-1].closed_s, sum(line.bytes_up for line in lines))
    assert end.served and finished(end.folder, info_of(folder).sha256)
    assert notebook.failures == []


def test_an_exception_in_a_callback_stops_the_run_and_names_the_callback(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY_S", 0.0)
    notebook = Notebook()
    with pytest.raises(CallbackError) as caught:
        run(tmp_path, notebook, Fails())
    assert str(caught.value) == "callback Fails.on_round: ValueError: the disk of the tracker is full"
    assert notebook.failures == [caught.value] and notebook.ends == []
    assert not finished(tmp_path, fingerprint(scenario.of_policy(SMALL, NAME.policy), NAME.seed))

    resumed = Notebook()
    run(tmp_path, resumed)
    assert resumed.starts[0].first_round == 3
    assert [closed.number for closed in resumed.rounds] == [3]  # the round that was not recorded
    assert [line.round for line in resumed.ends[0].rounds] == [1, 2, 3]


def test_an_exception_on_failure_does_not_hide_the_first_one(tmp_path):
    class FailsTwice(Callback):
        def on_run_start(self, run):
            raise RuntimeError

        def on_run_failed(self, error):
            raise OSError("also this")

    with pytest.raises(CallbackError, match=r"callback FailsTwice\.on_run_start: RuntimeError$"):
        run(tmp_path, FailsTwice())


def test_the_totals_have_what_was_spent_on_work_that_the_end_cut_off(round_line):
    cut_off = UnheardWork(bytes_up=5, bytes_down=7, energy_j=2.0)
    end = EndedRun("choose", 0, (round_line(), round_line()), unheard=cut_off)
    assert (end.bytes_up, end.bytes_down, end.energy_j) == (2005, 6007, 62.0)
