"""The accuracy that each device of the demo adds: its mixed rounds, simulated with and without it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean

import numpy as np

from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.profiles.fleets.groups import FleetGroup, LinkSpread
from device_runtime.profiles.machine import usable_cores
from device_runtime.simulation import digits
from device_runtime.simulation.executors.job import ExecutorInputs, TrainingJob
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import PreparedRun, simulate
from device_runtime.simulation.scenarios.clients import Clients
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.device_half import Update

from .fleet import SLOW, DemoDevice, data_set, divide_digits, holders
from .runs import BUNDLE, DemoPolicy, DemoSetting

JAVASCRIPT = "phone-high"
"""The profile that a device in JavaScript, which has none, is simulated with."""

MOST_S = 300.0
"""Seconds for the simulated runs of one seed; a quiet machine of two cores takes about a tenth."""


@dataclass(frozen=True)
class DemoOutcome:
    """Accuracy and recall of each digit of the model that the last round serves."""

    accuracy: float
    recalls: tuple[float, ...]

    def recall(self, of: Sequence[int]) -> float:
        """The mean over these digits."""
        return mean(self.recalls[digit] for digit in of)


@dataclass(frozen=True)
class DeviceWorth:
    """The loss without a device, from 0 to 1, mean over the seeds.

    Of accuracy, and of the mean recall of the digits that it holds.
    """

    device: str
    digits: tuple[int, ...]
    accuracy: float
    recall: float


def device_worths(
    policy: DemoPolicy, settings: Sequence[DemoSetting], most_s: float = MOST_S
) -> tuple[float, list[DeviceWorth]]:
    """The simulated accuracy with all devices, mean over the settings' seeds, and the worth of devices.

    The devices are those that hold digits alone, and the first of those that share the other digits. Raises
    concurrent.futures.TimeoutError where the runs take more than `most_s` for each setting.
    """
    left_out = [(of.members[0], of.digits) for of in holders(settings[0].fleet)]
    whole = [(setting, "") for setting in settings]
    without = [(setting, name) for setting in settings for name, _ in left_out]
    stop = threading.Event()
    with ThreadPoolExecutor(usable_cores()) as pool:
        try:
            jobs, timeout_s = [*whole, *without], most_s * len(settings)
            done = pool.map(lambda job: _simulated(policy, job[0], job[1], stop), jobs, timeout=timeout_s)
            outcomes = dict(zip(jobs, done, strict=True))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    worths = []
    for name, own in left_out:
        pairs = [(outcomes[setting, ""], outcomes[setting, name]) for setting in settings]
        accuracy = mean(every.accuracy - fewer.accuracy for every, fewer in pairs)
        recall = mean(every.recall(own) - fewer.recall(own) for every, fewer in pairs)
        worths.append(DeviceWorth(name, own, accuracy, recall))
    return mean(outcomes[setting, ""].accuracy for setting in settings), worths


class DemoEnded(Exception):
    """The demo was ended before this run was."""


class _Last(NullObserver):
    """An observer that keeps the last round, and ends the run once `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.line: SimulatedRound | None = None

    def trained(self, job: TrainingJob, update: Update) -> None:
        if self._stop.is_set():
            raise DemoEnded

    def closed(self, line: SimulatedRound) -> None:
        self.line = line


def _simulated(policy: DemoPolicy, setting: DemoSetting, without: str, stop: threading.Event) -> DemoOutcome:
    """Simulates a run without the device of this name ("": with all); the outcome of its last round."""
    last = _Last(stop)
    simulate(prepared(policy, setting, without), observer=last)
    if last.line is None:
        raise ValueError(f"no round of {setting.rounds} was closed")
    return DemoOutcome(last.line.eval_acc, last.line.eval_acc_by_class)


def prepared(policy: DemoPolicy, setting: DemoSetting, without: str = "") -> PreparedRun:
    """The demo's run for the simulator: the same samples on the same devices, but for `without`."""
    split = digits.load(np.random.default_rng(setting.seed))
    parts = divide_digits(split.train.y, setting.fleet, np.random.default_rng([setting.seed, 1]))
    shares = {d.name: part for d, part in zip(setting.fleet, parts, strict=True) if d.name != without}
    groups = {device.name: _group(device, len(shares)) for device in setting.fleet if device.name in shares}
    task = Task(
        bundle=BUNDLE,
        rounds=setting.rounds,
        round_deadline_s=setting.deadline_s / setting.scale,
        kinds=policy.kinds,
    )
    spec = FleetSpec(name="demo", groups=groups)
    scenario = Scenario(fleet=spec, task=task, name="demo", devices=len(shares), slow=SLOW)
    fleet = spec.draw(len(shares), setting.seed)
    bundle, data = Bundle.open(bundles.find_bundle(BUNDLE)), data_set(split)
    order = [shares[fleet.group(device)] for device in range(len(shares))]
    clients = Clients.of(data.train_x, data.train_y, order)
    return PreparedRun(scenario, setting.seed, ExecutorInputs(bundle, clients, EngineSettings()), data)


def _group(member: DemoDevice, devices: int) -> FleetGroup:
    """A group of one device."""
    link = LinkSpread() if member.uplink is None else LinkSpread(up_bytes_per_s=member.uplink)
    return FleetGroup(profile=member.profile or JAVASCRIPT, share=1 / devices, link=link)
