"""The task that `explain` and `measure` plan for: what a device is offered, or what their options say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from device_runtime.cli.options import listed
from device_runtime.device.agent.instance import folder_lock
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.connection.offers import task_title
from device_runtime.device.delivery.offered_task import OfferedTask, fetch
from device_runtime.device.errors import InUse
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface.kind import AnyStrategy


@dataclass(frozen=True)
class EnrolledDevice:
    """A device of this machine, by name or folder, that connects as it is enrolled."""

    name: str | None
    state: Path | None
    broker: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False


@contextmanager
def offered(connection: Connection, task: str = "") -> Iterator[OfferedTask]:
    """What the broker offers to a device. Raises BrokerError, NotFetched, ModelError.

    What is fetched stays in the device's folder for its first round, unless the device runs there now.
    """
    with ExitStack() as stack:
        folder = connection.folder
        try:
            stack.enter_context(folder_lock(folder))
        except InUse:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        yield fetch(connection, task, folder)


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task: its bundle by name, and what `explain` and `measure` can set; empty by default."""

    bundle: str
    kinds: str = ""
    codec: str = ""
    head: Literal["auto", "trained", "closed-form"] = "auto"


@dataclass(frozen=True)
class PlannedTask:
    """What a device plans with.

    kinds: as the task offers them, the preferred first. manifests: of the models that they train, by member
    of the family. deadline_s: the seconds of a round.
    """

    kinds: tuple[AnyStrategy, ...]
    manifests: Mapping[str, Manifest]
    deadline_s: float
    closed_form: bool
    name: str
    """What it is, for people."""
    text: str = ""
    """What it is for, what people give, and whether its aggregator is away; may be empty."""

    @classmethod
    def of_offer(cls, task: OfferedTask) -> PlannedTask:
        """The task as it is offered to a device; between rounds with the usual kinds, as none are offered.

        Raises KindError if this version has none of its kinds.
        """
        from device_runtime.strategies.kinds import registry
        from device_runtime.strategies.statistics import kind_statistics

        offer, title = task.offer, task_title(task.offer.task, task.offer.title)
        if not offer.kinds:
            usual = cls.of_options(TaskOptions(str(task.bundle.path)), task.bundle)
            state = "which is over" if offer.done else "which has no round open for this device"
            name = f"{title}, {state}: the usual kinds"
            return replace(usual, deadline_s=offer.deadline_s, name=name, text=task.text)
        kinds = registry.supported_kinds(offer.kinds)
        manifests = {name: bundle.manifest for name, bundle in {"": task.bundle, **task.family}.items()}
        closed_form = kind_statistics.serves_closed_form(kinds)
        name = f"{title} as it is offered"
        return cls(kinds, manifests, offer.deadline_s, closed_form, name, task.text)

    @classmethod
    def of_options(cls, options: TaskOptions, bundle: Bundle) -> PlannedTask:
        """Raises KindError for a task that cannot be."""
        from device_runtime.aggregator.errors import TaskError
        from device_runtime.aggregator.tasks import feasible
        from device_runtime.aggregator.tasks.kind_settings import kinds_named
        from device_runtime.aggregator.tasks.systems import with_codec
        from device_runtime.aggregator.tasks.task import Task

        try:
            task = Task(bundle=options.bundle, head=options.head)
            if options.kinds:
                task = task.naming(kinds_named(listed(options.kinds)))
            parts = {name: part.manifest for name, part in feasible.trained_parts(task, bundle).items()}
            task = feasible.with_possible_head(feasible.with_members(task, tuple(parts)), bundle.manifest)
            task = with_codec(task, options.codec) if options.codec else task
        except TaskError as error:
            raise KindError(str(error)) from None
        manifests = {"": bundle.manifest, **parts}
        return cls(task.preferred(1), manifests, task.round_deadline_s, task.closed_form, options.bundle)
