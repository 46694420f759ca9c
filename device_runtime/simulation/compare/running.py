"""Does the missing runs of a comparison in processes, which report in JSON lines; locks its folder.

Each process is the same command, started for one policy and one seed. It ends with the command that started
it.
"""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType

import msgspec

from device_runtime.simulation.errors import RunsFailed, ScenarioError
from device_runtime.simulation.executors.processes import THREADS

from .plan import ComparisonPlan
from .progress import Message, ProgressView, RoundDone, RunFailed, UpdatesTrained
from .run_folder import LOG, RunName

GRACE_S = 5.0


@dataclass(frozen=True)
class ProcessOptions:
    """The way to start processes: `parallel` at a time, with `arguments` in addition to the run's names.

    `workers` is the number of threads that each may use; `locks` are file descriptors that they inherit.
    """

    arguments: tuple[str, ...]
    parallel: int
    workers: int = 1
    locks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunJob:
    """One run of a comparison, to be done in a process."""

    plan: ComparisonPlan
    name: RunName

    @property
    def folder(self) -> Path:
        return self.plan.of(self.name)


@dataclass(frozen=True)
class _News:
    """A message of a run's process; None: the process has ended."""

    name: RunName
    message: Message | None = None


def run_jobs(jobs: Mapping[RunName, RunJob], children: ProcessOptions, view: ProgressView) -> None:
    """Does these runs, of one comparison or several; the view gets their names.

    If a run fails the others continue; then RunsFailed is raised. If this is interrupted the processes end,
    and finished runs are kept.
    """
    waiting = list(jobs)
    whys: dict[tuple[str, int], str] = {}
    troubles: dict[RunName, str] = {}
    at_work: dict[RunName, subprocess.Popen[bytes]] = {}
    turns: dict[RunName, int] = {}  # a number that no other run at work has: its turn of the GPUs
    inbox: queue.SimpleQueue[_News] = queue.SimpleQueue()
    try:
        while waiting or at_work:
            while waiting and len(at_work) < children.parallel:
                name = waiting.pop(0)
                turns[name] = next(turn for turn in count() if turn not in turns.values())
                at_work[name] = _start(jobs[name], name, children, (inbox, turns[name]))
            news = inbox.get()
            if isinstance(news.message, RoundDone):
                view.moved(news.name, news.message)
            elif isinstance(news.message, UpdatesTrained):
                view.working(news.name, news.message)
            elif isinstance(news.message, RunFailed):
                troubles[news.name] = news.message.why
            else:
                del turns[news.name]
                why = _verdict(at_work.pop(news.name), jobs[news.name].folder / LOG)
                why = troubles.get(news.name) or why
                view.ended(news.name, why)
                if why:
                    whys[news.name.policy, news.name.seed] = why
    finally:
        _end(list(at_work.values()))
    if whys:
        raise RunsFailed(whys)


def _start(
    job: RunJob, name: RunName, children: ProcessOptions, place: tuple[queue.SimpleQueue[_News], int]
) -> subprocess.Popen[bytes]:
    """Starts a run's process. `place`: where its messages go, and its turn of the machine's GPUs."""
    folder, (inbox, turn) = job.folder, place
    folder.mkdir(parents=True, exist_ok=True)
    only = ["--run-dir", str(job.plan.folder), "--only", f"{job.name.policy}:{job.name.seed}"]
    only += ["--turn", str(turn)] if job.plan.scenario.place == "cuda" and children.parallel > 1 else []
    threads = {variable: str(children.workers) for variable in THREADS if variable not in os.environ}
    beside = sys.path[0] or str(Path.cwd())  # modules beside the script that starts this
    paths = [*filter(None, [os.environ.get("PYTHONPATH", "")]), beside]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [command(), "simulate", *only, *children.arguments],
            stdin=subprocess.PIPE,  # never written to: when this process ends it closes, and the child ends
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)},
            pass_fds=children.locks,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends its children
        )
    threading.Thread(target=_listen, args=(name, process, inbox), daemon=True).start()
    return process


def _listen(name: RunName, process: subprocess.Popen[bytes], inbox: queue.SimpleQueue[_News]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            with suppress(msgspec.MsgspecError):
                inbox.put(_News(name, msgspec.json.decode(line, type=Message)))
    process.wait()
    inbox.put(_News(name))


def _verdict(process: subprocess.Popen[bytes], log: Path) -> str:
    """Why a process failed, from its exit status and the end of its log; empty if it did not fail."""
    code = process.wait()
    if code == 0:
        return ""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        return f"killed by signal {-code}; the same command does it again"
    return lines[-1].removeprefix("device-runtime: ") if lines else f"ended with code {code} ({log})"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def has_command() -> bool:
    """Whether the command that does runs in other processes is installed."""
    return Path(command()).exists()


def command() -> str:
    """The installed `device-runtime`, in the folder of the Python that runs this."""
    return str(Path(sys.executable).with_name("device-runtime"))


PATIENCE_S = 3.0
"""Seconds to wait for the lock: the processes of a killed command are about to end."""
POLL_S = 0.05
ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def folder_lock(folder: Path, patience_s: float = PATIENCE_S, shared: bool = False) -> Iterator[int]:
    """Locks the folder, and gives the lock's file descriptor, to be inherited by the runs' processes.

    shared: together with other commands that lock it so. The lock holds until all processes that inherit it
    have ended. Raises ScenarioError when another command has it. On a file system without locks there is
    none.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        ends = time.monotonic() + patience_s
        while not _taken(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if time.monotonic() >= ends:
                raise ScenarioError(
                    f"another simulation is at work in {folder}: wait for it, or give another --run-dir"
                )
            time.sleep(POLL_S)
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns the signals that end a process (SIGTERM, SIGHUP) into KeyboardInterrupt.

    Signals that are ignored (nohup) stay ignored; outside the main thread nothing changes.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    signals = [number for number in ENDING if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in signals:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """Ends this process once the other end of its standard input is closed, if that is a pipe."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return
    if piped:
        threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
