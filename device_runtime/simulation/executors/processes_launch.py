"""How worker processes are started: each on its own, or several as copies of one that has imported torch."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from device_runtime.models.engines.available import EngineWish

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); \
from device_runtime.simulation.executors.processes_worker import main; main(sys.argv[2])"
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class LaunchOrder(msgspec.Struct, frozen=True):
    """What a worker is started with. File descriptors are inherited; `clients` is what `Clients.save` wrote,
    `bundle` and `family` are paths.

    `made` says that the clients' folder is the parent's own, to be removed when it is gone.
    """

    number: int
    link: int
    board: int
    wave: int
    bases: int
    results: int
    memories: int
    bundle: str
    family: dict[str, str]
    clients: str
    made: bool
    engine: EngineWish


def launch(orders: Sequence[LaunchOrder]) -> subprocess.Popen[bytes]:
    """A new process that is the first of these workers, and sees to the others; all are deaf to Ctrl-C."""
    first = orders[0]
    board = (first.board, first.wave, first.bases, first.results, first.memories)
    shared = (*board, *(order.link for order in orders))
    threads = str(first.engine.threads)
    with _no_interrupts():
        return subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(sys.path), msgspec.json.encode(orders)],
            pass_fds=shared,
            env=os.environ | dict.fromkeys(ONE_THREAD, threads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )


def divided(orders: Sequence[LaunchOrder]) -> LaunchOrder:
    """In the launched process: copies it for every order but one, and gives each copy its own.

    Copies share the memory of what is imported already: 150 MB of torch. A process with several threads is
    not copied, because a copy has but one of them: the others' workers are launched each by itself.
    """
    mine, *others = orders
    gc.collect()
    gc.freeze()
    if others:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that end leave nothing to be waited for
    for order in others:
        if own_threads() > 1:
            launch([order])
        elif os.fork() == 0:
            mine = order
            break
    for order in orders:
        if order is not mine:
            os.close(order.link)
    return mine


def own_threads() -> int:
    """Of this process, those of libraries too, where the system tells (Linux); elsewhere 2, to be careful."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 2


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: one that is started here is deaf to it, this one is not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
