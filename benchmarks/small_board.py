"""A board of 512 MB: every kind of update of SqueezeNet on images of 128x128, in a control group.

    sudo .venv/bin/python benchmarks/small_board.py FOLDER                  # the network is exported there
    sudo .venv/bin/python benchmarks/small_board.py FOLDER --memory 300,256 --kinds none
    sudo .venv/bin/python benchmarks/small_board.py FOLDER --memory 160,128,96 --kinds none --networks digits

The device is the real `join`, of a device install of the last commit, in a group of its own of so many MiB
without swap; aggregator and broker are outside of it. Samples are 60 images of CIFAR-10, enlarged; training
is one epoch. `predicted` is the peak before anything is done, from a profile taken in the same group; `in the
round` the most that the device was seen to hold during its work, as it told the aggregator; `in all` the most
that it and its children held, measuring itself included.
At the end a round that offers the usual kinds, and one that needs more, goes to boards of less and less
memory, with each of --networks: WRN-16-1 has images of 32x32, the shipped bundle digits of 8x8. Work that
does not fit is to be refused or stepped down from, and nothing killed. Exit code 1 where a kind was not done
on 512 MB, or where the kernel killed a process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

import numpy as np
from sklearn.datasets import load_digits
from tabulate import tabulate

from benchmarks import ncm_cifar10
from benchmarks.boards import rounds, wheel
from benchmarks.boards.kinds import COMMAND, Trial
from benchmarks.boards.rounds import Done, Place
from benchmarks.control_groups import group
from benchmarks.predicting import tasks
from device_runtime.cli.research import export as export_command
from device_runtime.models.bundles.bundle import shipped_folder

MIB = 2**20
BOARD = 512
SAMPLES, NOBODYS = 60, 20
ONE = {"epochs": 1}
NETWORK, NARROW, TAUGHT, OWN = "squeezenet", "half", "taught", "own"
WIDE, DIGITS = "wrn-16-1", "digits"
MAPS = {"--features": ("low", "mid", "up"), "--objective": ("train", "attention", "prototype", "distil")}
EXPORTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    NETWORK: {"--tunable": ("all", "mid", "head", "bias", "lora", "sparse")},
    NARROW: {"--tunable": ("all",), "--set": ("width=0.5",)},
    TAUGHT: {"--tunable": ("all", "mid"), **MAPS, "--objective": (*MAPS["--objective"], "above-low")},
    OWN: {"--tunable": ("all",), **MAPS},
}
"""By name: options of `export`, each with its values. All but the narrow one have the weights of ImageNet."""
TRIALS = (
    Trial("full", NETWORK, ONE),
    Trial("full+few-shot", NETWORK, ONE),
    Trial("sparse", NETWORK),
    *(Trial("peft", NETWORK, {**ONE, "tunable": tunable}) for tunable in ("lora", "bias", "head")),
    Trial("entropy-subset", NETWORK, ONE),
    Trial("few-shot", NETWORK),
    Trial("local-zeroth-order", NETWORK, {"steps": 2, "lr": 1e-6}),
    Trial("zeroth-order", NETWORK, {"lr": 1e-6}),
    Trial("class-means", NETWORK),
    Trial("width-slice", OWN, {**ONE, "members": [NARROW]}, (NARROW,)),
    Trial("representatives", TAUGHT, {**ONE, "lr": 0.001, "server_epochs": 1}),
    Trial("attention-transfer", TAUGHT, {**ONE, "members": [OWN], "server_epochs": 1}, (OWN,)),
    Trial("prototypes", TAUGHT, {**ONE, "members": [OWN], "server_epochs": 1}, (OWN,)),
)
LESS = ("full", "entropy-subset", "few-shot", "zeroth-order", "class-means")
SAMPLES_OF = {NETWORK: "data", WIDE: "small", DIGITS: "digits-data"}
"""Of the networks that are tried in less and less memory."""
PREDICT = """
import argparse, json, sys
from pathlib import Path
from device_runtime.models import data
from device_runtime.device.selection.choose import MAIN, priced
from device_runtime.cli.on_device import profile
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload
kind, settings, samples, *bundles = json.loads(sys.argv[1])
parser = argparse.ArgumentParser()
profile.add_arguments(parser)
options = parser.parse_args(["--bundle", bundles[0]])
opened = [Bundle.open(find_bundle(one)) for one in bundles]
here = profile.measure_profile(opened[0], options)
labels = len(opened[0].manifest.labels)
counts = data.load(Path(samples), opened[0].manifest).class_counts(labels)
names = [MAIN, *(one.manifest.name for one in opened[1:])]
loads = {name: workload(one.manifest, counts) for name, one in zip(names, opened)}
print(priced(registry.make(kind, settings), loads, here).peak_memory_bytes)
"""


def prepare(folder: Path) -> None:
    """The networks with the weights of ImageNet and a new head, samples, and the installation; made once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in EXPORTS.items():
        if not (folder / name).exists():
            export(folder / name, options)
    wheel.environment(folder / "device", wheel.built(folder / "wheel"))
    if not (folder / WIDE).exists():
        parser = argparse.ArgumentParser()
        export_command.add_arguments(parser)
        export_command.run(parser.parse_args([*tasks.EXPORT.split(), "--out", str(folder / WIDE)]))
    shutil.copytree(shipped_folder("digits-wrn-10-1"), folder / DIGITS, dirs_exist_ok=True)
    photos = ncm_cifar10.read("train", SAMPLES + NOBODYS)
    x = np.concatenate(list(photos.parts()))
    for name, which in (("data", slice(SAMPLES)), ("generic", slice(SAMPLES, None))):
        np.savez(folder / f"{name}.npz", x=x[which], y=photos.y[which])
    small = replace(photos, files=photos.files[:SAMPLES], size=32)
    np.savez(folder / "small.npz", x=np.concatenate(list(small.parts())), y=photos.y[:SAMPLES])
    digits = load_digits()
    x = digits.images[:SAMPLES].astype(np.uint8)
    np.savez(folder / "digits-data.npz", x=x, y=digits.target[:SAMPLES])


