"""`device-runtime demo`: runs emulated devices, a broker and an aggregator on this machine."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

from tabulate import tabulate

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.views.console_log import ConsoleLog, ConsoleView, percent
from device_runtime.cli.options import count, positive
from device_runtime.device.engine.profiling import BATCH
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.compare.running import interruptible
from device_runtime.simulation.demo import calibration, processes
from device_runtime.simulation.demo.fleet import (
    DEADLINE_S,
    DROPPED,
    EPOCHS,
    FLEET,
    MIXED,
    SAMPLES,
    SLOW,
    DemoDevice,
    holders,
    with_javascript,
)
from device_runtime.simulation.demo.plot import draw
from device_runtime.simulation.demo.runs import BUNDLE, DemoPolicy, DemoRun, DemoSetting, perform, save

ERRORS = (AggregatorError,)

POLICIES = (DemoPolicy("mixed", MIXED), DemoPolicy("dropped", DROPPED))
ROUNDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds", type=count, default=1, metavar="N", help="Run with seeds 0 to N-1 (default: 1)."
    )
    parser.add_argument(
        "--rounds", type=count, default=ROUNDS, help=f"Run this many rounds (default: {ROUNDS})."
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        metavar="S",
        help=f"End a round after this many seconds (default: {DEADLINE_S:g}; more on a busy machine).",
    )
    parser.add_argument(
        "--broker",
        choices=("auto", "mosquitto", "amqtt"),
        default="auto",
        help="Start this broker (default: auto).",
    )
    parser.add_argument(
        "--javascript",
        type=count,
        default=0,
        metavar="N",
        help="Add this many devices of the browser's modules in Node, at the speed of this machine.",
    )
    parser.add_argument(
        "--run-dir", type=Path, help="Keep the runs in this folder (default: runs/demo-TIME)."
    )


def run(options: argparse.Namespace) -> int:
    """Do all runs. SIGTERM and SIGHUP end them as Ctrl-C does, with their devices and broker."""
    with interruptible():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    folder = options.run_dir or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    if folder.exists():
        raise AggregatorError(f"{folder} is there already: give another --run-dir, or remove it")
    fleet = with_javascript(options.javascript)
    if options.javascript:
        processes.node_command()
    scale = 1.0 if options.deadline else _scale()
    deadline_s = options.deadline or DEADLINE_S * scale
    _say_what_is_run(options, fleet, deadline_s, scale)
    settings = [
        DemoSetting(seed, options.rounds, deadline_s, options.broker, fleet, scale)
        for seed in range(options.seeds)
    ]
    runs = []
    for setting in settings:
        for policy in POLICIES:
            print(f"\n== {policy.name}, seed {setting.seed}", flush=True)
            runs.append(perform(policy, setting, folder / f"{policy.name}-{setting.seed}", _view))
    save(runs, folder / "runs.jsonl")
    draw(runs, folder / "demo.png")
    _report(runs, scale)
    print(f"took {time.monotonic() - began:.0f} s; picture in {folder}/demo.png")
    print(f"why each device sent what it did: {folder}/mixed-0/contributions.csv")
    return 0


def _scale() -> float:
    """The factor by which the emulated boards must be slower on this machine (see `calibration`)."""
    print("measuring this machine ..", flush=True)
    bundle = Bundle.open(bundles.find_bundle(BUNDLE))
    demo_round = calibration.DemoRound(DEADLINE_S, SAMPLES * EPOCHS / BATCH)
    return calibration.scale(bundle, [(member.profile, SLOW) for member in FLEET], demo_round)


def _say_what_is_run(
    options: argparse.Namespace, fleet: tuple[DemoDevice, ...], deadline_s: float, scale: float
) -> None:
    shared, *alone = holders(fleet)
    own = ", ".join(f"{device.name} every {_listed(device.digits)}" for device in alone)
    busy = (
        f"This machine is too slow or too busy for that now: they pretend to be {scale:g} times slower "
        f"still, and rounds take {deadline_s:g} s, not {DEADLINE_S:g}. What each can send is the same.\n"
    )
    more = f"{len(fleet) - len(FLEET)} more are of the browser's modules, in Node, and pretend nothing.\n"
    print(
        "Weak devices hold handwritten digits that nobody else has: "
        f"{own}. The others share {_listed(shared.digits)}.\n"
        f"{len(fleet)} device processes, {options.rounds} rounds of at most {deadline_s:.3g} s. "
        f"Each of {len(FLEET)} pretends to be a board or phone and is slowed to its speed,\n"
        f"{SLOW:g} times over, so that the digits weigh as a real task would: the weak ones lack the time or "
        "the link for a full update.\n"
        f"{busy if scale > 1 else ''}"
        f"{more if options.javascript else ''}"
        "First every device sends the richest update that it can afford; then the same fleet at the same "
        "deadline with stragglers dropped."
    )


def _listed(digits: tuple[int, ...]) -> str:
    """The digits in words: "6", "8 and 9", "0 to 5"."""
    if len(digits) > 2 and digits[-1] - digits[0] == len(digits) - 1:
        return f"{digits[0]} to {digits[-1]}"
    return " and ".join(str(digit) for digit in digits)


def _view(broker: str) -> ConsoleView:
    if not sys.stdout.isatty():
        print(f"broker: {broker}", flush=True)
        return ConsoleLog(sys.stdout)
    from device_runtime.aggregator.views.terminal import TerminalView

    return TerminalView(broker)


def _report(runs: list[DemoRun], scale: float = 1.0) -> None:
    """Prints what devices sent, and the recall of digits by who holds them, mixed and dropped.

    Energy is that of boards that are not slower by `scale`.
    """
    print("\nWhat each device chose of the same offer, and why no more")
    print(tabulate(_choices([run for run in runs if run.policy == "mixed"]), CHOICE, disable_numparse=True))
    print("\nHow many test samples of a digit are recognised, by who holds its training samples")
    by_policy = [[run for run in runs if run.policy == policy.name] for policy in POLICIES]
    rows: list[tuple[str, ...]] = []
    for of in holders(runs[0].fleet):
        who = of.name + (" alone" if len(of.members) == 1 else "")
        mixed, dropped = (mean(run.recall(of.digits) for run in own) for own in by_policy)
        rows.append((_listed(of.digits), who, percent(mixed), percent(dropped), _points(mixed, dropped)))
    accuracies = [[run.rounds[-1].eval_acc for run in own] for own in by_policy]
    spreads = [f" ± {100 * stdev(seeds):.1f}" if len(seeds) > 1 else "" for seeds in accuracies]
    mixed, dropped = map(mean, accuracies)
    gain = _points(mixed, dropped)
    rows.append(("all", "all", percent(mixed) + spreads[0], percent(dropped) + spreads[1], gain))
    headers = ("digits", "held by", *(policy.name for policy in POLICIES), "difference")
    print(tabulate(rows, headers, disable_numparse=True))
    energies = [mean(sum(r.energy_j for r in run.rounds) for run in own) for own in by_policy]
    cost = f"{(energies[0] - energies[1]) / scale:+.0f} J (modelled)"
    print(f"Leaving no device behind is worth {gain} points of accuracy, at {cost}.")


MOSTLY = re.compile(r"needs .* s and has .* s \(mostly (.*)\)")
CHOICE = ("device", "emulates", "limited to", "sent", "because a full update")


def _choices(runs: list[DemoRun]) -> list[tuple[str, ...]]:
    """A row for each device: what it sent how often, and why no full update."""
    rows: list[tuple[str, ...]] = []
    for device in runs[0].fleet:
        own = [c for run in runs for c in run.contributions if c.device == device.name]
        sent = Counter(c.kind for c in own).most_common()
        why = next((c.why for c in reversed(own) if c.why and c.kind == sent[0][0]), "")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sent) or "nothing"
        reason = why.split("; ")[0].removeprefix("full ")
        if too_long := MOSTLY.fullmatch(reason):
            reason = f"takes too long, mostly {too_long[1]}"
        rows.append((device.name, device.label, device.limits, kinds, reason or ("fits" if own else "")))
    return rows


def _points(share: float, other: float) -> str:
    return f"{100 * (share - other):+.1f}"
