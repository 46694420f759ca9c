"""One small run, whole: what is written, and that a stopped run goes on to the same bytes."""

from dataclasses import replace

import msgspec
import pytest

from device_runtime.broker.wire import durable_files
from device_runtime.models.errors import EngineError
from device_runtime.simulation.compare import completing, run_folder
from device_runtime.simulation.compare.completing import RunOptions, perform
from device_runtime.simulation.compare.figures import read_run
from device_runtime.simulation.compare.run_folder import RunName, fingerprint, finished, info_of, lineage
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.history import checkpoint
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import of_policy

NAME = RunName("choose", 0)
FILES = ("rounds.jsonl", "asks.jsonl", "served.safetensors")
SMALL = scenario.load("uniform", {
    "devices": 3, "slow": 20.0, "data": {"max_train": 90, "max_test": 40},
    "task": {"rounds": 4, "round_deadline_s": 6.0},
})  # fmt: skip
HOW = RunOptions(ExecutorRequest("plain"))


def with_task(scenario, **changes):
    return msgspec.structs.replace(scenario, task=msgspec.structs.replace(scenario.task, **changes))


class Stops(NullObserver):
    """As if the process were killed when round 3 has closed."""

    def closed(self, line):
        if line.round == 3:
            raise KeyboardInterrupt


class Lines(NullObserver):
    """The numbers of the rounds that closed."""

    def __init__(self):
        self.rounds = []

    def closed(self, line):
        self.rounds.append(line.round)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    perform(SMALL, NAME, folder, HOW, NullObserver())
    return folder


def test_a_finished_run_says_so_and_keeps_its_last_checkpoint(whole):
    assert finished(whole, fingerprint(SMALL, 0))
    info = info_of(whole)
    assert (info.policy, info.seed, info.executor) == ("choose", 0, "plain")
    assert len(info.labels) == 10
    assert info.params_sent["few-shot"] == 650  # 64 x 10 and 10
    assert {"python", "numpy"} <= info.versions.keys()
    assert sorted(path.name for path in whole.iterdir()) == sorted([*FILES, "run.json", checkpoint.FILE])


def test_a_run_is_read_back_with_its_asks(whole):
    run = read_run(whole, NAME, number=2)
    assert [line.round for line in run.rounds] == [1, 2, 3, 4]
    assert run.tally.asks == 12
    assert {ask.round for ask in run.round_asks} == {2}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(whole, tmp_path):
    perform(SMALL, NAME, tmp_path, HOW, NullObserver())
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bytes(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        perform(SMALL, NAME, tmp_path, HOW, Stops())
    with (tmp_path / "asks.jsonl").open("ab") as lines:
        lines.write(b'{"round":4,"half a line')

    watch = Lines()
    perform(SMALL, NAME, tmp_path, HOW, watch)
    assert watch.rounds == [4]
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)
    assert (tmp_path / "checkpoint.safetensors").exists(), "it can be given more rounds"


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_saves_goes_on_from_the_save_before(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY_S", 0.0)

    def killed(temporary, target):
        if target.name == checkpoint.FILE and (tmp_path / checkpoint.FILE).exists():
            raise KeyboardInterrupt
        move(temporary, target)

    move = durable_files.move_into_place
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(durable_files, "move_into_place", killed)
        perform(SMALL, NAME, tmp_path, HOW, NullObserver())
    lines = Lines()
    perform(SMALL, NAME, tmp_path, HOW, lines)
    assert lines.rounds[0] == 2
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


@pytest.mark.slow
def test_what_was_stopped_under_another_scenario_begins_again(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY_S", 0.0)
    other = scenario.load("uniform", {"devices": 2, "data": {"max_train": 40, "max_test": 40}})
    with pytest.raises(KeyboardInterrupt):
        perform(other, NAME, tmp_path, HOW, Stops())
    perform(SMALL, NAME, tmp_path, HOW, NullObserver())
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


def test_a_run_among_others_takes_its_turn_of_the_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(completing, "in_turn", lambda engine, turn: replace(engine, engine=f"turn-{turn}"))
    with pytest.raises(EngineError, match="there is no engine 'turn-3'"):
        perform(SMALL, NAME, tmp_path, replace(HOW, turn=3), NullObserver())


def test_an_unfinished_run_is_not_read(tmp_path):
    with pytest.raises(SimulationError, match="holds no finished run"):
        info_of(tmp_path)


def test_a_policy_changes_the_kinds_that_are_offered_and_nothing_else():
    dropped = of_policy(SMALL, "drop")
    assert [kind.name for kind in dropped.task.kinds] == ["full"]
    assert dropped.task.rounds == SMALL.task.rounds
    assert dropped.fleet == SMALL.fleet


@pytest.mark.slow
def test_a_finished_run_with_more_rounds_goes_on_to_the_same_bytes(whole, tmp_path):
    perform(with_task(SMALL, rounds=2), NAME, tmp_path, HOW, NullObserver())
    lines = Lines()
    perform(SMALL, NAME, tmp_path, HOW, lines)
    assert lines.rounds == [3, 4], "the first rounds are not trained again"
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


@pytest.mark.slow
def test_a_run_that_an_older_version_stopped_goes_on_and_loses_its_csv_files(whole, tmp_path):
    perform(with_task(SMALL, rounds=2), NAME, tmp_path, HOW, NullObserver())
    left = checkpoint.load(tmp_path)
    sizes = {**left.mark.sizes, "rounds.csv": 900, "asks.csv": 0}
    checkpoint.save(replace(left, mark=msgspec.structs.replace(left.mark, sizes=sizes)), tmp_path)
    for name in ("rounds.csv", "asks.csv"):
        (tmp_path / name).write_text("round\n1\n")
    lines = Lines()
    perform(SMALL, NAME, tmp_path, HOW, lines)
    assert lines.rounds == [3, 4]
    assert not list(tmp_path.glob("*.csv"))
    assert all((tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


def test_what_earlier_rounds_depend_on_is_part_of_the_lineage():
    longer = with_task(SMALL, rounds=SMALL.task.rounds + 1)
    assert lineage(SMALL, 0) == lineage(longer, 0) != lineage(longer, 1)
    first, second = (
        msgspec.structs.replace(with_task(scenario, stop_after=2), eval_every=2)
        for scenario in (SMALL, longer)
    )
    assert lineage(first, 0) != lineage(second, 0), "the last round is evaluated, which may end the run"
