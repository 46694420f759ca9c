"""A 64-bit ARM device without one: installed and put to work under qemu, against an aggregator outside.

    apt-get install qemu-user-static debootstrap mosquitto       # Debian's packages; debootstrap needs root
    .venv/bin/python benchmarks/emulated_aarch64.py FOLDER       # the first time about 10 minutes

1. `debootstrap` makes a root file system of Debian 12 for arm64 with its Python and pip; nothing runs in it.
2. `device-runtime bundle-wheels` downloads what the device installs, and takes the wheel of this checkout's
   last commit.
3. The emulated Python's pip installs them without a network.
4. The emulated device says what it can do (`profile`).
5. It masks updates, beside the same in the clear (`masking_device.py`).
6. It takes part in one round of every kind of update, alone, and so does the same version on this machine;
   aggregator and broker run here. It works in the process that qemu runs: one that this starts would be of
   no processor that the machine has. What was served after the round is compared, and the directions of
   zeroth-order updates.

ONNX Runtime is pinned to 1.23.2: newer ones crash at import in the emulator 7.2 (not on boards, as far as we
know). Exit code 1 where a round was not done, directions differ at all, or a model by more than 1e-4.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

from tabulate import tabulate

from benchmarks.boards import kinds, rounds, wheel
from benchmarks.boards.kinds import COMMAND, TRIALS, Trial
from benchmarks.boards.rounds import Done, Place

PYTHON = "3.11"
"""That of Debian 12."""
PIN = "onnxruntime==1.23.2"
PROCESSOR = "cortex-a72"
MOST = 1e-4
"""Of a tensor's largest value, by which a model may be off after a round."""
DIRECTIONS = """
import hashlib, platform
from device_runtime.strategies.directions import directions
words = b"".join(directions.direction(7, p, 0, 1_000_003).tobytes() for p in range(4))
print(platform.machine(), hashlib.sha256(words).hexdigest())
"""


class Emulated:
    """Debian for arm64 in a folder, with device-runtime installed."""

    def __init__(self, folder: Path) -> None:
        self.root, self.site = folder / "debian", folder / "site"
        self.python = (
            *("qemu-aarch64-static", "-cpu", PROCESSOR, "-L", str(self.root)),
            str(self.root / f"usr/bin/python{PYTHON}"),
        )
        self.environment = {"PYTHONPATH": str(self.site)}
        self.command = (*self.python, str(self.site / "bin" / "device-runtime"))

    def make(self, own: Path, house: Path) -> None:
        """What is there already is left as it is."""
        if not (self.root / "unpacked").exists():
            say("a root file system of Debian 12 for arm64")
            what = ("--foreign", "--arch=arm64", "--variant=minbase", "--include=python3,python3-pip")
            run("debootstrap", *what, "bookworm", self.root, quiet=True)
            for package in sorted((self.root / "var/cache/apt/archives").glob("*.deb")):
                run("dpkg-deb", "-x", package, self.root)
            (self.root / "unpacked").touch()
        if not self.site.exists():
            where = ("--platform", "linux-aarch64", "--python", PYTHON)
            run(COMMAND, "bundle-wheels", *where, "--wheel", own, "--pin", PIN, house)
            what = ("--no-index", "--no-compile", "--quiet", "--find-links", house, "--target", self.site)
            run(*self.python, "-m", "pip", "install", *what, "--root-user-action=ignore", "device-runtime")

    def output_of(self, *words: str) -> str:
        """What the emulated Python prints."""
        return output(*self.python, *words, environment=self.environment)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*words: object, quiet: bool = False) -> None:
    if not quiet:
        print("$", *words, flush=True)
    subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL if quiet else None)


def output(*words: object, environment: dict[str, str] | None = None) -> str:
    return subprocess.check_output(
        [str(word) for word in words], text=True, env={**os.environ, **(environment or {})}
    )


def compared(trial: Trial, emulated: Done, here: Done) -> tuple[object, ...]:
    """A row of the table."""
    if not (emulated.accepted and here.accepted):
        who = "the emulated device" if not emulated.accepted else "the device here"
        return (trial.name, trial.bundle, f"{who} had no update accepted", "", "", "", "")
    off = rounds.off_by(emulated.served, here.served)
    sent = emulated.sent
    return (
        trial.name,
        trial.bundle,
        "accepted",
        f"{sent['train_time_s']:.2f}",
        f"{here.sent['train_time_s']:.2f}",
        sent["bytes_up"],
        "0 (same bits)" if off == 0 else f"{off:.1e}",
    )


HEADERS = ("kind", "network", "aarch64", "s there", "s here", "bytes up", "model off by")


def all_rounds(
    places: tuple[Place, Place], folder: Path, bundles: Path
) -> Iterator[tuple[Trial, Done, Done]]:
    """Each kind on the emulated device, then here."""
    for number, trial in enumerate(TRIALS):
        homes = [folder / f"{number:02d}-{where}" for where in ("there", "here")]
        emulated, here = (
            rounds.one_round(trial, place, home, bundles) for place, home in zip(places, homes, strict=True)
        )
        yield trial, emulated, here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="what is made is kept there, and not made again")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    own, house = wheel.built(folder / "wheel"), folder / "wheels"
    emulated = Emulated(folder)
    emulated.make(own, house)
    native = wheel.environment(folder / "native", own)
    kinds.export(folder / "bundles")
    say("profile")
    print(emulated.output_of(*emulated.command[len(emulated.python) :], "profile"))
    say("directions: four of 1,000,003 elements")
    program = folder / "directions.py"
    program.write_text(DIRECTIONS)
    hashes = [emulated.output_of(str(program)), output(native / "python", program)]
    print("".join(hashes))
    say("a masked update")
    print(emulated.output_of(str(Path(__file__).parent / "masking_device.py"), "--repeats", "5"))
    say("one round of every kind")
    data, passed, table = folder / "bundles" / "data.npz", True, []
    places = (
        Place(emulated.command, data, emulated.environment, ("--in-process",)),
        Place([str(native / "device-runtime")], data),
    )
    with tempfile.TemporaryDirectory() as runs:
        for trial, far, here in all_rounds(places, Path(runs), folder / "bundles"):
            table.append(compared(trial, far, here))
            print(f"{trial.name}: {rounds.last_words(far)}", flush=True)
            passed &= far.accepted and here.accepted and rounds.off_by(far.served, here.served) <= MOST
    print(tabulate(table, HEADERS, disable_numparse=True))
    return int(not passed or len({line.split()[1] for line in hashes}) > 1)


if __name__ == "__main__":
    sys.exit(main())
