"""The figures of the demo's runs, as pure functions of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from device_runtime.aggregator.machine.run_events import ContributionRecord

from .runs import DemoRun


@dataclass(frozen=True)
class Summary:
    """The mean figures of one policy over all seeds.

    Accuracies are of the served model; `spread` is their standard deviation.
    """

    policy: str
    seeds: int
    eval_acc: float
    spread: float
    participation: float
    bytes_up: float
    bytes_down: float
    energy_j: float


def summarise(policy: str, runs: Iterable[DemoRun]) -> Summary:
    """Summarises this policy's runs: means over the seeds."""
    own = [run for run in runs if run.policy == policy]
    final = [run.rounds[-1].eval_acc for run in own]
    return Summary(
        policy=policy,
        seeds=len(own),
        eval_acc=mean(final),
        spread=stdev(final) if len(final) > 1 else 0.0,
        participation=mean(mean(r.participants for r in run.rounds) / len(run.fleet) for run in own),
        bytes_up=mean(sum(r.bytes_up for r in run.rounds) for run in own),
        bytes_down=mean(sum(r.bytes_down for r in run.rounds) for run in own),
        energy_j=mean(sum(r.energy_j for r in run.rounds) for run in own),
    )


def recall(policy: str, runs: Iterable[DemoRun], digits: Sequence[int]) -> float:
    """The mean recall of these digits after the last round, over this policy's runs."""
    return mean(run.recalls[-1][digit] for run in runs if run.policy == policy for digit in digits)


@dataclass(frozen=True)
class DevicePart:
    """One device in a run: its share of the rounds, the count of each kind, why it sent nothing richer."""

    device: str
    rounds: float
    kinds: tuple[tuple[str, int], ...]
    why: str


def parts(run: DemoRun) -> list[DevicePart]:
    """The parts of all devices of the fleet, including those that sent nothing."""
    result = []
    for member in run.fleet:
        own = [c for c in run.contributions if c.device == member.name]
        share = len({c.round for c in own}) / len(run.rounds)
        kinds = tuple(Counter(c.kind for c in own).most_common())
        why = next((c.why for c in reversed(own) if c.why), "")
        result.append(DevicePart(member.name, share, kinds, why))
    return result


@dataclass(frozen=True)
class KindCost:
    """Medians of one kind's contributions; bytes are those of the device's MQTT packets in the round."""

    kind: str
    count: int
    bytes_up: float
    bytes_down: float
    train_time_s: float
    energy_j: float


def kind_costs(contributions: Sequence[ContributionRecord], kinds: Iterable[str]) -> list[KindCost]:
    """One row for each kind that was sent, in the order given."""
    rows = []
    for kind in kinds:
        own = [c for c in contributions if c.kind == kind]
        if own:
            rows.append(
                KindCost(
                    kind,
                    len(own),
                    median(c.bytes_up for c in own),
                    median(c.bytes_down for c in own),
                    median(c.train_time_s for c in own),
                    median(c.energy_j for c in own),
                )
            )
    return rows
