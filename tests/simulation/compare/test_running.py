"""Runs as processes: a stand-in for the command that does what the test says."""

import os
import signal
import sys

import msgspec
import pytest

from device_runtime.simulation.compare import running
from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.compare.running import ProcessOptions, RunJob, run_jobs
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.scenarios import scenario

TICK = '{"type":"round","round":1,"closed_s":3.0,"eval_acc":0.5,"participants":4}'


class Noted:
    """A view that keeps what it is told."""

    def __init__(self):
        self.reports = []

    def moved(self, name, tick):
        self.reports.append((str(name), tick.round))

    def working(self, name, now):
        self.reports.append((str(name), f"{now.trained} trained"))

    def ended(self, name, why):
        self.reports.append((str(name), why))

    def close(self):
        pass


def run_all(plan, names, children, view):
    run_jobs({name: RunJob(plan, name) for name in names}, children, view)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    def write(body):
        script = tmp_path / "command"
        script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setattr(running, "command", lambda: str(script))

    return write


@pytest.fixture
def plan(tmp_path):
    comparison = Comparison(policies=("choose", "drop"), seeds=2)
    return ComparisonPlan(scenario.load("digits"), comparison, tmp_path / "run")


def test_every_run_is_started_with_its_policy_and_seed_and_told_of(plan, stand_in):
    stand_in(f"print('not for us'); print('{TICK}', flush=True); print(sys.argv[1:], file=sys.stderr)")
    view = Noted()
    run_all(plan, plan.names, ProcessOptions(("--executor", "plain"), parallel=2), view)
    assert sorted(view.reports, key=str) == sorted(
        [(str(name), what) for name in plan.names for what in (1, "")], key=str
    )
    log = (plan.of(RunName("drop", 1)) / "log.txt").read_text()
    assert log.strip() == str(
        ["simulate", "--run-dir", str(plan.folder), "--only", "drop:1", "--executor", "plain"]
    )


def test_runs_of_several_comparisons_have_the_names_that_they_are_given(plan, stand_in, tmp_path):
    stand_in("print(sys.argv[1:], file=sys.stderr)")
    other = ComparisonPlan(plan.scenario, plan.comparison, tmp_path / "other")
    jobs = {
        RunName("here", 0): RunJob(plan, RunName("drop", 0)),
        RunName("there", 0): RunJob(other, RunName("drop", 0)),
    }
    view = Noted()
    run_jobs(jobs, ProcessOptions((), parallel=2), view)
    assert sorted(view.reports) == [("here-0", ""), ("there-0", "")]
    for folder in (plan.folder, other.folder):
        log = (folder / "runs" / "drop-0" / "log.txt").read_text().strip()
        assert log == str(["simulate", "--run-dir", str(folder), "--only", "drop:0"])


def test_no_more_run_at_once_than_asked_for(plan, stand_in, tmp_path):
    stand_in(
        f"path = {str(tmp_path)!r} + '/at-work'\n"
        "try:\n    os.mkdir(path)\nexcept FileExistsError:\n    sys.exit('two at once')\n"
        "time.sleep(0.05); os.rmdir(path)"
    )
    run_all(plan, plan.names, ProcessOptions((), parallel=1), Noted())


def test_runs_on_gpus_have_numbers_that_no_other_run_at_work_has(plan, stand_in, tmp_path):
    """The second waits until the third has begun, which can only have the number of the first."""
    stand_in(
        "name, turn = sys.argv[sys.argv.index('--only') + 1], sys.argv[sys.argv.index('--turn') + 1]\n"
        f"open({str(tmp_path)!r} + '/' + name, 'w').write(turn)\n"
        f"while name == 'choose:1' and not os.path.exists({str(tmp_path)!r} + '/drop:0'):\n"
        "    time.sleep(0.01)"
    )
    names = [RunName("choose", 0), RunName("choose", 1), RunName("drop", 0)]
    on_gpus = ComparisonPlan(
        msgspec.structs.replace(plan.scenario, place="cuda"), plan.comparison, plan.folder
    )
    run_all(on_gpus, names, ProcessOptions((), parallel=2), Noted())
    turns = [(tmp_path / name).read_text() for name in ("choose:0", "choose:1", "drop:0")]
    assert turns == ["0", "1", "0"]


def test_one_that_fails_lets_the_others_go_on_and_is_named(plan, stand_in):
    stand_in("sys.exit('device-runtime: no data at /nowhere') if 'drop:1' in sys.argv else None")
    view = Noted()
    with pytest.raises(SimulationError, match=r"^drop-1: no data at /nowhere$"):
        run_all(plan, plan.names, ProcessOptions((), parallel=2), view)
    assert len(view.reports) == 4


def test_a_killed_one_is_named_with_its_signal(plan, stand_in):
    stand_in("os.kill(os.getpid(), 9)")
    with pytest.raises(SimulationError, match=r"killed by signal 9; .* \(and 3 more\)"):
        run_all(plan, plan.names, ProcessOptions((), parallel=2), Noted())


def test_what_a_run_says_of_itself_comes_before_its_log(plan, stand_in):
    messages = (
        '{"type":"working","round":1,"trained":7}',
        '{"type":"trouble","why":"no space left on device"}',
    )
    stand_in(f"print({messages[0]!r}); print({messages[1]!r}, flush=True); sys.exit('traceback')")
    view = Noted()
    with pytest.raises(SimulationError, match=r"^choose-0: no space left on device$"):
        run_all(plan, plan.names[:1], ProcessOptions((), parallel=1), view)
    assert view.reports == [("choose-0", "7 trained"), ("choose-0", "no space left on device")]


def test_runs_inherit_what_is_held_and_a_pipe_that_tells_of_the_end(plan, stand_in, tmp_path):
    reading, other = os.pipe()
    stand_in(f"import stat\nsys.exit(not all(stat.S_ISFIFO(os.fstat(fd).st_mode) for fd in ({reading}, 0)))")
    try:
        run_all(plan, plan.names[:1], ProcessOptions((), parallel=1, locks=(reading,)), Noted())
    finally:
        os.close(reading)
        os.close(other)


def test_an_interruption_ends_the_processes(plan, stand_in, tmp_path):
    tells = f"open({str(tmp_path)!r} + '/pid', 'w').write(str(os.getpid()))"
    stand_in(f"{tells}; print('{TICK}', flush=True)\ntime.sleep(600)")

    class Impatient(Noted):
        def moved(self, name, tick):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(plan, plan.names, ProcessOptions((), parallel=1), Impatient())
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_runs_find_the_modules_that_lie_beside_the_script(plan, stand_in, tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "own_kind_of_a_script.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "beside"), *sys.path])
    stand_in("import own_kind_of_a_script")
    run_all(plan, plan.names[:1], ProcessOptions((), parallel=1), Noted())
