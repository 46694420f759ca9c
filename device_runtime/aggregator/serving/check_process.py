"""Checks the content of small contributions in a worker process, before the aggregator reads them.

The check is the most expensive step of a contribution. It depends only on the message, the task and the base
of the contribution's round, which never changes once that round is open. The aggregator still decides whether
the contribution counts, and checks whatever a worker cannot check.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from device_runtime.aggregator.errors import DatabaseError, RunFolderError, UpdateRefused
from device_runtime.aggregator.intake import check
from device_runtime.aggregator.intake.check import CheckedMessage, ExpectedContributions
from device_runtime.aggregator.machine.state import Rules
from device_runtime.aggregator.merging.merge_round import open_family
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.family import with_members
from device_runtime.broker.errors import BlobError, BrokerError
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Contribution, decode, device_message_in
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle

log = logging.getLogger(__name__)


class ContributionChecker:
    """Checks contributions to the run in `folder`, which it only reads: the aggregator owns it."""

    def __init__(self, folder: Path, database: str = "") -> None:
        """`database` as in Ports. Raises RunFolderError if there is no run, DatabaseError, ModelError."""
        self._store = Store(folder, True, database)
        identity = self._store.identity()
        if identity is None:
            raise RunFolderError(f"{folder} belongs to no run yet")
        self.task, self._run = tasks.decode(identity.task), identity.run
        main = Bundle.open(bundles.find_bundle(self.task.bundle)).manifest
        family = open_family(self.task.family, main)
        self.task = with_members(self.task, tuple(family))
        manifests = {"": main, **{name: bundle.manifest for name, bundle in family.items()}}
        self._rules = Rules.of(self.task)
        self._expected = ExpectedContributions(
            self.task,
            self._run,
            manifests,
            lambda number, member: bases.base_weights(self._store, number, manifests[member], member),
        )

    def close(self) -> None:
        self._store.close()

    def refusal(self, message: Contribution) -> str | None:
        """The refusal, as in `CheckedMessage`. After a DatabaseError nothing more can be checked."""
        if message.run != self._run or message.blob or not 1 <= message.round <= self.task.rounds:
            return None
        try:
            if message.round < self._rules.earliest(self._store.rounds.latest_closed() + 1):
                return None  # too late, as the aggregator says; its base may be gone
            if self._expected.needs_base and not self._store.rounds.opened(message.round):
                return None  # until the round is open, its base may still change
            offered = self._expected.offered(message.round)
            check.check_message(message, offered)
            check.check_content(message, message.body, offered)
        except UpdateRefused as error:
            return str(error)
        except (BlobError, RunFolderError) as error:
            log.warning("an update for round %d is not checked by the worker: %s", message.round, error)
            return None
        return ""


def check_received(event: Received, checkers: Mapping[str, ContributionChecker]) -> CheckedMessage:
    """The same message, checked by the checker of its task. Raises DatabaseError."""
    refusal = None
    try:
        message = decode(device_message_in(event.payload), Contribution)
        if message.task in checkers:
            refusal = checkers[message.task].refusal(message)
    except BrokerError:
        pass  # not a valid message: the aggregator logs it
    except DatabaseError:
        raise
    except Exception as error:  # one faulty message must not stop the worker
        log.warning(
            "message on %s is not checked by the worker: %s: %s", event.topic, type(error).__name__, error
        )
    return CheckedMessage(event.topic, event.payload, event.retain, refusal)
