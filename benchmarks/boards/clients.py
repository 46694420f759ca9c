"""Clients of federated learning frameworks, ours among them: installed, started, joined, left idle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from device_runtime.broker.servers import brokers

from . import wheel

REPEATS = 3
LONGEST_S = 300.0
IDLE_S = 30.0
"""Seconds after joining: what works in ours ends within them, where nothing is to be done."""
FLOWER_PORT = 8000


@dataclass(frozen=True)
class Program:
    """Words to start, and what its log says when it is ready."""

    words: Sequence[str | Path]
    ready: str


@dataclass(frozen=True)
class Client:
    """`install`: what pip installs; `imports`: what its client imports; then server and client."""

    name: str
    install: str | Path
    imports: str
    server: Program
    client: Program


def peers(folder: Path) -> list[dict[str, str]]:
    """A row for each, ours first."""
    return [_row(name, folder) for name in ("device-runtime", "flwr", "nvflare")]


def _row(name: str, folder: Path) -> dict[str, str]:
    print(name, file=sys.stderr, flush=True)
    install = {"device-runtime": wheel.built(folder / "wheel")}.get(name, name)
    programs = wheel.environment(folder / name, install)
    megabytes = wheel.size(programs) / 1e6
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        client = _client(name, programs, Path(home), stack)
        imported = [_import_ms(programs, client.imports) for _ in range(REPEATS + 1)][1:]
        idle = [_idle(client, programs, Path(home)) for _ in range(REPEATS)]
    return {
        "client": name,
        "installed MB": f"{megabytes:.0f}",
        "import, ms of processor": f"{median(imported):.0f}",
        "joined after s": f"{median(figures.seconds for figures in idle):.1f}",
        "of processor": f"{median(figures.processor_s for figures in idle):.2f}",
        "MB then": f"{median(figures.joined_megabytes for figures in idle):.0f}",
        "idle MB": f"{median(figures.megabytes for figures in idle):.0f}",
    }


def _client(name: str, programs: Path, home: Path, stack: ExitStack) -> Client:
    """What it needs is made in `home`."""
    if name == "flwr":
        return Client(
            name, name, "import flwr.supernode.cli.flower_supernode",
            Program((programs / "flower-superlink", "--insecure"), "Starting Flower SuperExec"),
            Program(
                (programs / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{FLOWER_PORT}"),
                "SuperNode ID",
            ),
        )  # fmt: skip
    if name == "nvflare":
        return _nvflare(programs, home)
    broker = brokers.start("mosquitto")
    stack.callback(broker.stop)
    rng, data = np.random.default_rng(0), home / "samples.npz"
    np.savez(data, x=rng.integers(0, 17, (180, 8, 8)).astype(np.uint8), y=rng.integers(0, 10, 180))
    serve = (Path(sys.executable).with_name("device-runtime"), "serve", "--bundle", "digits-wrn-10-1")
    more = ("--min-devices", "2", "--broker", broker.url, "--run-dir", home / "run")
    join = (programs / "device-runtime", "join", broker.url, "--data", data, "--name", "idle")
    return Client(
        name, "", "import device_runtime.cli.on_device.join",
        Program((*serve, *more), "task "),
        Program((*join, "--state", home / "state"), "samples of"),
    )  # fmt: skip


def _nvflare(programs: Path, home: Path) -> Client:
    """Its own `poc prepare` makes a server and a client with certificates."""
    environment = {**os.environ, "NVFLARE_POC_WORKSPACE": str(home / "poc")}
    command = [programs / "nvflare", "poc", "prepare", "-n", "1"]
    subprocess.run(command, check=True, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    site = home / "poc" / "example_project" / "prod_00"

    def program(role: str, where: str, uid: str, ready: str) -> Program:
        module = ("-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train", "-m", site / where)
        settings = (*uid.split(), "secure_train=true", "org=nvidia", "config_folder=config")
        file = "fed_server.json" if role == "server" else "fed_client.json"
        return Program((programs / "python", *module, "-s", file, "--set", *settings), ready)

    imports = "import nvflare.private.fed.app.client.client_train"
    server = program("server", "server", "", "Server started")
    return Client(
        "nvflare",
        "nvflare",
        imports,
        server,
        program("client", "site-1", "uid=site-1", "Successfully registered"),
    )


def _import_ms(programs: Path, statement: str) -> float:
    """Milliseconds of the processor beyond starting Python: of those, other work on the machine takes few."""
    program = f"import time; t = time.process_time(); {statement}; print(1e3 * (time.process_time() - t))"
    return float(subprocess.check_output([programs / "python", "-c", program], text=True).splitlines()[-1])


@dataclass(frozen=True)
class Idle:
    """What a client takes, with its children: until it has joined, and while it is idle some time later.

    processor_s: seconds of the processor from the start until it was idle.
    """

    seconds: float
    joined_megabytes: float
    processor_s: float
    megabytes: float


def _idle(client: Client, programs: Path, home: Path) -> Idle:
    shutil.rmtree(home / "state", ignore_errors=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        _until_ready(client.server, programs, home / "server.log", started)
        began = time.perf_counter()
        _until_ready(client.client, programs, home / "client.log", started)
        seconds = time.perf_counter() - began
        joined = held_mb(started[-1].pid)
        time.sleep(IDLE_S)
        members = list(family(started[-1].pid))
        times = [member.cpu_times() for member in members]
        spent = sum(
            time_.user + time_.system + time_.children_user + time_.children_system for time_ in times
        )
        return Idle(seconds, joined, spent, held_mb(started[-1].pid))
    finally:
        for process in reversed(started):
            members = list(family(process.pid))
            process.terminate()
            psutil.wait_procs(members, timeout=10)
            for member in members:
                if member.is_running():
                    member.kill()
            process.wait()


def _until_ready(program: Program, programs: Path, log: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Start it, and wait for what its log says then. Raises TimeoutError."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    with log.open("wb") as out:
        words = [str(word) for word in program.words]
        started.append(
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, cwd=log.parent
            )
        )
    end = time.monotonic() + LONGEST_S
    while program.ready not in log.read_text(errors="replace"):
        if time.monotonic() > end or started[-1].poll() is not None:
            raise TimeoutError(f"{words[0]}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def held_mb(pid: int) -> float:
    """Megabytes resident, of a process and its children."""
    total = 0
    for member in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total / 1e6


def family(pid: int) -> Iterator[psutil.Process]:
    """The process and its children, as far as they are there."""
    try:
        first = psutil.Process(pid)
        yield first
        yield from first.children(recursive=True)
    except psutil.NoSuchProcess:
        return
