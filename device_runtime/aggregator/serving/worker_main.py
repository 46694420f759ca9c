"""The worker process that checks a share of the small contributions and passes them to the aggregator.

It decides nothing and stores nothing. If it is killed, no receipt was sent for the contributions that it
holds: their devices send them again until the receipt comes, which is after the aggregator's commit.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import IO

from device_runtime.aggregator.configuration import logs
from device_runtime.aggregator.configuration.config import renewal
from device_runtime.aggregator.configuration.exit_codes import exit_code
from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.limits import RATE, BoundedInbox, RateLimit, message_cost
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Received
from device_runtime.console import log_to_stderr
from device_runtime.models.errors import ModelError
from device_runtime.system_errors import shortage

from .check_process import ContributionChecker, check_received
from .worker_pool import (
    CheckedContribution,
    WorkerFailed,
    WorkerOrder,
    WorkerReady,
    read_message,
    write_message,
)

log = logging.getLogger(__name__)


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
