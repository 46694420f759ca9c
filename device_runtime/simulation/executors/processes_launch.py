"""Starts worker processes: each on its own, or several as copies (forks) of one that imported torch."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from device_runtime.child_python import python_command
from device_runtime.models.bundles.names import EngineSettings

_PROGRAM = (
    "import sys; from device_runtime.simulation.executors.processes_worker import main; main(sys.argv[1])"
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class LaunchOrder(msgspec.Struct, frozen=True):
    """The arguments of a worker.

    link to memories: file descriptors, which are inherited.
    bundle, family: paths.
    clients: the folder that `Clients.save` wrote.
    made: the parent made the clients' folder, and the workers remove it if the parent dies.
    """

    number: int
    link: int
    queue: int
    batch: int
    bases: int
    results: int
    memories: int
    bundle: str
    family: dict[str, str]
    clients: str
    made: bool
    engine: EngineSettings


def launch(orders: Sequence[LaunchOrder]) -> subprocess.Popen[bytes]:
    """Starts a process that becomes the first of these workers and starts the others; all ignore Ctrl-C."""
    first = orders[0]
    memories = (first.queue, first.batch, first.bases, first.results, first.memories)
    shared = (*memories, *(order.link for order in orders))
    threads = str(first.engine.threads)
    with _no_interrupts():
        return subprocess.Popen(
            python_command(_PROGRAM, msgspec.json.encode(orders).decode()),
            pass_fds=shared,
            env=os.environ | dict.fromkeys(THREADS, threads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )


def fork_workers(orders: Sequence[LaunchOrder]) -> LaunchOrder:
    """In the launched process: forks it for every order but one, and returns the order of each copy.

    Copies share the memory of imported modules: 150 MB for torch. A process with several threads is not
    forked, because the copy would have only one of them; the other workers are then launched one by one.
    """
    own, *others = orders
    gc.collect()
    gc.freeze()
    if others:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that end leave no zombies
    for order in others:
        if own_threads() > 1:
            launch([order])
        elif os.fork() == 0:
            own = order
            break
    for order in orders:
        if order is not own:
            os.close(order.link)
    return own


def own_threads() -> int:
    """The threads of this process, with those of libraries, where the system tells (Linux); elsewhere 2.

    2 is the careful answer: the process is then not forked.
    """
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 2


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Blocks Ctrl-C for processes started within, because it reaches every process of a terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
