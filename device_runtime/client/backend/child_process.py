"""Starts and ends a worker process, and tells how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from .rpc import Rpc, WorkerGone, WorkerMessage, WorkTerms

END_S = 2.0
"""Seconds that the process may take to end."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to the whole process group are for the device, which ends this process when it ends."""
PROGRAM = "; ".join(
    (
        "import sys",
        "sys.path[:] = sys.argv[2:]",
        "import signal",
        f"[signal.signal(one, signal.SIG_IGN) for one in {tuple(map(int, IGNORED))}]",
        "from device_runtime.client.backend.worker_main import main",
        "main(int(sys.argv[1]))",
    )
)
"""Modules are loaded from this process's paths, whatever lies in the folder that the worker runs in."""


class Child:
    """A worker process and the connection to it.

    It ends when this process does, however that ends: see `worker_main`.
    """

    def __init__(self, terms: WorkTerms) -> None:
        """Starts it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-c", PROGRAM, str(number), *map(os.path.abspath, sys.path)]
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
