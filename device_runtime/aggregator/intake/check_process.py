"""A small contribution's content is checked ahead of the rounds, in a process beside that of the aggregator.

It is what costs most of a contribution, and depends on nothing but the message, the task and the base of the
message's own round, which never changes once that is open. Whether the contribution counts is for the rounds
to say, as ever: so is whatever cannot be said here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from device_runtime.aggregator.errors import DatabaseError, RunFolderError, UpdateRefused
from device_runtime.aggregator.merging.merge_round import open_family
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.errors import BlobError, BrokerError
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Contribution, decode, said_in
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle

from . import check
from .check import Standard

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckedMessage(Received):
    """A message whose content was looked at. `refusal` says why it is not to be believed: empty where it is,
    None where that could not be said.
    """

    refusal: str | None = None


class Checker:
    """Of the run in `folder`, beside the aggregator that owns it."""

    def __init__(self, folder: Path, database: str = "") -> None:
        """`database` as in Ports. Raises RunFolderError where nothing is begun, DatabaseError, ModelError."""
        self._store = Store(folder, True, database)
        identity = self._store.identity()
        if identity is None:
            raise RunFolderError(f"{folder} belongs to no run yet")
        self.task, self._run = tasks.decode(identity.task), identity.run
        main = Bundle.open(bundles.find(self.task.bundle)).manifest
        family = open_family(self.task.family, main)
        manifests = {"": main, **{name: bundle.manifest for name, bundle in family.items()}}
        self._standard = Standard(
            self.task,
            self._run,
            manifests,
            lambda number, member: bases.base_weights(self._store, number, manifests[member], member),
        )

    def close(self) -> None:
        self._store.close()

    def refusal(self, message: Contribution) -> str | None:
        """As in Checked. Raises DatabaseError: then nothing can be said any more."""
        if message.run != self._run or message.blob or not 1 <= message.round <= self.task.rounds:
            return None
        try:
            if self._standard.needs_base and not self._store.opened(message.round):
                return None  # before it is open another base may take its place
            offered = self._standard.offered(message.round)
            check.check_message(message, offered)
            check.check_content(message, message.body, offered)
        except UpdateRefused as error:
            return str(error)
        except (BlobError, RunFolderError) as error:
            log.warning("an update for round %d is not checked here: %s", message.round, error)
            return None
        return ""


def checked(event: Received, checkers: Mapping[str, Checker]) -> CheckedMessage:
    """The same message, looked at by the checker of its task. Raises DatabaseError."""
    refusal = None
    try:
        message = decode(said_in(event.payload), Contribution)
        if message.task in checkers:
            refusal = checkers[message.task].refusal(message)
    except BrokerError:
        pass  # no message at all: who takes it says so
    except DatabaseError:
        raise
    except Exception as error:  # whatever it is, the others must be served
        log.warning("message on %s is not checked here: %s: %s", event.topic, type(error).__name__, error)
    return CheckedMessage(event.topic, event.payload, event.retain, refusal)
