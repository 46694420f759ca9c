"""Processes that end when their starter ends, whatever signal or crash ends it.

The kernel closes the files of a process that ends. So each dependent process holds one end of a pipe or
socket whose other end only the starter holds, and ends when that is closed. Linux can also signal the death
of a parent, but it sends that signal as soon as the *thread* ends that started the process.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from device_runtime.broker.wire.durable_files import private_opener

GRACE_S = 1
"""Seconds that a program gets to end by itself when its starter is gone; then it is killed."""

FILES = 102_400
"""The most files that the program may open, if the system lets it: each connection is one."""

# A shell runs the program, which knows nothing of this, and holds the reading end of the pipe. It unsets
# NOTIFY_SOCKET, by which the program would tell systemd in our name that we are ready.
_KEEPER = f"""
unset NOTIFY_SOCKET
files=$(ulimit -H -n)
case "$files" in *[!0-9]*) files={FILES} ;; esac
[ "$files" -le {FILES} ] || files={FILES}
ulimit -S -n "$files" 2>/dev/null
exec 3<&0
"$@" </dev/null >&2 3<&- & program=$!
{{ read -r _; kill "$program"; sleep {GRACE_S}; kill -9 "$program"; }} <&3 >/dev/null 2>&1 & watch=$!
echo "$program"
wait "$program"; code=$?
kill "$watch"
exit "$code"
"""


class DependentProcess:
    """A running program that ends when this process does. Its output goes to the file `log`.

    It has a session of its own, so that Ctrl-C in the terminal reaches this process only, which then ends it.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        """Starts the program.

        Raises OSError when there is no shell, or `log` cannot be written. A program that cannot be started
        ends with code 126 or 127.
        """
        with open(log, "wb", opener=private_opener) as out:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        line = self._shell.stdout.readline() if self._shell.stdout else b""
        self.pid = int(line or 0)

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def ended(self) -> int | None:
        """Its exit code (128 plus the number of the signal that ended it); None while it runs."""
        return self._shell.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, unless it has ended."""
        if self.pid and self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end, and returns its code. Raises subprocess.TimeoutExpired."""
        return self._shell.wait(timeout_s)

    def stop(self, within_s: float) -> None:
        """Sends it SIGTERM, kills it after `within_s` seconds, and waits for its end."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(within_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Waits for its end, and closes the pipe. May be called twice."""
        self.wait()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe:
                pipe.close()


def end_when_alone(number: int, before: Callable[[], object] = lambda: None) -> None:
    """Ends this process as soon as the other end of this open file (a pipe or socket) is closed.

    `before` is called first. A thread watches the file, so that any work is interrupted.
    """
    threading.Thread(target=_watch, args=(number, before), daemon=True).start()


def _watch(number: int, before: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(number, 0)  # poll reports a closed other end in any case
    while not poll.poll():
        pass
    try:
        before()
    finally:
        os._exit(1)
