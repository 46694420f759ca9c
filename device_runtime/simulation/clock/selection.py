"""Which devices of a simulated fleet train, and which are held out: by the conditions of the task.

A fleet's devices have the tags and the name of their group, a profile, a memory limit and samples; engine and
version, of which only a real device says something, are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.participants import Condition, DeviceTraits, Participants
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation.errors import ScenarioError

Flags = NDArray[np.bool_]

OF_GROUPS = ("tag", "group", "profile")
"""What all devices of a group have in common."""
OF_REAL_DEVICES = ("engine", "version")


@dataclass(frozen=True, eq=False)
class FleetSelection:
    """The devices of a fleet that train, and those that are held out.

    trains: which of the n devices may be asked, bool (n,). held_out: the k that are evaluated on, int64 (k,).
    """

    trains: Flags
    held_out: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of devices that may be asked."""
        return int(self.trains.sum())


def traits(fleet: Fleet, samples: Callable[[int], int], device: int) -> DeviceTraits:
    """What is known of a device when devices are selected."""
    group = fleet.group(device)
    return DeviceTraits(
        name=fleet.name(device),
        tags=fleet.spec.groups[group].tags,
        group=group,
        profile=fleet.spec.groups[group].profile,
        memory_bytes=fleet.profile(device).memory.limit_bytes,
        samples=samples(device),
    )


def selection(
    participants: Participants, fleet: Fleet, samples: Callable[[int], int]
) -> FleetSelection | None:
    """The devices that train and those that are held out; None if all train.

    samples: gives those of a device. The share that is held out is that of the devices which meet the
    conditions, rounded, as many devices as that. Raises ScenarioError where nobody would train, and for
    conditions that a fleet cannot meet.
    """
    if not participants:
        return None
    named = tuple(each for each in participants.held_out if isinstance(each, Condition))
    for condition in (*participants.conditions, *named):
        if condition.name in OF_REAL_DEVICES:
            raise ScenarioError(f"condition {condition.text!r}: simulated devices have no {condition.name}")
        if fleet.spec.redrawn and condition.name not in ("name", "samples"):
            raise ScenarioError(
                f"condition {condition.text!r}: the groups of fleet {fleet.spec.name} are redrawn every round"
            )
    trains = _meeting(participants.conditions, fleet, samples)
    if not trains.any():
        raise ScenarioError(
            f"no device of fleet {fleet.spec.name} meets {_texts(participants)}: {_has(fleet)}"
        )
    candidates = np.flatnonzero(trains)
    names = {fleet.name(device): device for device in candidates.tolist()} if participants.held_out else {}
    for each in participants.held_out:
        if isinstance(each, str) and each not in names:
            raise ScenarioError(f"hold_out_devices: fleet {fleet.spec.name} has no device {each} that trains")
    chosen = [each for each in names.values() if participants.names_held_out(traits(fleet, samples, each))]
    if participants.held_out_share:
        share = participants.held_out_share
        number = round(share * len(candidates))
        if not number:
            raise ScenarioError(f"hold_out_devices: {share:.3%} of {len(candidates)} devices are none")
        draws = [(participants.hold_out_draw(fleet.name(device)), device) for device in candidates.tolist()]
        chosen += [device for _, device in sorted(draws)[:number]]
    held_out = np.unique(np.array(chosen, np.int64))
    trains[held_out] = False
    if not trains.any():
        raise ScenarioError(
            f"hold_out_devices: all {len(candidates)} devices are held out, nobody would train"
        )
    return FleetSelection(trains, held_out)


def _meeting(conditions: tuple[Condition, ...], fleet: Fleet, samples: Callable[[int], int]) -> Flags:
    """Which devices meet all conditions, (n,): those of groups are looked at once for each group."""
    meets = np.ones(len(fleet), bool)
    of_groups = [condition for condition in conditions if condition.name in OF_GROUPS]
    for number, (name, group) in enumerate(fleet.spec.groups.items()):
        common = DeviceTraits(name, group.tags, name, group.profile)
        if not all(condition.holds(common) for condition in of_groups):
            meets[fleet.draws.group == number] = False
    rest = [condition for condition in conditions if condition.name not in OF_GROUPS]
    for device in np.flatnonzero(meets).tolist() if rest else ():
        own = traits(fleet, samples, device)
        meets[device] = all(condition.holds(own) for condition in rest)
    return meets


def _texts(participants: Participants) -> str:
    return ", ".join(condition.text for condition in participants.conditions)


def _has(fleet: Fleet) -> str:
    """The groups of a fleet with their tags, for people."""
    groups = (
        f"{name} (tags {', '.join(group.tags)})" if group.tags else f"{name} (no tags)"
        for name, group in fleet.spec.groups.items()
    )
    return f"its groups are {', '.join(groups)}"
