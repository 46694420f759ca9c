"""A device against a scripted aggregator: pauses, late offers, rollbacks, another task, and other faults."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Connected, Disconnected
from device_runtime.broker.wire.messages import Base, Receipt, encode
from device_runtime.device.agent.agent import Agent
from device_runtime.device.policy.rules import Rule, RuleVerdict
from device_runtime.device.training.settings import PersonalModelSettings
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.profiles import Speed
from tests.device.conftest import Stage
from tests.device.machine.recorded import recording

NO = RuleVerdict((Rule("mains", False, "on battery power"),))
QUIET = RuleVerdict((Rule("unmetered", False, "the network is metered", network=True),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Script(Stage):
    """A stage whose clock moves where the device waits, and whose rules a scenario changes."""

    verdict = RuleVerdict()

    def start(self, boot: int = 1, task: str = "", **settings: Any) -> "Script":
        super().start(boot, task)
        if settings:
            self.agent = Agent(replace(self.agent.settings, **settings), boot, self.clock)
            self.link = self.wire(self.agent)
            self.agent.inbox.put(Connected(first=True))
        self.agent.work_gate.judge = lambda _rules: self.verdict
        self.agent.begin(self.link)
        take = self.agent.inbox.next

        def wait(timeout: float) -> Any:
            event = take(0.0)
            self.clock.now += timeout if event is None else 0.0
            return event

        self.agent.inbox.next = wait
        return self

    def steps(self, count: int = 6) -> None:
        """Step until nothing has come so often."""
        while count:
            count -= not self.agent.step(0.5)

    def when_training(self, act: Callable[[], None]) -> None:
        """Do something at the first step of the next training."""
        progressed, done = self.agent.runner.progressed, []

        def called(share: float) -> None:
            if not done:
                done.append(share)
                act()
                self.agent.work_gate.look_again()
            progressed(share)

        self.agent.runner.progressed = called

    def moved(self, number: int, by: float = 1.0) -> Any:
        """An offer whose base is not here."""
        weights = {name: value + value.dtype.type(by) for name, value in self.bundle.weights().items()}
        data = tensors.encode(weights)
        self.contents[blob_of(data).sha] = data
        return self.offer(number, base=Base(checkpoint=(blob_of(data),), sha=blob_of(data).sha))

    def say(self, offer: Any) -> None:
        self.link.announce(offer, unasked=False)
        self.steps()


def rounds_until_the_task_is_done(script: Script) -> None:
    script.start(boot=1, personal=PersonalModelSettings(keep=True))
    for number in (0, 1, 2):
        script.say(script.offer(number))
    script.say(script.moved(3))
    script.say(msgspec.structs.replace(script.moved(3, 2.0), done=True, kinds=()))


def a_pause_before_the_work_and_one_within_it(script: Script) -> None:
    script.verdict = NO
    script.say(script.offer(1))
    script.verdict = RuleVerdict()
    script.steps()
    script.when_training(lambda: pause_for(script, 3.0))
    script.say(script.offer(2))


def pause_for(script: Script, seconds: float) -> None:
    until = script.clock.now + seconds
    script.agent.work_gate.judge = lambda _rules: NO if script.clock.now < until else RuleVerdict()


def a_round_that_closes_during_a_pause(script: Script) -> None:
    script.when_training(lambda: pause_for(script, 100.0))
    script.say(script.offer(1))


def a_newer_round_during_a_pause(script: Script) -> None:
    def act() -> None:
        pause_for(script, 3.0)
        script.link.announce(script.offer(2))

    script.when_training(act)
    script.say(script.offer(1))


def a_task_that_is_done_during_a_pause(script: Script) -> None:
    def act() -> None:
        pause_for(script, 3.0)
        script.link.announce(script.offer(1, done=True, kinds=()))

    script.when_training(act)
    script.say(script.offer(1))


def a_link_to_be_spared(script: Script) -> None:
    script.link.receipts = False
    script.say(script.offer(1))
    script.verdict = QUIET
    script.clock.now += 100.0
    script.steps()
    script.verdict = RuleVerdict()
    script.steps(40)


def a_lost_link_and_receipts_that_come_twice_late_or_put_off(script: Script) -> None:
    script.link.receipts = False
    script.say(script.offer(1))
    [contribution] = script.contributions
    script.agent.inbox.put(Disconnected("gone"))
    script.agent.inbox.put(Connected(first=False))
    script.steps()
    full = Receipt(boot=1, seq=contribution.seq, round=1, status="refused", reason="full", retry_after_s=20)
    script.link.tell("receipt", encode(full))
    script.steps(60)
    for status in ("late", "duplicate"):
        script.link.receipt(contribution, status)
        script.steps()


def a_restart_before_the_receipt_and_one_after_it(script: Script) -> None:
    script.link.receipts = False
    script.say(script.offer(1))
    script.start(boot=2)
    script.steps()
    script.start(boot=3)
    script.say(script.offer(1))


def late_offers_and_a_rollback(script: Script) -> None:
    script.say(script.offer(3))
    script.say(script.offer(2))
    script.say(script.moved(4))
    script.say(script.offer(4))
    script.say(script.offer(1, run="another"))


def a_base_that_is_on_its_way_when_the_next_round_opens(script: Script) -> None:
    script.say(script.offer(1))
    tell = script.link.tell
    script.link.tell = lambda leaf, payload: None if leaf.startswith("block") else tell(leaf, payload)
    for number in (2, 3, 4):
        script.say(script.moved(number, float(number)))
    script.link.tell = tell
    script.steps(30)


def another_task(script: Script) -> None:
    script.say(script.offer(1, task="digits", run="d"))
    script.say(script.offer(1, task="speech", run="s"))
    script.link.offer = script.offer(1, task="speech", run="s")
    script.link.announce(script.offer(1, task="digits", run="d", done=True), unasked=False)
    script.link.offer = script.offer(1, task="speech", run="s")
    script.steps()
    script.say(script.offer(1, task="digits", run="d", done=True))


def a_task_that_was_done_before_the_device_came(script: Script) -> None:
    script.link.announce(script.offer(1, done=True), retain=True, unasked=False)
    script.link.offer = None
    script.steps(30)


def rounds_that_cannot_be_worked_on(script: Script) -> None:
    bad = Base(checkpoint=(blob_of(b"no tensors"),), sha=bytes(32))
    script.contents[bad.checkpoint[0].sha] = b"no tensors"
    script.say(script.offer(1, base=bad))
    script.say(script.offer(2, kinds=()))
    script.say(script.offer(3, remaining_s=0.0))


def a_contribution_that_cannot_be_kept(script: Script) -> None:
    full = mock.patch.object(script.agent.runner.outbox, "add", side_effect=OSError(28, "No space left"))
    with full:
        script.say(script.offer(1))
    script.say(script.offer(2))


SCENARIOS = (
    rounds_until_the_task_is_done,
    a_pause_before_the_work_and_one_within_it,
    a_round_that_closes_during_a_pause,
    a_newer_round_during_a_pause,
    a_task_that_is_done_during_a_pause,
    a_link_to_be_spared,
    a_lost_link_and_receipts_that_come_twice_late_or_put_off,
    a_restart_before_the_receipt_and_one_after_it,
    late_offers_and_a_rollback,
    a_base_that_is_on_its_way_when_the_next_round_opens,
    another_task,
    a_task_that_was_done_before_the_device_came,
    rounds_that_cannot_be_worked_on,
    a_contribution_that_cannot_be_kept,
)


def vectors() -> dict[str, Any]:
    measured = mock.patch(
        "device_runtime.device.training.local_task.device_speed", lambda *_: Speed(1e9, source="set")
    )
    traces: dict[str, Any] = {}
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory() as folder, measured, recording() as recorder:
            x = np.random.default_rng(1).integers(0, 17, (40, 8, 8), np.uint8)
            np.savez(Path(folder) / "a.npz", x=x, y=np.arange(40) % 10)
            scenario(Script(Bundle.open(shipped_folder("digits-wrn-10-1")), Path(folder), Clock()))
        what = scenario.__name__.replace("_", " ")
        traces |= {f"{what}, life {life}": trace for life, trace in enumerate(recorder.traces, 1)}
    return traces
