"""Processes that end when the one that started them does, whatever signal or crash ends that.

The kernel closes the files of a process that ends. So each dependent process holds one end of a pipe or
socket whose other end the starter alone holds, and ends when that is closed. Linux has a signal for the death
of a parent too, but that one already comes when the *thread* ends that started the process.
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

GRACE_S = 1
"""Seconds that a program gets to end by itself when its starter is gone; then it is killed."""

# A shell stands between us and a program that is not ours. It holds the reading end of the pipe. It unsets
# NOTIFY_SOCKET, by which the program would tell systemd in our name that we are ready.
_KEEPER = f"""
unset NOTIFY_SOCKET
exec 3<&0
"$@" </dev/null >&2 3<&- & program=$!
{{ read -r _; kill "$program"; sleep {GRACE_S}; kill -9 "$program"; }} <&3 >/dev/null 2>&1 & watch=$!
echo "$program"
wait "$program"; code=$?
kill "$watch"
exit "$code"
"""


class Dependent:
    """A running program that ends when this process does. What it prints goes to the file `log`.

    It is in a session of its own: Ctrl-C in the terminal is for this process, which then ends it.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        """Starts the program. Raises OSError where there is no shell, or `log` cannot be written; a program
        that cannot be started is one that ends with code 126 or 127.
        """
        with log.open("wb") as out:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        said = self._shell.stdout.readline() if self._shell.stdout else b""
        self.pid = int(said or 0)

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def ended(self) -> int | None:
        """With which code it ended (128 and its number after a signal); None while it runs."""
        return self._shell.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal; nothing happens where it has ended."""
        if self.pid and self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end, and returns its code. Raises subprocess.TimeoutExpired."""
        return self._shell.wait(timeout_s)

    def stop(self, within_s: float) -> None:
        """Asks it to end by SIGTERM, kills it after so many seconds, and waits for its end."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(within_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Waits for its end, and lets go of the pipe. May be called twice."""
        self.wait()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe:
                pipe.close()


def end_when_alone(number: int, before: Callable[[], object] = lambda: None) -> None:
    """Ends this process as soon as nobody has the other end of this open file (a pipe or socket) any more;
    `before` is called first.

    It is watched on a thread, so that the end comes in the middle of any work.
    """
    threading.Thread(target=_watch, args=(number, before), daemon=True).start()


def _watch(number: int, before: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(number, 0)  # that the other end is closed is told unasked
    while not poll.poll():
        pass
    try:
        before()
    finally:
        os._exit(1)
