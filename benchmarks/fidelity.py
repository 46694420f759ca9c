"""Fast virtual time beside the wire: the same fleet by predictions, and by real agents and messages.

    .venv/bin/python benchmarks/fidelity.py

Digits, eight boards, one behind a narrow uplink, five kinds, three rounds, without latency and with 50 ms.
Medians of each kind in its last round; `same` is how many of all decisions (round, device, kind) agree,
`apart` the largest difference of a weight at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from tabulate import tabulate

from device_runtime.aggregator.machine.run_events import RoundOpened
from device_runtime.simulation.demo.fleet import MIXED
from device_runtime.simulation.history.records import AskRecord, NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as scenarios
from tests.simulation.wire.run import WireCourse, perform

SEED, ROUNDS = 5, 3
SHARES = {"phone-high": 0.25, "pi-5": 0.25, "jetson-nano": 0.25, "pi-zero-2w": 0.125}
KINDS = [{"name": k.name, "settings": dict(k.settings), "from_round": k.from_round} for k in MIXED]


class Noted(NullObserver):
    """Keeps the asks that counted."""

    def __init__(self) -> None:
        self.asks: list[AskRecord] = []

    def asked(self, ask: AskRecord) -> None:
        if ask.fate == "counted":
            self.asks.append(ask)


def scenario(latency_s: float) -> scenarios.Scenario:
    link = {"down_bytes_per_s": 2e7, "latency_s": latency_s}
    groups = {
        f"{number}-{name}": {
            "profile": name,
            "share": share,
            "link": link,
        }  # drawn in the order of these names
        for number, (name, share) in enumerate(SHARES.items())
    }
    groups["buoy"] = {"profile": "jetson-nano", "share": 0.125, "link": {**link, "up_bytes_per_s": 500.0}}
    return scenarios.load(
        "uniform",
        {
            "devices": 8,
            "slow": 100.0,
            "eval_every": 0,
            "fleet": {"name": "boards", "groups": groups},
            "data": {"samples_per_client": 35},
            "task": {"rounds": ROUNDS, "round_deadline_s": 3.0, "kinds": KINDS},
        },
    )


def compare(latency_s: float) -> None:
    prepared, noted = prepare(scenario(latency_s), SEED), Noted()
    served = simulate(prepared, observer=noted)
    wire = perform(prepared, WireCourse(SEED, until_s=10_000))
    opened = {event.round: at for at, event in wire.events if isinstance(event, RoundOpened)}
    records = {(r.round, r.device): (at - opened[r.round], r) for at, r in wire.contributions}
    same = sum(
        records.get((a.round, a.device), (0, None))[1] is not None
        and records[a.round, a.device][1].kind == a.kind
        for a in noted.asks
    )
    apart = max(float(np.abs(value - wire.weights[name]).max()) for name, value in served.items())
    print(f"\nlatency {1e3 * latency_s:g} ms: same {same} of {len(noted.asks)}, apart {apart:.1e}")
    rows = []
    for kind in dict.fromkeys(ask.kind for ask in noted.asks):
        last = max(ask.round for ask in noted.asks if ask.kind == kind)
        pairs = [(a, *records[a.round, a.device]) for a in noted.asks if (a.kind, a.round) == (kind, last)]
        rows.append(
            (
                f"{last}, {kind}",
                _both(pairs, lambda a: a.ended_s - a.asked_s, lambda at, r: at, ".3f"),
                _both(pairs, lambda a: a.bytes_up, lambda at, r: r.bytes_up, ",.0f"),
                _both(pairs, lambda a: a.bytes_down, lambda at, r: r.bytes_down, ",.0f"),
                _both(pairs, lambda a: a.energy_j, lambda at, r: r.energy_j, ".2f"),
            )
        )
    print(tabulate(rows, ("round, kind", "arrives, s: fast / wire", "bytes up", "bytes down", "energy, J")))


def _both(
    pairs: list[tuple[AskRecord, float, Any]],
    fast: Callable[[AskRecord], float],
    wire: Callable[[float, Any], float],
    form: str,
) -> str:
    return (
        f"{median(fast(a) for a, _, _ in pairs):{form}} / {median(wire(at, r) for _, at, r in pairs):{form}}"
    )


if __name__ == "__main__":
    for latency_s in (0.0, 0.05):
        compare(latency_s)
