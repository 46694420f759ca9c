"""Machines that lack something: how to start a command on each of them, in namespaces of this one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST_S = 600.0

MAIN = """
import json, os, signal, sys
def end(*_):
    os.kill(os.getpid(), signal.SIGTERM)
def look(*_):  # ends a `join` by SIGTERM as soon as it waits for its broker, and a `serve` after a second
    connecting = sys.modules.get("device_runtime.device.connection.connecting")
    if connecting and hasattr(connecting, "is_enrolled"):
        connecting.sleep_until = lambda stop, _seconds: (end(), stop.wait(5))
    serving = sys.modules.get("device_runtime.aggregator.serving.process")
    if serving and hasattr(serving, "_check_room") and not hasattr(serving, "timed"):
        serving.timed = serving.Process._serve
        def serve(*given):
            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, 1)
            try:
                return serving.timed(*given)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        serving.Process._serve = serve
signal.signal(signal.SIGALRM, look)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
number, trials = int(sys.argv[1]), json.loads(sys.argv[2])
from device_runtime.cli import main
for name, words in trials.items():
    try:
        if "--service" in words:  # no service of this machine is touched
            from device_runtime.device.service import install
            install.service_manager = lambda *_: "user"
            install.run_command = lambda command: f"{command[0]} is not installed"
        code = main(words)
    except SystemExit as error:
        code = error.code
    except BaseException:
        import traceback
        code = traceback.format_exc()
    os.write(number, json.dumps([name, code]).encode() + b"\\n")
