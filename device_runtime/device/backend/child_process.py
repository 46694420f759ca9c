"""Starts a worker process when there is work, ends it when there is none, and tells how it ended."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from math import inf

from device_runtime.device.errors import WorkDied
from device_runtime.service_process import python_command

from .rpc import Rpc, WorkerGone, WorkerMessage, WorkTerms

log = logging.getLogger(__name__)

STAYS_S, STAYS_TIMES = 10.0, 5.0
"""Seconds that the worker process stays without work, or STAYS_TIMES its start if that is longer.

The start is counted in processor time: a process that starts slowly stays longer.
"""
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
"""Seconds until a process that died is started again, doubled each time until some work is done."""
END_S = 2.0
"""Seconds that the process may take to end."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to the whole process group are for the device, which ends this process when it ends."""
_PROGRAM = "; ".join(
    (
        "import signal, sys",
        f"[signal.signal(one, signal.SIG_IGN) for one in {tuple(map(int, IGNORED))}]",
        "from device_runtime.device.backend.worker_main import main",
        "main(int(sys.argv[1]))",
    )
)


class Child:
    """A worker process and the connection to it.

    It ends when this process does, however that ends: see `worker_main`.
    """

    def __init__(self, terms: WorkTerms) -> None:
        """Starts it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = python_command(_PROGRAM, str(number))
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(number,))
        self.rpc: Rpc[WorkerMessage] = Rpc(ours, WorkerMessage)
        with suppress(WorkerGone):  # the next request raises it again
            self.rpc.send(terms)

    def end(self) -> None:
        """End it at once: nothing is lost by that. May be called twice."""
        self.rpc.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def killed(self) -> bool:
        """Whether it was killed, as by the kernel for lack of memory; for a process that has ended."""
        return self.process.returncode == -signal.SIGKILL

    @property
    def end_description(self) -> str:
        """How it ended; for a process that has ended."""
        code = self.process.returncode
        if code >= 0:
            return f"the process that worked on it ended with code {code}"
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        return f"the process that worked on it was ended by {name}"


class OnDemandWorker:
    """The worker process (`child`, if it runs), which starts when there is work and ends when there is none.

    A process that has died is started again after a wait, which doubles until some work is done.
    """

    def __init__(
        self, terms: Callable[[], WorkTerms], clock: Callable[[], float], stays_s: float = STAYS_S
    ) -> None:
        """`terms` makes what the process is told at its start. It stays `stays_s` seconds without work."""
        self.child: Child | None = None
        self._terms, self._clock, self._stays_s = terms, clock, stays_s
        self._used_at = 0.0
        self._cpu_s: float | None = None
        """Processor seconds of its start, once it has answered a request."""
        self._refused, self._retry_at, self._wait_s = "", -inf, AGAIN_S

    def running(self) -> Child:
        """The process, started if there is none. Raises WorkDied if it is too early or cannot be started."""
        if self.child is not None and self.child.ended:
            log.warning("%s, with nothing to do", self.child.end_description)
            self.end()
        if self.child is None:
            if self._clock() < self._retry_at:
                raise WorkDied(self._refused)
            try:
                self.child = Child(self._terms())
            except OSError as error:
                why = f"no worker process can be started ({error}); --in-process works without one"
                raise self.died(why) from None
            self._used_at, self._cpu_s = self._clock(), None
        return self.child

    @property
    def has_answered(self) -> bool:
        """Whether a process runs that has answered a request."""
        return self.child is not None and self._cpu_s is not None and not self.child.ended

    @property
    def idle(self) -> bool:
        """Whether a process runs that has had no work for as long as it may stay."""
        stays_s = max(self._stays_s, STAYS_TIMES * (self._cpu_s or 0.0))
        return self.child is not None and self._clock() - self._used_at >= stays_s

    def answered(self, cpu_s: float, is_work: bool) -> None:
        """It has answered a request after `cpu_s` processor seconds; `is_work`: some work is done."""
        self._used_at = self._clock()
        if self._cpu_s is None:
            self._cpu_s = cpu_s
        if is_work:
            self._wait_s = AGAIN_S

    def died(self, why: str, killed: bool = False) -> WorkDied:
        """The error to raise when it has ended or must end; sets a wait before the next start."""
        self._refused, self._retry_at = why, self._clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, AGAIN_MOST_S)
        return WorkDied(why, killed)

    def start_at_once(self) -> None:
        """Do not wait before the next start."""
        self._retry_at = -inf

    def end(self) -> None:
        """End the process, if there is one."""
        if self.child is not None:
            self.child.end()
        self.child = None
