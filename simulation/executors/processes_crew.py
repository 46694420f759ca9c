"""The worker processes of one executor: started, listened to, replaced, and ended whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import msgspec
import numpy as np

from simulation.clients import Clients
from simulation.errors import ExecutorError

from .job import World
from .packing import Reply, read_reply
from .processes_memory import Shared
from .processes_worker import Order

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); \
from simulation.executors.processes_worker import main; main(sys.argv[2])"
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Worker:
    """One process, and the pipe to it."""

    number: int
    process: subprocess.Popen[bytes]
    link: Connection


@dataclass(frozen=True)
class Heard:
    """What a worker said; `reply` is None when it is gone."""

    worker: int
    reply: Reply | None


class Crew:
    """Workers by number, the memory they share with this process, and the clients' folder."""

    def __init__(self, world: World) -> None:
        saved = saved_in(world.clients)
        self._made = saved is None
        self.folder = Path(tempfile.mkdtemp(prefix="device-runtime-")) if saved is None else saved
        self.board, self.wave, self.bases, self.results = (Shared.make() for _ in range(4))
        self._world = world
        self._workers: dict[int, Worker] = {}
        self._selector = DefaultSelector()
        if self._made:
            world.clients.save(self.folder)

    def hire(self, number: int) -> None:
        """Starts worker `number`, which will say when it is ready."""
        link, theirs = Pipe()
        shared = {name: getattr(self, name).fd for name in ("board", "wave", "bases", "results")}
        order = Order(
            number=number,
            link=theirs.fileno(),
            bundle=str(self._world.bundle.path.absolute()),
            clients=str(self.folder.absolute()),
            made=self._made,
            engine=self._world.engine,
            **shared,
        )
        with theirs, _no_interrupts():
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps(sys.path), msgspec.json.encode(order)],
                pass_fds=(order.link, *shared.values()),
                env=os.environ | dict.fromkeys(ONE_THREAD, str(self._world.engine.threads)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._workers[number] = Worker(number, process, link)
        self._selector.register(link, EVENT_READ, number)

    def wake(self, workers: list[int]) -> None:
        """To look at the board. One that is gone is found out by `listen`."""
        for number in workers:
            with suppress(OSError):
                self._workers[number].link.send_bytes(b"")

    def listen(self) -> list[Heard]:
        """Waits for one message at least."""
        return [self._hear(key.data) for key, _ in self._selector.select()]

    def dismiss(self, number: int) -> str:
        """Lets go of a worker that is gone; gives how it ended."""
        worker = self._workers.pop(number)
        self._selector.unregister(worker.link)
        worker.link.close()
        worker.process.terminate()
        code = worker.process.wait()
        if code >= 0:
            return f"exit status {code}"
        cause = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{cause}"

    @property
    def pids(self) -> dict[int, int]:
        """Process of each worker."""
        return {number: worker.process.pid for number, worker in list(self._workers.items())}

    def close(self) -> None:
        """Ends all workers; frees memory and folder. May be called twice."""
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            worker.process.terminate()
            worker.link.close()
        for worker in workers:
            _wait(worker.process)
        self._selector.close()
        for shared in (self.board, self.wave, self.bases, self.results):
            shared.close()
        if self._made:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _hear(self, number: int) -> Heard:
        try:
            return Heard(number, read_reply(self._workers[number].link.recv_bytes()))
        except (EOFError, OSError):
            return Heard(number, None)
        except msgspec.DecodeError as error:
            raise ExecutorError(f"worker {number} says what no worker says: {error}") from None


def saved_in(clients: Clients) -> Path | None:
    """The folder that clients were opened from, memory-mapped; None for those that lie in memory alone."""
    files = [Path(a.filename or "") for a in (clients.x, clients.order) if isinstance(a, np.memmap)]
    found = len(files) == 2 and [file.name for file in files] == ["x.npy", "order.npy"]
    return files[0].parent if found and files[0].parent == files[1].parent else None


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: one that is started here is deaf to it, this one is not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(process: subprocess.Popen[bytes], seconds: float = 5) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
