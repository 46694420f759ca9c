"""A device that takes part in tasks: agent and link, from the first connection to the last message."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.device.backend.base import MakeBackend
from device_runtime.device.backend.child_process import STAYS_S
from device_runtime.device.backend.subprocess import Subprocess
from device_runtime.device.connection.connecting import Connection, first_connection
from device_runtime.device.energy import needs_listening
from device_runtime.device.policy.process_priority import ProcessPriority
from device_runtime.device.policy.rules import Policy
from device_runtime.device.training.settings import Settings

from .agent import Agent
from .instance_lock import running_as_device
from .runner import in_this_process


@dataclass(frozen=True)
class WorkRules:
    """The backend that works, when it may, and how much of the machine it takes.

    priority: None leaves this process as it is.
    """

    backend: MakeBackend
    policy: Policy = field(default_factory=Policy)
    priority: ProcessPriority | None = None


class JoinedDevice:
    """One device in this process; `agent` does its rounds. It connects when it is run."""

    def __init__(self, connection: Connection, settings: Settings, rules: WorkRules) -> None:
        self.agent = Agent(settings, secrets.randbits(32), time.monotonic, rules.backend)
        agent = self.agent
        options = LinkOptions(
            agent.will(), agent.subscriptions(), greeting=agent.greeting(), renewed=connection.renewed
        )
        self._link = Link(connection.url, connection.client_id, agent.inbox, options)
        self._connection, self._rules = connection, rules
        self._stop = threading.Event()

    def stop(self) -> None:
        """Makes `run` end; may be called by a signal handler, or from another thread."""
        self._stop.set()
        self.agent.inbox.wake()

    def run(self, until_done: bool = False, joined: Callable[[], None] = lambda: None) -> None:
        """Takes part until stopped or, with `until_done`, until the task is done; runs once.

        Calls `joined` when it has connected. Raises InUse, BrokerRefused, and as `Agent.run` does.
        """
        agent, link, stop = self.agent, self._link, self._stop
        with running_as_device(agent, link, self._rules.policy, self._rules.priority):
            agent.warm_up()
            try:
                if first_connection(link, stop, waits=agent.close):
                    joined()
                    if agent.settings.task:
                        from device_runtime.device.connection.other_tasks import warn_if_absent  # 45 kB

                        warn_if_absent(self._connection, agent.settings.task, lambda: agent.has_offer, stop)
                    agent.run(link, stop, until_done=until_done)
            finally:
                agent.close()
                link.close(agent.farewell())


def backend_for(meter: str, here: bool) -> MakeBackend:
    """The backend that works: this process, or one of its own, with the energy meter of this name.

    A process of its own ends when idle, unless the meter must be read all the time. Raises MeterError.
    """
    if here:
        return in_this_process
    return partial(Subprocess, meter=meter, stays_s=inf if needs_listening(meter) else STAYS_S)