def export(out: Path, options: Mapping[str, Sequence[str]]) -> None:
    side, mean, std = ncm_cifar10.SIZE, "0.485,0.456,0.406", "0.229,0.224,0.225"
    command = [COMMAND, "export", "squeezenet", "--set", "version=1.0", "--set", "classes=10"]
    command += ["--input", f"3,{side},{side}", "--scale", str(1 / 255), "--mean", mean, "--std", std]
    command += ["--labels", ",".join("0123456789"), "--out", str(out)]
    if out.name != NARROW:
        command += ["--new-head", "--weights", str(ncm_cifar10.WEIGHTS)]
    words = (word for option, values in options.items() for value in values for word in (option, value))
    subprocess.run([*command, *words], check=True)


def predicted(trial: Trial, size: int, folder: Path) -> int:
    """Peak bytes, by a profile taken on the board."""
    bundles = [str(folder / name) for name in (trial.bundle, *trial.family)]
    order = json.dumps([trial.kind, trial.settings, str(folder / "data.npz"), *bundles])
    with group(size * MIB) as board:
        command = [*board.enter, str(folder / "device" / "bin" / "python"), "-c", PREDICT, order]
        return int(subprocess.check_output(command, cwd="/"))


def on_board(trial: Trial, size: int, folder: Path) -> tuple[Done, int]:
    """What came of it on a board of `size` MiB, and how many processes were killed."""
    home = Path(tempfile.mkdtemp(dir=folder))
    with group(size * MIB) as board:
        data = folder / f"{SAMPLES_OF.get(trial.bundle, 'data')}.npz"
        place = Place((*board.enter, str(folder / "device" / "bin" / "device-runtime")), data)
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
    parser.add_argument("--networks", default=NETWORK, help="of --memory: squeezenet, wrn-16-1, digits")
    options = parser.parse_args()
    folder = options.folder.absolute()
    prepare(folder)
    trials = [t for t in TRIALS if options.kinds is None or t.kind in options.kinds.split(",")]
    rows, passed = [], True
    for trial in trials:
        peak = predicted(trial, BOARD, folder)
        done, killed = on_board(trial, BOARD, folder)
        passed &= done.accepted and not killed
        status = "accepted" if done.accepted else rounds.last_words(done)
        in_round = f"{done.sent['peak_memory_bytes'] / 1e6:.0f}" if done.sent else ""
        rows.append((trial.name, f"{peak / 1e6:.0f}", in_round, f"{done.peak_bytes / 1e6:.0f}", status))
        print(*rows[-1], sep="  ", flush=True)
    if rows:
        headers = ("kind", "predicted MB", "in the round MB", "in all MB", f"on {BOARD} MiB")
        print(tabulate(rows, headers, disable_numparse=True))
    rows = []
    for network in options.networks.split(","):
        usual = Trial("full+few-shot", network, ONE, more=LESS)
        for size in [int(size_text) for size_text in options.memory.split(",")]:
            done, killed = on_board(usual, size, folder)
            passed &= not killed
            peak_mb, sent = f"{done.peak_bytes / 1e6:.0f}", done.sent.get("kind", "nothing")
            rows.append((network, size, peak_mb, sent, rounds.why(done)))
            print(*rows[-1], sep="  ", flush=True)
    print(tabulate(rows, ("network", "MiB", "held MB", "sent", "why"), maxcolwidths=[None] * 4 + [80]))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
