"""What a device costs to have: megabytes installed, milliseconds to import, megabytes held while idle.

    .venv/bin/python benchmarks/footprint.py             # import and memory, about a minute
    .venv/bin/python benchmarks/footprint.py --install   # and a fresh device install from this checkout
    .venv/bin/python benchmarks/footprint.py --peers FOLDER    # and flwr's SuperNode, nvflare's client
    .venv/bin/python benchmarks/footprint.py --extras FOLDER   # and what each extra adds (3 GB)
    .venv/bin/python benchmarks/footprint.py --installed       # time and memory of those that are here

Medians of several processes. Memory is the resident set as the system counts it, of a peer's client with its
children. Peers and extras are installed into environments below FOLDER, and kept there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

import numpy as np
from tabulate import tabulate

from benchmarks.boards import clients, extras
from device_runtime.broker.servers import brokers

ROOT = Path(__file__).parent.parent
COMMAND = str(Path(sys.executable).with_name("device-runtime"))
REPEATS = 3


def import_ms(statement: str) -> float:
    """Milliseconds of the processor that a statement takes in a new process, beyond starting Python."""
    program = f"import time; t = time.process_time(); {statement}; print(1e3 * (time.process_time() - t))"
    return median(
        float(subprocess.check_output([sys.executable, "-c", program], text=True)) for _ in range(REPEATS)
    )


def rss_mb(statement: str) -> float:
    """Megabytes (1e6 bytes) resident after a statement, in a new process."""
    program = f"{statement}; import psutil; print(psutil.Process().memory_info().rss / 1e6)"
    return median(
        float(subprocess.check_output([sys.executable, "-c", program], text=True)) for _ in range(REPEATS)
    )


def joined(folder: Path) -> tuple[float, float, float]:
    """Start a real device; returns seconds until it has joined, and megabytes then and when it is idle.

    The first megabytes are with its worker process.
    """
    data = folder / "samples.npz"
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.integers(0, 17, (180, 8, 8)).astype(np.uint8), y=rng.integers(0, 10, 180))
    broker = brokers.start()
    aggregator = [COMMAND, "serve", "--bundle", "digits-wrn-10-1", "--min-devices", "2", "--quiet"]
    aggregator += ["--broker", broker.url, "--run-dir", str(folder / "run")]
    device = [
        COMMAND,
        "join",
        broker.url,
        "--data",
        str(data),
        "--name",
        "idle",
        "--state",
        str(folder / "s"),
    ]
    processes = [subprocess.Popen(aggregator)]
    try:
        time.sleep(2)
        began = time.perf_counter()
        with (folder / "log").open("w") as log:
            processes.append(subprocess.Popen(device, stderr=log))
        while "samples of" not in (folder / "log").read_text():
            time.sleep(0.02)
        seconds, then = time.perf_counter() - began, clients.held_mb(processes[1].pid)
        time.sleep(clients.IDLE_S)
        return seconds, then, clients.held_mb(processes[1].pid)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        broker.stop()


def installed_mb(folder: Path) -> list[tuple[str, float]]:
    """Megabytes of a fresh `pip install` of this checkout, by package; the largest first."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    before = _size(folder / "venv")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", str(ROOT)], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    parts = [(path.name, _size(path) / 1e6) for path in site.iterdir() if path.is_dir()]
    large = [part for part in parts if part[1] > 1 and part[0] not in ("pip", "setuptools", "pkg_resources")]
    total = (_size(folder / "venv") - before) / 1e6
    return [("device-runtime and all it needs", total), *sorted(large, key=lambda part: -part[1])]


def _size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--install", action="store_true", help="also install into a fresh environment")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="only: clients of other frameworks")
    parser.add_argument("--extras", type=Path, metavar="FOLDER", help="only: what each extra adds")
    parser.add_argument("--installed", action="store_true", help="only: extras that this environment has")
    parser.add_argument("--only", default="", metavar="A,B", help="of extras: these alone")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.peers or options.extras or options.installed:
        names = [name for name in options.only.split(",") if name]
        if options.peers:
            rows = clients.peers(options.peers)
        else:
            rows = extras.table(options.extras, names) if options.extras else extras.installed(names)
        print(tabulate(rows, headers="keys", disable_numparse=True, stralign="right"))
        return
    rows: list[tuple[str, float | str, float]] = [
        ("import numpy", import_ms("import numpy"), rss_mb("import numpy")),
        ("import the device", *(f("import device_runtime.cli.on_device.join") for f in (import_ms, rss_mb))),
        (
            "import what works, and ONNX Runtime",
            *(
                f("import device_runtime.device.training.local_task, onnxruntime")
                for f in (import_ms, rss_mb)
            ),
        ),
    ]
    with tempfile.TemporaryDirectory() as folder:
        seconds, then, idle = joined(Path(folder))
    rows += [("a device, when it has joined", 1e3 * seconds, then), ("the same, idle", "", idle)]
    print(tabulate(rows, ("", "ms", "resident MB"), floatfmt=".0f"))
    if options.install:
        with tempfile.TemporaryDirectory() as folder:
            print()
            print(tabulate(installed_mb(Path(folder)), ("installed", "MB"), floatfmt=".1f"))


if __name__ == "__main__":
    main()