"""
"""Runs commands one after the other; writes their exit codes, or tracebacks, to an open file."""


@dataclass(frozen=True)
class Ran:
    """The exit code of each command, or its traceback; and what they wrote to standard output and error."""

    codes: Mapping[str, int | str]
    output: str
    errors: str


@dataclass(frozen=True)
class Machine:
    """What a machine lacks.

    shell: commands that make it, in a mount namespace ("$STATE" is the device's folder); python: what is run
    before the command, in its process; env: variables, None takes one away. wrap: words before the command.
    works: whether commands do what they do elsewhere; otherwise they may also refuse with a sentence.
    ends: commands that refuse all the same, with this code. without: commands that are not tried.
    """

    shell: str = ""
    python: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    works: bool = True
    ends: Mapping[str, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    streams: str = ""


def hides_checkout(machine: Machine) -> bool:
    """Whether the machine hides /tmp, and this checkout or its Python lies below it."""
    programs = (ROOT, Path(sys.prefix), Path(sys.base_prefix))
    return _NO_TMP in machine.shell and any(
        program.is_relative_to(hidden) for program in programs for hidden in ("/tmp", "/var/tmp")
    )


def _failing(call: str, number: str, when: str = "True") -> str:
    return f"""
import errno, os, stat
before = os.{call}
def failing(*given, **more):
    if {when}:
        raise OSError(errno.{number}, os.strerror(errno.{number}))
    return before(*given, **more)
os.{call} = failing
"""


_OF_FOLDERS = "stat.S_ISDIR(os.fstat(given[0]).st_mode)"
_NO_PROCFS = "mount -t tmpfs -o mode=000 none /proc/self 2>/dev/null; mount -t tmpfs -o mode=0000 none /proc"
_NO_PASSWD = """
import pwd
def unknown(number): raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = unknown
"""
_NO_TMP = (  # a device's folder that is below /tmp stays where it is
    "cd /sys; mount --bind $STATE/.. /mnt; mount -t tmpfs none /var/tmp; mount -t tmpfs none /tmp; "
    "mkdir -p $STATE/..; mount --bind /mnt $STATE/..; mount -o remount,ro /var/tmp; mount -o remount,ro /tmp"
)
_UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

MACHINES: dict[str, Machine] = {
    "HOME unset": Machine(env={"HOME": None}),
    "HOME empty": Machine(env={"HOME": ""}),
    "HOME a file": Machine(env={"HOME": "/etc/hostname"}, works=False),
    "HOME unset, no passwd entry": Machine(
        python=_NO_PASSWD, env={"HOME": None, "USER": None, "LOGNAME": None}, works=False
    ),
    "no name of the user": Machine(python=_NO_PASSWD, env={"USER": None, "LOGNAME": None}),
    "read-only root": Machine(
        "mount -o remount,bind,ro / || mount --bind / /; mount -o remount,bind,ro /", works=False
    ),
    "no /tmp": Machine(_NO_TMP, wrap=_UNPRIVILEGED),
    "TMPDIR nowhere": Machine(env={"TMPDIR": "/nowhere"}),
    "read-only root without /tmp": Machine(
        f"{_NO_TMP}; mount --bind / /; mount -o remount,bind,ro /", wrap=_UNPRIVILEGED, works=False
    ),
    "/proc denied": Machine(_NO_PROCFS, wrap=_UNPRIVILEGED),
    "/proc empty": Machine("mount -t tmpfs none /proc"),
    "/proc/stat and /proc/meminfo denied": Machine(
        "touch $STATE/../denied; chmod 0 $STATE/../denied; for one in stat meminfo loadavg cpuinfo; "
        "do mount --bind $STATE/../denied /proc/$one; done",
        wrap=_UNPRIVILEGED,
    ),
    "/sys empty": Machine("mount -t tmpfs none /sys"),
    "/sys denied": Machine("mount -t tmpfs -o mode=000 none /sys", wrap=_UNPRIVILEGED),
    "no cgroups": Machine("umount -l /sys/fs/cgroup || mount -t tmpfs none /sys/fs/cgroup"),
    "folders without fsync, EINVAL": Machine(python=_failing("fsync", "EINVAL", _OF_FOLDERS)),
    "folders without fsync, ENOTSUP": Machine(python=_failing("fsync", "ENOTSUP", _OF_FOLDERS)),
    "folders without fsync, EBADF": Machine(python=_failing("fsync", "EBADF", _OF_FOLDERS)),
    "files without fsync": Machine(python=_failing("fsync", "EINVAL")),
    "no hard links": Machine(python=_failing("link", "EPERM")),
    "no permissions": Machine(python=_failing("chmod", "EPERM")),
    "no locks": Machine(
        python="import fcntl\ndef none(*_): raise OSError(37, 'No locks available')\nfcntl.flock = none"
    ),
    "full disk": Machine(
        "mount -t tmpfs -o size=16k none $STATE; touch $STATE/lock; mkdir $STATE/outbox; "
        "dd if=/dev/zero of=$STATE/full bs=1k 2>/dev/null",
        works=False,
    ),
    "read-only state": Machine(
        "mount -t tmpfs none $STATE; touch $STATE/lock; mkdir $STATE/outbox; mount -o remount,ro $STATE",
        works=False,
    ),
    "state of another user": Machine(
        "chown 12345 $STATE && chmod 700 $STATE", wrap=_UNPRIVILEGED, works=False
    ),
    "free room unknown": Machine(
        python=_failing("statvfs", "ENOSYS") + "import shutil\nshutil.disk_usage = os.statvfs"
    ),
    "files of no bytes": Machine(
        python="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", works=False
    ),
    "LANG=C": Machine(env={"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
    "LC_ALL=POSIX, strict": Machine(env={"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii:strict"}),
    "Latin 1": Machine(env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}),
    "32 open files": Machine(python="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))"),
    "12 open files": Machine(
        python="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))", works=False
    ),
    "5 open files": Machine(
        python="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))", works=False
    ),
    "no more threads": Machine(
        python=(
            "import threading\n"
            'def none(*_, **__): raise RuntimeError("can\'t start new thread")\n'
            "threading._start_new_thread = none; threading._start_joinable_thread = none"
        ),
        works=False,
    ),
    "no more processes": Machine(
        python=(
            "import _posixsubprocess, errno, subprocess\n"
            "def none(*_, **__): raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')\n"
            "subprocess._fork_exec = none; _posixsubprocess.fork_exec = none"
        ),
        works=False,
    ),
    "300 MB of address space": Machine(
        python="import resource; resource.setrlimit(resource.RLIMIT_AS, (300_000_000,) * 2)", works=False
    ),
    "1970": Machine(python="import time; time.time = lambda at=time.time(): 100.0 + time.monotonic()"),
    "TZ invalid": Machine(env={"TZ": "Nowhere/Atlantis"}),
    "no XDG_RUNTIME_DIR": Machine(env={"XDG_RUNTIME_DIR": None}),
    "umask 077": Machine(python="import os; os.umask(0o077)"),
    "umask 777": Machine(
        python="import os; os.umask(0o777)", wrap=_UNPRIVILEGED, works=False, without=("partition",)
    ),
    "no network": Machine(
        wrap=("unshare", "-n"), ends={"serve": 3, "models": 2, "backup": 2}
    ),  # not even with itself
    "no IPv6": Machine(python="import socket; socket.has_ipv6 = False"),
    "stdin closed": Machine(streams="<&-"),
    "stdout closed": Machine(streams=">&-"),
    "stdout and stderr closed": Machine(streams=">&- 2>&-"),
    "all streams closed": Machine(streams="<&- >&- 2>&-"),
    "stdout full": Machine(streams=">/dev/full", works=False),
    "stderr full": Machine(streams="2>/dev/full"),
    "current folder gone": Machine("mkdir -p $STATE/../gone; cd $STATE/../gone; rmdir $STATE/../gone"),
    "PATH empty": Machine(python="import os; os.environ['PATH'] = ''"),
}


def can_isolate() -> bool:
    """Whether this machine lets mount namespaces be made."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    return subprocess.run(["unshare", "-mn", "true"], capture_output=True).returncode == 0


def start(machine: Machine, trials: Mapping[str, tuple[str, ...]], state: Path) -> Ran:
    """Runs commands of device-runtime on a machine, in one process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env |= {"HOME": str(state.parent / "home"), "STATE": str(state), "PYTHONPATH": str(ROOT)}
    env |= {name: value for name, value in machine.env.items() if value is not None}
    for name in (name for name, value in machine.env.items() if value is None):
        env.pop(name, None)
    reading, writing = os.pipe()
    with open(reading, "rb") as report:  # noqa: PTH123 - a number
        words = (sys.executable, "-c", f"{machine.python}\n{MAIN}", str(writing), json.dumps(trials))
        run = f"exec {shlex.join((*machine.wrap, *words))} {machine.streams}"
        outside = ["unshare", "-m", "--propagation", "private"] if machine.shell else []
        try:
            done = subprocess.run(
                [*outside, "/bin/sh", "-c", f"{machine.shell}\n{run}"],
                env=env, cwd=state.parent, capture_output=True, text=True, errors="replace",
                timeout=LONGEST_S, pass_fds=(writing,),
            )  # fmt: skip
        finally:
            os.close(writing)
        codes = dict(json.loads(line) for line in report.read().splitlines())
    return Ran(
        {name: codes.get(name, f"the process ended with {done.returncode}") for name in trials},
        done.stdout,
        done.stderr,
    )
