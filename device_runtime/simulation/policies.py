"""What is compared, by name: the same fleet, data and task under one system or another."""

from __future__ import annotations

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.errors import ModelError
from device_runtime.profiles.fleets import scenarios as fleets

from .errors import ScenarioError
from .scenario import Scenario

CHOOSE = "choose"
CENTRALISED = "centralised"
POLICIES = {
    CHOOSE: "every device sends the richest kind of update that it can afford, as the task offers them",
    "drop": "full updates only: stragglers are dropped (the system fedavg)",
    "reduced": "full updates, of one local epoch where all do not fit (the system fedavg+)",
    CENTRALISED: "one model on the pooled data, on one computer without a deadline: an oracle",
}
"""What each does; besides there are the systems of `aggregator.tasks.systems`."""
COMPUTER = "uniform-server"
"""The fleet of one that an oracle trains on."""


def names() -> tuple[str, ...]:
    """Modifiers may follow those of systems."""
    return (*POLICIES, "mixed", *systems.names())


def describe(policy: str) -> str:
    """What it is, in a line. Raises ScenarioError."""
    try:
        name, plus, rest = _plain(policy).partition("+")
        if name == CHOOSE:
            modifiers = systems.modifiers_of(policy, plus + rest)
            return "; ".join((POLICIES[CHOOSE], *(systems.MODIFIERS[modifier] for modifier in modifiers)))
        return POLICIES.get(policy) or systems.describe(policy)
    except TaskError as error:
        raise ScenarioError(str(error)) from None


def under(policy: str, task: Task) -> Task:
    """The task as this policy does it. Raises ScenarioError."""
    name, plus, rest = _plain(policy).partition("+")
    try:
        if name == CHOOSE:
            return systems.modified(task, systems.modifiers_of(policy, plus + rest), task)
        if policy == CENTRALISED:
            full = systems.under("no-stragglers", task)
            return msgspec.structs.replace(full, devices_per_round=None, buffer_size=0, min_contributions=1)
        return systems.under(policy, task)
    except (TaskError, ModelError) as error:
        raise ScenarioError(f"{policy}: {error}") from None


def of(policy: str, scenario: Scenario) -> Scenario:
    """The scenario as this policy runs it. Raises ScenarioError."""
    made = msgspec.structs.replace(scenario, task=under(policy, scenario.task))
    if policy != CENTRALISED:
        return made
    data = msgspec.structs.replace(scenario.data, partition="iid", samples_per_client=None, groups={})
    fleet = fleets.load(COMPUTER)
    return msgspec.structs.replace(made, devices=1, data=data, fleet=fleet)


def _plain(policy: str) -> str:
    """The two names of one thing are one."""
    name, plus, rest = policy.partition("+")
    return f"{CHOOSE}{plus}{rest}" if name == "mixed" else policy
