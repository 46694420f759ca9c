"""The worker process that checks a share of the small contributions and passes them to the aggregator.

It decides nothing and stores nothing. If it is killed, no receipt was sent for the contributions that it
holds: their devices send them again until the receipt comes, which is after the aggregator's commit.

The check is the most expensive step of a contribution. It depends only on the message, the task and the
base of the contribution's round, which never changes once that round is open. The aggregator still
decides whether the contribution counts, and checks whatever a worker cannot check.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from device_runtime.aggregator.configuration import logs
from device_runtime.aggregator.configuration.config import renewal
from device_runtime.aggregator.errors import (
    AggregatorError,
    DatabaseError,
    RunFolderError,
    UpdateRefused,
    exit_code,
)
from device_runtime.aggregator.intake import check
from device_runtime.aggregator.intake.check import CheckedMessage, ExpectedContributions
from device_runtime.aggregator.limits import RATE, BoundedInbox, RateLimit, message_cost
from device_runtime.aggregator.machine.state import Rules
from device_runtime.aggregator.merging.merge_round import open_family
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.feasible import with_members
from device_runtime.broker.errors import BlobError, BrokerError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Contribution, decode, device_message_in
from device_runtime.console import log_to_stderr
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.errors import ModelError
from device_runtime.system_errors import shortage

from .worker_pool import (
    CheckedContribution,
    WorkerFailed,
    WorkerOrder,
    WorkerReady,
    read_message,
    write_message,
)

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
        main = Bundle.open(bundles.find_bundle(self.task.bundle))
        family = open_family(self.task, main)
        self.task = with_members(self.task, tuple(family))
        manifests = {"": main.manifest, **{name: bundle.manifest for name, bundle in family.items()}}
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


def main() -> None:
    """Work until the aggregator closes stdin or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the aggregator handles them, and ends its workers
    log_to_stderr()
    order = read_message(sys.stdin.buffer, WorkerOrder)
    if order is None:
        return
    logs.configure(order.log)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keeps printed text out of the messages
    try:
        _serve(order, out)
    except (AggregatorError, BrokerError, ModelError) as error:
        _say(out, WorkerFailed(str(error), exit_code(error)))
    except BrokenPipeError:
        os._exit(0)  # the aggregator has ended
    except Exception as error:
        if (lack := shortage(error)) is None:
            raise
        _say(out, WorkerFailed(lack, exit_code(error)))


def _serve(order: WorkerOrder, out: IO[bytes]) -> None:
    """Check contributions until the process ends."""
    checkers = {
        checker.task.name: checker
        for checker in (ContributionChecker(f, order.database) for f in order.folders)
    }
    inbox = BoundedInbox()
    name = f"aggregator-{secrets.token_hex(4)}"
    options = LinkOptions(subscriptions=(order.topic,), renewed=renewal(order.section))
    link = Link(replace(order.broker, mqtt5=True), name, inbox, options)
    threading.Thread(target=_leave_at_the_end, args=(link,), daemon=True).start()
    link.connect()
    flood = RateLimit()
    _say(out, WorkerReady())
    while True:
        event = inbox.get()
        if isinstance(event, Received) and _taken(event, flood):
            looked = check_received(event, checkers)
            write_message(out, CheckedContribution(looked.topic, looked.payload, looked.refusal))
        if inbox.empty():
            out.flush()


def _leave_at_the_end(link: Link) -> None:
    """End the process when stdin ends. Contributions being checked are dropped, as they have no receipt."""
    while os.read(sys.stdin.fileno(), 4096):  # sys.stdin has a lock, which the interpreter takes when it ends
        pass
    link.close()
    os._exit(0)


def _taken(event: Received, flood: RateLimit) -> bool:
    """Whether the device is within its message rate; beyond it the aggregator would drop the message too."""
    with suppress(BrokerError):
        address = topics.parse(event.topic)
        device, now = address.device, time.monotonic()
        if flood.lets(device, now, message_cost(address.leaf, len(event.payload))):
            return True
        if flood.worth_saying(device, now):
            log.warning("messages from %s dropped: it sends more than %g a second", device, RATE)
    return False


def _say(out: IO[bytes], word: WorkerReady | WorkerFailed) -> None:
    write_message(out, word)
    out.flush()
