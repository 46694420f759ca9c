"""Settings of a device: its task, samples, limits, rules and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.device.energy import Meter
from device_runtime.device.policy.rules import ANYTHING, AllowList
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import SampleSource
from device_runtime.profiles.device import Emulation
from device_runtime.strategies.terms.accountant import PrivacyBudget
from device_runtime.tags import check_tags


@dataclass(frozen=True)
class PersonalModelSettings:
    """The owner's settings for the device's own model.

    `keep`: keep the served model after each round. `held_out`: the share of samples that are not trained on,
    but on which the model is evaluated; None: the default (`data.Selection`). `head`: train an own head,
    and use it where it is better on the held-out samples.
    """

    keep: bool = False
    held_out: float | None = 0.0
    head: bool = False

    def __post_init__(self) -> None:
        if self.head and (not self.keep or self.held_out == 0):
            raise ValueError("head is True: it needs keep = True, and held_out samples to be compared on")


@dataclass(frozen=True)
class Settings:
    """How a device takes part in a task.

    `memory_bytes` limits the process; None: what is free on the machine. `elsewhere_bytes` were subtracted
    from it, because another process of the device holds them. `disk_bytes` limits the models that are fetched
    and unpacked; None: no limit. `owner` limits the privacy spent on the samples; None: only
    tasks limit it. `allowed` limits what a task may ask for.

    `aggregator` is the public key of the only aggregator whose offers count; empty: any offer is accepted.
    `secret` is the device's own key, with which it signs its messages; empty: it signs nothing. `task` names
    the task to join, if the aggregator has several; empty: any one, and then the next.

    `meter` measures the energy of training; without one, or on an emulated device, energy is modelled.
    `personal` has the settings of the device's own model. `choose` names the policy by which the device
    chooses among updates; empty: the first that fits. `tags` say what it is, for tasks that select by them.
    Raises ValueError for invalid tags.
    """

    name: str
    data: Path | SampleSource
    folder: Path
    emulation: Emulation | None = None
    memory_bytes: int | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    owner: PrivacyBudget | None = None
    aggregator: bytes = b""
    task: str = ""
    meter: Meter | None = None
    personal: PersonalModelSettings = field(default_factory=PersonalModelSettings)
    disk_bytes: int | None = None
    secret: bytes = field(default=b"", repr=False)
    allowed: AllowList = ANYTHING
    choose: str = ""
    elsewhere_bytes: int = 0
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tags(self.tags)


def check_policy(name: str) -> None:
    """Raises KindError unless there is a choice policy of this name. Loads what a device at work needs."""
    from device_runtime.device.selection.choose import policy_named

    policy_named(name)
