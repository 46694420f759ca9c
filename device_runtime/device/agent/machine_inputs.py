"""Converts settings, offers, contributions and errors to inputs of the device's state machine."""

from __future__ import annotations

from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire.messages import Contribution
from device_runtime.device.backend.base import Bundles, bundles_of
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.delivery.sending import Outbox
from device_runtime.device.errors import DeviceError, RoundLeftOut, StaleBase, WorkDied
from device_runtime.device.machine import events as ev
from device_runtime.device.machine.state import DeviceRules, DeviceState
from device_runtime.device.training.settings import Settings


def first_state(settings: Settings, outbox: Outbox) -> DeviceState:
    """The state of a device that has just started, with what an earlier process left."""
    rules = DeviceRules(settings.task, settings.personal.keep)
    waiting = tuple(entry_of(message) for message in outbox)
    last = outbox.settled
    settled = ("", 0) if last is None else (last.run, last.round)
    return DeviceState(rules, task=settings.task, outbox=waiting, settled=settled)


def names(bundles: Bundles) -> str:
    """The bundles of a task as one text; empty for none."""
    return " ".join(f"{member}:{blob.hex}" for member, blob in bundles)


def entry_of(message: Contribution) -> ev.WaitingContribution:
    fetched = message.blob is not None
    return ev.WaitingContribution(
        message.seq, message.task, message.run, message.round, message.num_examples, fetched
    )


def offered_of(number: int, opened: OpenRound) -> ev.Offered:
    offer = opened.offer
    return ev.Offered(
        number,
        offer.task,
        offer.run,
        offer.round,
        opened.closes_at,
        offer.done,
        names(bundles_of(offer)),
        tuple(blob.hex for blob in offer.base.checkpoint),
        offer.base.at,
        bool(offer.family),
    )


def why_of(error: BlobError | DeviceError) -> ev.Why:
    kinds: tuple[tuple[type[Exception], ev.Why], ...] = (
        (NoRoom, "no room"),
        (BlobError, "blob"),
        (StaleBase, "stale base"),
        (WorkDied, "worker died"),
        (RoundLeftOut, "left out"),
    )
    return next((why for kind, why in kinds if isinstance(error, kind)), "stopped")
