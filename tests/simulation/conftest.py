"""What tests of metrics, comparisons and reports share: lines of runs, and a whole run made up of them."""

from collections.abc import Callable
from dataclasses import replace
from math import nan

import numpy as np
import pytest

from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.scenarios import scenario

SMALL = scenario.load("uniform", {
    "devices": 3, "slow": 20.0, "data": {"max_train": 90, "max_test": 40},
    "task": {"rounds": 3, "round_deadline_s": 6.0},
})  # fmt: skip
"""A scenario of three devices that takes a second or two."""
ROUND = SimulatedRound(
    round=1,
    opened_s=0.0,
    closed_s=10.0,
    eval_acc=0.5,
    eval_loss=1.0,
    base_eval_acc=0.5,
    train_loss=1.2,
    asked=4,
    participants=2,
    stragglers=1,
    late=1,
    lost=1,
    sat_out=0,
    refused=0,
    staleness=0.0,
    train_time_s=20.0,
    energy_j=30.0,
    wasted_j=5.0,
    bytes_up=1000,
    bytes_down=3000,
    forward_passes=600.0,
    eval_acc_by_class=(0.25, 0.75),
)
ASK = AskRecord(
    round=1,
    into=1,
    device="pi-5-0",
    group="pi-5",
    kind="full",
    form="full",
    fate="counted",
    straggler=False,
    asked_s=0.0,
    ended_s=8.0,
    download_s=1.0,
    compute_s=5.0,
    upload_s=2.0,
    bytes_down=1500,
    bytes_up=500,
    energy_j=12.0,
    peak_memory_bytes=50_000_000,
    num_examples=100,
    forward_passes=300.0,
    train_loss=1.0,
    why="",
)
SPEEDS = {"pi-zero-2w": 9.0, "pi-5": 3.0, "phone-low": 6.0, "phone-high": 1.5, "x86-server": 0.4}
"""Seconds that a full update takes in the made-up run; its deadline is 8."""
DEADLINE_S = 8.0


@pytest.fixture
def round_line() -> Callable[..., SimulatedRound]:
    """A closed round with anything changed."""
    return lambda **changes: replace(ROUND, **changes)


@pytest.fixture
def ask() -> Callable[..., AskRecord]:
    """One ask with anything changed."""
    return lambda **changes: replace(ASK, **changes)


@pytest.fixture(scope="session")
def made_up() -> Callable[..., tuple[list[SimulatedRound], list[AskRecord]]]:
    """A plausible run of 40 devices; the same arguments give the same lines."""
    return made_up_run


def made_up_run(
    policy: str = "choose", seed: int = 0, rounds: int = 12
) -> tuple[list[SimulatedRound], list[AskRecord]]:
    """Policy "drop" leaves every straggler late; any other lets them send few-shot heads or class means."""
    rng = np.random.default_rng([seed, len(policy)])
    fleet = [(f"{group}-{i:02d}", group) for group in SPEEDS for i in range(8)]
    speed = {name: SPEEDS[group] * rng.lognormal(0, 0.3) for name, group in fleet}
    lines, asks, now, share = [], [], 0.0, 0.0
    for number in range(1, rounds + 1):
        asks_ = [_made_up_ask(policy, (number, now), member, speed[member[0]], rng) for member in fleet]
        took = min(DEADLINE_S, max(each.ended_s - now for each in asks_))
        counted = [each for each in asks_ if each.fate == "counted"]
        share += (len(counted) / len(asks_)) * (1 - share) * 0.35
        by_class = tuple(float(x) for x in np.clip(share + rng.normal(0, 0.05, 10), 0, 1))
        now += took
        asks += asks_
        lines.append(_made_up_line(number, (now - took, now), asks_, by_class))
    return lines, asks


def _made_up_ask(policy, when, member, speed, rng):
    number, now = when
    device, group = member
    seconds = speed * rng.lognormal(0, 0.15)
    straggler = seconds > DEADLINE_S - 1
    kind, fate = "full", "counted"
    if straggler and policy == "drop":
        fate = "late"
    elif straggler:
        kind = "few-shot" if rng.random() < 0.7 else "class-means"
        seconds /= 5
    if rng.random() < 0.04:
        fate = "crashed"
    ended = now + (seconds * 0.5 if fate == "crashed" else seconds + 1.0)
    sent = {"full": 310_000, "few-shot": 3_000, "class-means": 2_900}[kind]
    return replace(
        ASK,
        round=number,
        into=number if fate == "counted" else 0,
        device=device,
        group=group,
        kind=kind,
        form=kind,
        fate=fate,
        straggler=straggler,
        asked_s=now,
        ended_s=ended,
        download_s=0.6,
        compute_s=max(0.0, ended - now - 1.0),
        upload_s=0.4 if fate != "crashed" else 0.0,
        bytes_up=sent if fate != "crashed" else 0,
        bytes_down=310_000,
        energy_j=6.0 * seconds,
        train_loss=nan if kind == "class-means" else 2.3 / number,
    )


def _made_up_line(number, times, asks, by_class):
    counted = [each for each in asks if each.fate == "counted"]
    energy = sum(each.energy_j for each in asks)
    return replace(
        ROUND,
        round=number,
        opened_s=times[0],
        closed_s=times[1],
        eval_acc=float(np.mean(by_class)),
        eval_loss=2.3 * (1 - float(np.mean(by_class))),
        base_eval_acc=float(np.mean(by_class)),
        train_loss=2.3 / number,
        asked=len(asks),
        participants=len(counted),
        stragglers=sum(each.straggler for each in asks),
        late=sum(each.fate == "late" for each in asks),
        lost=sum(each.fate == "crashed" for each in asks),
        train_time_s=sum(each.compute_s for each in asks),
        energy_j=energy,
        wasted_j=energy - sum(each.energy_j for each in counted),
        bytes_up=sum(each.bytes_up for each in asks),
        bytes_down=sum(each.bytes_down for each in asks),
        forward_passes=sum(each.forward_passes for each in asks),
        eval_acc_by_class=by_class,
    )
