"""One run of the demo: a broker, the aggregator in this process, and each device in its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import msgspec
import numpy as np

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import (
    ContributionRecord,
    Observer,
    RoundClosed,
    RoundRecord,
)
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.storage.model_versions import SERVED
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.console_log import ConsoleView
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.brokers import Choice
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Event, Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import decode
from device_runtime.simulation import digits
from device_runtime.simulation.rounds.learning import RoundEvaluator
from device_runtime.simulation.rounds.ledger import RoundFigures

from .fleet import FLEET, DemoDevice, data_set, divide_digits
from .processes import FleetProcesses, PlacedMember

BUNDLE = "digits-wrn-10-1"
START_S = 120.0
"""Seconds that the devices may take to start and measure themselves, before a run is abandoned."""


@dataclass(frozen=True)
class DemoSetting:
    """The setting that all compared runs share; they differ in the kinds that are offered.

    broker: "auto", "mosquitto" or "amqtt".
    scale: the factor by which all emulated devices are slower, see `calibration`.
    deadline_s: already longer by that factor.
    """

    seed: int
    rounds: int
    deadline_s: float
    broker: Choice = "auto"
    fleet: tuple[DemoDevice, ...] = FLEET
    scale: float = 1.0

    @property
    def most_s(self) -> float:
        """Seconds that a run may take: the start of the devices, and three deadlines for each round."""
        return self.scale * START_S + 3 * self.rounds * self.deadline_s


@dataclass(frozen=True)
class DemoPolicy:
    """The kinds that the rounds offer, with a name: "mixed" or "dropped"."""

    name: str
    kinds: tuple[KindSettings, ...]


@dataclass(frozen=True)
class DemoRun:
    """The result of a run.

    Accuracies in `rounds` and `recalls` (rounds, 10), by digit, are those of the served model on test samples
    that the aggregator did not choose its head by.
    """

    policy: str
    seed: int
    rounds: tuple[RoundRecord, ...]
    contributions: tuple[ContributionRecord, ...]
    fleet: tuple[DemoDevice, ...] = FLEET
    recalls: tuple[tuple[float, ...], ...] = ()

    def recall(self, of: Sequence[int]) -> float:
        """The mean recall of these digits after the last round."""
        return mean(self.recalls[-1][digit] for digit in of)


class ClosedRounds:
    """An observer that keeps the closed rounds, and what `evaluate` says of the model that each serves."""

    def __init__(self, evaluate: Callable[[int], RoundFigures]) -> None:
        self.closed: list[RoundClosed] = []
        self.figures: list[RoundFigures] = []
        self._evaluate = evaluate

    def __call__(self, event: object) -> None:
        if isinstance(event, RoundClosed):
            self.closed.append(event)
            self.figures.append(self._evaluate(event.record.round))


def perform(
    policy: DemoPolicy, setting: DemoSetting, folder: Path, view: Callable[[str], ConsoleView]
) -> DemoRun:
    """Runs all rounds of one policy. `folder` is made; `view` is given the broker's name and address."""
    folder.mkdir(parents=True)
    split = digits.load(np.random.default_rng(setting.seed))
    evaluation = folder / "evaluation.npz"
    choosing, test = (split.test.at(np.arange(start, len(split.test.y), 2)) for start in (0, 1))
    np.savez_compressed(evaluation, x=choosing.x, y=choosing.y)
    fleet = setting.fleet
    parts = divide_digits(split.train.y, fleet, np.random.default_rng([setting.seed, 1]))
    placed = [PlacedMember(m, split.train.at(part)) for m, part in zip(fleet, parts, strict=True)]
    task = Task(
        bundle=BUNDLE,
        name=policy.name,
        rounds=setting.rounds,
        round_deadline_s=setting.deadline_s,
        min_devices=len(fleet),
        seed=setting.seed,
        kinds=policy.kinds,
        eval_data=str(evaluation),
    )
    bundle = Bundle.open(bundles.find_bundle(BUNDLE))
    evaluator = RoundEvaluator(bundle, data_set(digits.Split(split.train, test)), 1, setting.rounds)

    def evaluate(number: int) -> RoundFigures:
        served = decode((folder / SERVED).read_bytes())
        return evaluator(number, served, served)

    broker = brokers.start(setting.broker)
    try:
        collected = ClosedRounds(evaluate)
        screen = view(f"{broker.name} at {broker.url}")
        end = time.monotonic() + setting.most_s
        with FleetProcesses(placed, broker.url, folder / "devices", setting.scale) as processes:
            with _abandoned_if(lambda: processes.failed() or _late(setting, collected, end)) as stop:
                _serve(task, folder, broker.url, (collected, screen), stop)
            processes.wait(timeout_s=10)
    finally:
        broker.stop()
    rounds = tuple(
        replace(closed.record, eval_acc=figures.eval_acc)
        for closed, figures in zip(collected.closed, collected.figures, strict=True)
    )
    contributions = tuple(c for closed in collected.closed for c in closed.contributions)
    recalls = tuple(figures.eval_acc_by_class for figures in collected.figures)
    return DemoRun(policy.name, setting.seed, rounds, contributions, fleet, recalls)


def _late(setting: DemoSetting, collected: ClosedRounds, end: float) -> str:
    """The message for a run that takes longer than it may; empty while it does not."""
    if time.monotonic() < end:
        return ""
    return (
        f"{len(collected.closed)} of {setting.rounds} rounds of {setting.deadline_s:g} s are done after "
        f"{setting.most_s:.0f} s: this machine is too busy for {len(setting.fleet)} devices now; try again "
        "when it is less so, or with a longer --deadline"
    )


@contextmanager
def _abandoned_if(failed: Callable[[], str]) -> Iterator[threading.Event]:
    """Gives an event that is set once `failed` returns a message, so that the run does not wait forever.

    On exit it then raises AggregatorError with that message.
    """
    stop, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            if failed():
                stop.set()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        done.set()
        watcher.join()
    if stop.is_set():
        raise AggregatorError(failed())


def _serve(
    task: Task, folder: Path, url: str, screens: tuple[Observer, ConsoleView], stop: threading.Event
) -> None:
    collected, view = screens
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    link = Link(BrokerUrl.parse(url), "aggregator", inbox, LinkOptions(subscriptions=(topics.FROM_DEVICES,)))
    service = Service(task, folder, Ports(link, inbox, (Records(folder), collected, view)))
    try:
        link.connect()
        service.run(stop)
        link.close(service.withdrawal())
    finally:
        service.close()
        view.close()


def save(runs: list[DemoRun], path: Path) -> None:
    """Writes everything that was measured as JSON, one line for each run."""
    path.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in runs))
