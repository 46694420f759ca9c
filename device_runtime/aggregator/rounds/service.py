"""The service of one task: a thread that takes messages from the broker link and drives the rounds.

`run` is the loop; `start`, `handle` and `tick` are its parts, for a caller with its own loop.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.errors import DatabaseError, NoContributions, RunFolderError
from device_runtime.aggregator.machine.events import Close, Give, TimePassed
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import Started
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.storage.run_files import GivenRound
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import link, topics
from device_runtime.broker.wire.messages import Blob
from device_runtime.strategies.kinds.evaluation import FederatedEvaluation

from .device_messages import DeviceMessageHandler
from .run import OpenRun
from .runner import RoundRunner

log = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds between ticks of the loop."""
LINGER_S, MOST_LINGER_S = 2.0, 60.0
"""How long a finished service stays for devices to learn that it is done, and the most in all, in seconds."""


class Service:
    """The aggregator of one task, with its run in `folder`; resumes a run that is there.

    The constructor raises as `OpenRun`. Later, RunFolderError or BlobError is raised when the disk fails, and
    DatabaseError when its server is lost; nothing that a device sends raises.
    """

    def __init__(self, task: Task, folder: Path, ports: Ports, given: bool = False) -> None:
        """`given`: a round begins only when it is given with `give`."""
        self.rounds = OpenRun(task, folder, given, ports.database)
        self.run_id = self.rounds.run
        helpers = task.masks.keys if task.masks else ()
        self._ports, self._out = ports, Outbound(ports, [helper.name for helper in helpers])
        self._done_s: float | None = None
        self._run = RoundRunner(self.rounds, self._out, ports)
        self.offers = self._run.commands.offers
        self._messages = DeviceMessageHandler(self.rounds, self._run, self._out, ports)

    @property
    def state(self) -> RoundsState:
        """The state of the round machine; frozen."""
        return self._run.state

    @property
    def finished(self) -> bool:
        """Whether the loop may end: the run was abandoned, or is done and no device needs the service.

        That is when they have left, or had time to learn that it is done and to fetch the model.
        """
        if self.state.phase == "given up" or self._run.commands.gave_up:
            return True
        if self.state.phase != "done":
            return False
        now, messages = self._ports.clock(), self._messages
        if self._done_s is None:
            self._done_s, messages.needed_until_s = now, now + LINGER_S
        return not self.state.online or now >= min(messages.needed_until_s, self._done_s + MOST_LINGER_S)

    def give(self, given_round: GivenRound) -> None:
        """Gives a later round, or the open one with another deadline; it is stored before it is offered.

        Raises RunFolderError, and ValueError for a round that is neither.
        """
        state, given_rounds, number = self.state, self.rounds.given_rounds, given_round.number
        later, same = state.phase == "wait" and number > state.round, number == state.round
        if given_rounds is None or not (later or (same and state.phase == "collect")):
            raise ValueError(f"round {number} cannot be given in round {state.round} ({state.phase})")
        given_rounds.keep(given_round)
        self._run.feed(Give(self._ports.clock(), given_round.deadline_s, number))

    def close_round(self) -> None:
        """Closes the open round; it is merged from the contributions that it has."""
        self._run.feed(Close(self._ports.clock()))

    def run(self, stop: threading.Event) -> None:
        """Serves until the task is finished or `stop` is set; either way everything is on disk.

        Raises NoContributions where the run is abandoned: the same command tries again.
        """
        self.start()
        while not (self.finished or stop.is_set()):
            with suppress(queue.Empty):
                self.handle(self._ports.inbox.get(timeout=TICK_S))
                end = self._ports.clock() + TICK_S
                while self._ports.clock() < end:
                    self.handle(self._ports.inbox.get_nowait())
            self.tick()
        if self._run.commands.gave_up:
            raise NoContributions(self._run.commands.gave_up)

    def has(self, blob: Blob) -> bool:
        """Whether devices can fetch this blob of the task; any thread may ask."""
        return self.rounds.store.models.has(blob)

    def withdrawal(self) -> link.Will | None:
        """The message that clears the task's retained offer, for Link.close; None when it is to be resumed.

        Devices that are there have heard how the task ended, while the service stayed for them.
        """
        if self.state.phase not in ("done", "given up") and not self._run.commands.gave_up:
            return None
        return link.Will(topics.offer(self.rounds.task.name), b"")

    def last_word(self) -> Callable[[str], link.Will] | None:
        """Makes the answer to a device that asks for the task when it is done; None when it is not."""
        if self.state.phase != "done":
            return None
        offer, seal = self.offers.farewell(), self._ports.seal

        def answer(device: str) -> link.Will:
            topic = topics.down(device, "task")
            return link.Will(topic, seal(topic, offer), retain=False)

        return answer

    def close(self) -> None:
        """Closes the run folder, after what is known of the devices is written."""
        with suppress(DatabaseError, RunFolderError):
            self.rounds.store.session.settle(self.state)
        self.rounds.store.close()

    def start(self) -> None:
        """Starts a new run, or resumes the one in the folder."""
        rounds = self.rounds
        if not rounds.task.eval_data and rounds.given_rounds is None:
            self._say_what_measures()
        closed = rounds.store.rounds.closed()
        start = Started(
            rounds.task, rounds.run, rounds.resumed, closed, rounds.manifest, rounds.initial.model_bytes
        )
        self._ports.tell(start)
        self._run.start()
        self._messages.admission.known_devices.remember((*self.state.asked, *self.state.devices))

    def _say_what_measures(self) -> None:
        """Logs how a model is measured without evaluation data."""
        task = self.rounds.task
        if task.closed_form and task.statistics.hold_out:
            classes = self.rounds.manifest.target.compared == "classes"
            log.info(
                "the task has no eval_data: devices hold %.0f%% of their samples out of training, to %s "
                "(--held-out 0: none)",
                100 * task.statistics.hold_out,
                "test the model" if classes else "compare its closed-form head with the trained one",
            )
        elif not any(kind.name == FederatedEvaluation.name for kind in task.kinds):
            log.info("nothing measures the model: the task has no eval_data")
        if task.stop_after:
            log.warning("stop_after never ends the task: it needs eval_data")

    def tick(self) -> None:
        """Does what time brings about, and commits and receipts what was handled since the last tick.

        Call it several times a second.
        """
        self._run.do_requested_rollback()
        self._messages.presence.apply_wills()
        for event in self._run.contributions.reception.tick(lambda: self.state.round):
            self._run.feed(event)
        self._run.sums_changed(self._run.commands.sums.tick())
        self._run.feed(TimePassed(self._ports.clock()))
        self._run.settle()
        self._out.go_on()

    def handle(self, event: link.Event) -> None:
        """Handles one event of the link. Nothing that a device sends raises."""
        match event:
            case link.Received():
                self._messages.hear(event)
            case link.Connected(first=False):
                self._messages.presence.wills.broker_back(self._ports.clock())
                self._run.contributions.reception.restart()
                self._run.commands.sums.restart()
                self._run.commands.offering.everybody(self.state)
            case link.Disconnected():
                self._messages.presence.wills.broker_lost()  # the link itself says why
