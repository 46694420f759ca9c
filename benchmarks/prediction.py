"""Predicted against measured: time and peak memory of each kind of update, on less and less of one core.

    sudo .venv/bin/python benchmarks/prediction.py                        # all, about an hour
    sudo .venv/bin/python benchmarks/prediction.py --quotas 100,10 --kinds full,class-means --repeats 1
    sudo .venv/bin/python benchmarks/prediction.py --caps 96,104,112      # memory: what is let through
    .venv/bin/python benchmarks/prediction.py --read a.json b.json --plot prediction.png

Two bundles: the shipped one for digits and WRN-16-1 at 32x32 (exported first, minutes; --larger gives one).
Each run is a fresh process in a control group (version 1) of its own, before it imports anything: it joins as
a device does, and does some rounds of one kind. What it measured of itself is kept, as on a device, for the
runs of the same model, quota and repeat. `first` is the error of the first round's prediction, `then` that
of the last, after those between have corrected it. Errors are |predicted - measured| / measured, medians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

import msgspec

from benchmarks.control_groups import group
from benchmarks.predicting import children, device, tasks
from benchmarks.predicting.device import Order, Seen
from benchmarks.predicting.errors import Cell, fits, line, plot, table

LONGEST_S = 1800.0


@dataclass(frozen=True)
class Place:
    """Where runs of one model and quota are: its bundle, samples, and the group's limits."""

    model: str
    bundle: Path
    data: Path
    quota: float
    cap_mb: float


def runs(options: argparse.Namespace, folder: Path) -> Iterator[Cell]:
    """Every kind once in every place, then again."""
    models = tasks.bundles(folder, options.larger)
    data = {
        name: tasks.samples(bundle, options.samples, folder / f"{name}.npz")
        for name, bundle in models.items()
    }
    places = [
        Place(name, bundle, data[name], quota / 100, cap)
        for name, bundle in models.items()
        if options.models in ("", name)
        for quota in _numbers(options.quotas)
        for cap in _numbers(options.caps)
    ]
    for repeat in range(options.repeats):
        for place in places:
            with TemporaryDirectory(dir=folder) as state:
                for name, kind in tasks.kinds(place.bundle, options.kinds).items():
                    order = Order(str(place.bundle), str(place.data), state, kind, options.rounds)
                    rounds, died = _done(place, order)
                    yield Cell(place.model, place.quota, place.cap_mb, name, repeat, rounds, died)


def _done(place: Place, order: Order) -> tuple[tuple[Seen, ...], str]:
    with group(round(1e6 * place.cap_mb), place.quota) as control:
        output, died = children.output(control, device.__name__, msgspec.msgpack.encode(order), LONGEST_S)
    return tuple(msgspec.msgpack.decode(output, type=list[Seen])) if output else (), died


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--quotas", default="100,50,25,10", help="of one core, in percent (default: 100,50,25,10)")
    add("--caps", default="512", metavar="MB,..", help="memory of the group (default: 512)")
    add("--kinds", default="", help=f"with commas (default: all): {', '.join(tasks.KINDS)}")
    add("--models", default="", help="one of the two (default: both)")
    add("--samples", type=int, default=200, help="of each device (default: 200)")
    add("--rounds", type=int, default=3, help="in each process (default: 3)")
    add("--repeats", type=int, default=3, help="of everything (default: 3)")
    add("--larger", type=Path, metavar="BUNDLE", help="in place of the WRN-16-1 that is exported")
    add("--read", type=Path, nargs="+", default=[], metavar="FILE", help="what --json wrote; nothing is run")
    add("--json", type=Path, metavar="FILE", help="write every round")
    add("--plot", type=Path, metavar="FILE", help="draw predicted against measured, .png or .svg")
    options = parser.parse_args()
    cells = [
        cell for path in options.read for cell in msgspec.json.decode(path.read_bytes(), type=list[Cell])
    ]
    if not options.read:
        with TemporaryDirectory() as folder:
            for cell in runs(options, Path(folder)):
                cells.append(cell)
                print(line(cell), file=sys.stderr, flush=True)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(cells))
    if options.plot:
        plot(cells, options.plot)
    print(table(cells), *fits(cells), sep="\n")


if __name__ == "__main__":
    main()
