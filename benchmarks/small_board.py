"""A board of 512 MB: every kind of update of SqueezeNet on images of 128x128, in a control group.

    sudo .venv/bin/python benchmarks/small_board.py FOLDER                  # the network is exported there
    sudo .venv/bin/python benchmarks/small_board.py FOLDER --memory 512,300,256 --kinds none

The device is the real `join`, of a device install of the last commit, in a group of its own of so many MiB
without swap; aggregator and broker are outside of it. Samples are 60 images of CIFAR-10, enlarged; training
is one epoch. `predicted` is the peak before anything is done, from a profile taken in the same group, and
`measured` the most that the process held.
At the end a round that offers the usual kinds, and one that needs more, goes to boards of less and less
memory: work that does not fit is to be refused or stepped down from, and nothing killed. Exit code 1 where a
kind was not done on 512 MB, or where the kernel killed a process.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # beside this lies simulation.py, which is not the package

import numpy as np
from tabulate import tabulate

from benchmarks import ncm_cifar10
from benchmarks.boards import rounds, wheel
from benchmarks.boards.kinds import COMMAND, Trial
from benchmarks.boards.rounds import Done, Place
from benchmarks.control_groups import group

MIB = 2**20
BOARD = 512
SAMPLES = 60
ONE = {"epochs": 1}
NETWORK = "squeezenet"
SETS = ("all", "mid", "head", "bias", "lora", "sparse")
TRIALS = (
    Trial("full", NETWORK, ONE),
    Trial("full+few-shot", NETWORK, ONE),
    Trial("sparse", NETWORK),
    *(Trial("peft", NETWORK, {**ONE, "tunable": one}) for one in ("lora", "bias", "head")),
    Trial("entropy-subset", NETWORK, ONE),
    Trial("few-shot", NETWORK),
    Trial("local-zeroth-order", NETWORK, {"steps": 2, "lr": 1e-6}),
    Trial("zeroth-order", NETWORK, {"lr": 1e-6}),
    Trial("class-means", NETWORK),
)
LESS = ("full", "entropy-subset", "few-shot", "zeroth-order", "class-means")
USUAL = Trial("full+few-shot", NETWORK, ONE, more=LESS)
PREDICT = """
import argparse, json, sys
from device_runtime.commands import profile
from models.bundle import Bundle, find
from device_runtime import data
from pathlib import Path
from strategies import registry
from strategies.workload import workload
bundle, samples, kinds = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
parser = argparse.ArgumentParser()
profile.add_arguments(parser)
options = parser.parse_args(["--bundle", bundle])
opened = Bundle.open(find(bundle))
here = profile.measured(opened, options)
local = data.load(Path(samples), opened.manifest)
load = workload(opened.manifest, local.class_counts(len(opened.manifest.labels)))
costs = [registry.make(kind, settings).cost(load, here) for kind, settings in kinds]
print(json.dumps([cost.peak_memory_bytes for cost in costs]))
"""


def prepare(folder: Path) -> None:
    """The network with the weights of ImageNet and a new head, samples, and the installation; made once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / NETWORK).exists():
        export(folder / NETWORK)
    wheel.environment(folder / "device", wheel.built(folder / "wheel"))
    photos = ncm_cifar10.read("train", SAMPLES)
    np.savez(folder / "data.npz", x=np.concatenate(list(photos.parts())), y=photos.y)


def export(out: Path) -> None:
    side, mean, std = ncm_cifar10.SIZE, "0.485,0.456,0.406", "0.229,0.224,0.225"
    command = [COMMAND, "export", "squeezenet", "--set", "version=1.0", "--set", "classes=10", "--new-head"]
    command += ["--weights", str(ncm_cifar10.WEIGHTS), "--input", f"3,{side},{side}", "--scale", str(1 / 255)]
    command += ["--mean", mean, "--std", std, "--labels", ",".join("0123456789"), "--out", str(out)]
    subprocess.run([*command, *(word for one in SETS for word in ("--tunable", one))], check=True)


def predicted(trials: Sequence[Trial], folder: Path) -> list[int]:
    """Peak bytes of each, by a profile taken on the board."""
    kinds = json.dumps([(trial.kind, trial.settings) for trial in trials])
    with group(BOARD * MIB) as board:
        python = folder / "device" / "bin" / "python"
        command = [*board.enter, python, "-c", PREDICT, folder / NETWORK, folder / "data.npz", kinds]
        return list(json.loads(subprocess.check_output([str(word) for word in command], cwd="/")))


def on_board(trial: Trial, size: int, folder: Path) -> tuple[Done, int]:
    """What came of it on a board of `size` MiB, and how many processes were killed."""
    home = Path(tempfile.mkdtemp(dir=folder))
    with group(size * MIB) as board:
        place = Place((*board.enter, str(folder / "device" / "bin" / "device-runtime")), folder / "data.npz")
        done = rounds.one_round(trial, place, home / "round", folder)
        killed = board.killed
    shutil.rmtree(home)
    return done, killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="the network is kept there")
    parser.add_argument("--kinds", help="which, with commas (default: all; none)")
    parser.add_argument(
        "--memory", default="256,160,120,96", help="MiB of smaller boards (default: %(default)s)"
    )
    options = parser.parse_args()
    folder = options.folder.absolute()
    prepare(folder)
    trials = [t for t in TRIALS if options.kinds is None or t.kind in options.kinds.split(",")]
    rows, passed = [], True
    for trial, peak in zip(trials, predicted(trials, folder) if trials else (), strict=True):
        done, killed = on_board(trial, BOARD, folder)
        passed &= done.accepted and not killed
        said = "accepted" if done.accepted else rounds.told(done)
        rows.append((trial.name, f"{peak / 1e6:.0f}", f"{done.peak_bytes / 1e6:.0f}", said))
        print(*rows[-1], sep="  ", flush=True)
    if rows:
        print(
            tabulate(rows, ("kind", "predicted MB", "measured MB", f"on {BOARD} MiB"), disable_numparse=True)
        )
    rows = []
    for size in [int(one) for one in options.memory.split(",")]:
        done, killed = on_board(USUAL, size, folder)
        passed &= not killed
        rows.append(
            (size, f"{done.peak_bytes / 1e6:.0f}", done.sent.get("kind", "nothing"), rounds.why(done))
        )
        print(*rows[-1], sep="  ", flush=True)
    print(tabulate(rows, ("MiB", "held MB", "sent", "why"), maxcolwidths=[None, None, None, 80]))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
