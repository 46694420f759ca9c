"""`device-runtime demo`: runs emulated devices, a broker and an aggregator on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent import futures
from pathlib import Path

from tabulate import tabulate

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.views.console_log import ConsoleLog, ConsoleView, percent, size
from device_runtime.cli.options import count, positive
from device_runtime.device.engine.profiling import BATCH
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.compare.running import interruptible
from device_runtime.simulation.demo import calibration, processes
from device_runtime.simulation.demo.figures import Summary, kind_costs, parts, recall, summarise
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
from device_runtime.simulation.demo.worth import device_worths
from device_runtime.strategies.kinds.registry import KINDS

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
    _report(runs)
    print("\nsimulating the mixed rounds without one device, and without another ..", flush=True)
    _report_worths(settings)
    print(f"took {time.monotonic() - began:.0f} s; kept in {folder}/, picture in {folder}/demo.png")
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
        f"{SLOW:g} times over, so that the digits weigh as a real task would: the weak ones have no time for "
        "a full update.\n"
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


def _report(runs: list[DemoRun]) -> None:
    mixed = [run for run in runs if run.policy == "mixed"]
    print("\nWho took part, and how (mixed, seed 0), and why it could not send a full update every time")
    rows = [
        (part.device, member.label, f"{part.rounds:.0%}", _kinds(part.kinds), _short(part.why))
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
    columns = ("policy", "seeds", "accuracy", "took part", "up", "down", "energy (modelled)")
    print(tabulate([_cells(summary) for summary in summaries], columns, disable_numparse=True))
    for seed in sorted({run.seed for run in runs}):
        both = [next(r for r in runs if (r.policy, r.seed) == (p.name, seed)) for p in POLICIES]
        print(f"  seed {seed}: " + ", ".join(f"{r.policy} {percent(r.rounds[-1].eval_acc)}" for r in both))
    gain = 100 * (summaries[0].eval_acc - summaries[1].eval_acc)
    extra = summaries[0].energy_j - summaries[1].energy_j
    print("\nHow many test samples of a digit are recognised, by who holds its training samples")
    headers = ("digits", "held by", "mixed", "dropped", "difference")
    print(tabulate(_recalls(runs), headers, disable_numparse=True))
    print(f"Leaving no device behind is worth {gain:+.1f} points of accuracy, at {extra:+.0f} J (modelled).")


def _recalls(runs: list[DemoRun]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for of in holders(runs[0].fleet):
        mixed, dropped = (recall(policy.name, runs, of.digits) for policy in POLICIES)
        who = of.name + (" alone" if len(of.members) == 1 else "")
        both = (percent(mixed), percent(dropped), f"{100 * (mixed - dropped):+.1f}")
        rows.append((_listed(of.digits), who, *both))
    return rows


def _report_worths(settings: list[DemoSetting]) -> None:
    try:
        whole, worths = device_worths(POLICIES[0], settings)
    except futures.TimeoutError:  # from Python 3.11 on the built-in one
        print("given up: this machine is too busy now")
        return
    print("What a device's updates are worth: the same mixed rounds without it, in points (simulated)")
    shared, *_ = holders(settings[0].fleet)
    rows = [
        (
            f"{worth.device} (as any of {shared.name})" if worth.device in shared.members else worth.device,
            _listed(worth.digits),
            f"{-100 * worth.accuracy:+.1f}",
            f"{-100 * worth.recall:+.1f}",
        )
        for worth in worths
    ]
    headers = ("without", "its digits", "accuracy", "recall of its digits")
    print(tabulate(rows, headers, disable_numparse=True))
    print(f"(simulated with all devices: {percent(whole)})")


def _cells(summary: Summary) -> tuple[str, ...]:
    spread = f" ± {100 * summary.spread:.1f}" if summary.seeds > 1 else ""
    return (
        summary.policy,
        str(summary.seeds),
        percent(summary.eval_acc) + spread,
        f"{summary.participation:.0%}",
        size(int(summary.bytes_up)),
        size(int(summary.bytes_down)),
        f"{summary.energy_j:.0f} J",
    )


def _kinds(kinds: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds) or "nothing"


def _short(why: str) -> str:
    """The first reason, which is why the richest kind did not fit; those of the next kinds follow it."""
    ends = [at for kind in KINDS if (at := why.find(f"; {kind} ")) >= 0]
    return why[: min(ends, default=len(why))]
