"""`device-runtime demo`: the main job, end to end, on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tabulate import tabulate

from aggregator.errors import AggregatorError
from aggregator.plain import Plain, View, percent, size
from device_runtime.commands.options import count, positive
from strategies.registry import KINDS

from . import javascript
from .figures import Summary, kind_costs, parts, summarise
from .fleet import DEADLINE_S, DROPPED, FLEET, MIXED, SLOW, beside
from .plot import draw
from .runs import ALPHA, Policy, Run, Setting, perform, save

HELP = "Run eight pretended devices, a real broker and an aggregator here, on handwritten digits."
EXAMPLE = "device-runtime demo --seeds 3 --run-dir runs/three-seeds"
ERRORS = (AggregatorError,)

POLICIES = (Policy("mixed", MIXED), Policy("dropped", DROPPED))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=count, default=1, metavar="N", help="runs with seeds 0 to N-1")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument(
        "--deadline", type=positive, default=DEADLINE_S, metavar="S", help="seconds of a round"
    )
    parser.add_argument("--broker", choices=("auto", "mosquitto", "amqtt"), default="auto")
    parser.add_argument(
        "--javascript",
        type=count,
        default=0,
        metavar="N",
        help="so many devices more, of the browser's modules in Node, as fast as they are here",
    )
    parser.add_argument("--run-dir", type=Path, help="where it is kept (default: runs/demo-TIME)")


def run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    folder = options.run_dir or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    if folder.exists():
        raise AggregatorError(f"{folder} is there already: give another --run-dir, or remove it")
    fleet = beside(options.javascript)
    if options.javascript:
        javascript.command()
    _say_what_is_run(options, len(fleet))
    runs = []
    for seed in range(options.seeds):
        setting = Setting(seed, options.rounds, options.deadline, options.broker, fleet)
        for policy in POLICIES:
            print(f"\n== {policy.name}, seed {seed}", flush=True)
            runs.append(perform(policy, setting, folder / f"{policy.name}-{seed}", _view))
    save(runs, folder / "runs.jsonl")
    draw(runs, folder / "demo.png")
    _report(runs, folder)
    print(f"took {time.monotonic() - began:.0f} s; kept in {folder}/, picture in {folder}/demo.png")
    return 0


def _say_what_is_run(options: argparse.Namespace, devices: int) -> None:
    more = f"{devices - len(FLEET)} more are of the browser's modules, in Node, and pretend nothing.\n"
    print(
        f"{devices} device processes, handwritten digits divided by Dirichlet({ALPHA}), "
        f"{options.rounds} rounds of at most {options.deadline:g} s.\n"
        f"Each of {len(FLEET)} pretends to be a board or phone and is slowed to its speed, {SLOW:g} times "
        "over, so that the digits weigh as a real task would.\n"
        f"{more if options.javascript else ''}"
        "First every device sends the richest update that it can afford; then the same fleet at the same "
        "deadline with stragglers dropped."
    )


def _view(broker: str) -> View:
    if not sys.stdout.isatty():
        print(f"broker: {broker}", flush=True)
        return Plain(sys.stdout)
    from aggregator.view import Live

    return Live(broker)


def _report(runs: list[Run], folder: Path) -> None:
    mixed = [run for run in runs if run.policy == "mixed"]
    print("\nWho took part, and how (mixed, seed 0), and why it could not send a full update every time")
    rows = [
        (part.device, member.told, f"{part.rounds:.0%}", _kinds(part.kinds), _short(part.why))
        for member, part in zip(mixed[0].fleet, parts(mixed[0]), strict=True)
    ]
    print(tabulate(rows, ("device", "as", "rounds", "sent", "why"), disable_numparse=True))
    print("\nWhat each kind costs, per device and round (medians; bytes are whole MQTT packets)")
    costs = kind_costs([c for run in mixed for c in run.contributions], KINDS)
    table = [
        (
            c.kind,
            c.count,
            size(int(c.bytes_up)),
            size(int(c.bytes_down)),
            f"{c.train_time_s:.2f} s",
            f"{c.energy_j:.1f} J",
        )
        for c in costs
    ]
    print(tabulate(table, ("kind", "sent", "up", "down", "time", "energy (modelled)"), disable_numparse=True))
    print("\nThe same fleet, data and deadline")
    summaries = [summarise(policy.name, runs) for policy in POLICIES]
    headers = ("policy", "seeds", "accuracy", "rounds to 90%", "took part", "up", "down", "energy (modelled)")
    print(tabulate([_cells(summary) for summary in summaries], headers, disable_numparse=True))
    for seed in sorted({run.seed for run in runs}):
        both = [next(r for r in runs if (r.policy, r.seed) == (p.name, seed)) for p in POLICIES]
        print(f"  seed {seed}: " + ", ".join(f"{r.policy} {percent(r.rounds[-1].eval_acc)}" for r in both))
    gain = 100 * (summaries[0].eval_acc - summaries[1].eval_acc)
    extra = summaries[0].energy_j - summaries[1].energy_j
    print(f"Leaving no device behind is worth {gain:+.1f} points of accuracy, at {extra:+.0f} J (modelled).")


def _cells(summary: Summary) -> tuple[str, ...]:
    spread = f" ± {100 * summary.spread:.1f}" if summary.seeds > 1 else ""
    return (
        summary.policy,
        str(summary.seeds),
        percent(summary.eval_acc) + spread,
        f"{summary.rounds_to_90:.1f}",
        f"{summary.participation:.0%}",
        size(int(summary.bytes_up)),
        size(int(summary.bytes_down)),
        f"{summary.energy_j:.0f} J",
    )


def _kinds(kinds: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds) or "nothing"


def _short(why: str) -> str:
    """The first reason: why not the richest kind. What follows it says the same of the next ones."""
    ends = [at for kind in KINDS if (at := why.find(f"; {kind} ")) >= 0]
    return why[: min(ends, default=len(why))]
