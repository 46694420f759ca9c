"""What becomes of contributions, as their devices are told; and whoever watches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.rounds import events as moves
from device_runtime.aggregator.rounds.state import RoundsState
from device_runtime.aggregator.views.listener import ContributionRefused, Happening
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.wire.messages import Receipt

from .reception import Reception

log = logging.getLogger(__name__)

RECEIPT_S = 5.0
"""Seconds after which a short contribution has its receipt, if no next round says it: devices send it again
after ten."""


class Receipts:
    """Given through `out`; then `reception` has a contribution no longer in hand. `clock` gives seconds."""

    def __init__(
        self,
        reception: Reception,
        out: Outbound,
        clock: Callable[[], float],
        tell: Callable[[Happening], None],
    ) -> None:
        self._reception, self._out, self._clock, self._tell = reception, out, clock, tell
        self._owed: dict[moves.Reply, float] = {}
        self._full = 0

    def give(self, reply: moves.Reply, state: RoundsState) -> None:
        """Send a receipt, and tell of it. One that cannot be sent is asked for again by its device.

        That a short contribution has been counted is said soon: the next round, if that comes before, says so
        too, in no bytes.
        """
        update = reply.update
        if reply.status == "accepted" and not update.seq and not state.rules.counts_late:
            self._reception.release(update)
            self._owed[reply] = self._clock()
            return
        if reply.status != "accepted":
            self._reception.turn_away(update)
        self._reception.release(update)
        self._send(reply)
        if reply.retry_s:
            self._say_full(state)
        if reply.status != "accepted":
            kind, reason = printable(update.kind), printable(reply.reason)
            self._tell(ContributionRefused(update.device, update.round, kind, reply.status, reason))

    def pay(self) -> None:
        """Send those that are owed for too long."""
        self._pay(self._clock() - RECEIPT_S)

    def pay_all(self, said: bool = False) -> None:
        """Send those that are owed, unless it was `said` otherwise that what they are for counts."""
        if said:
            self._owed.clear()
        self._pay(inf)

    def _pay(self, until: float) -> None:
        for reply in [reply for reply, since in self._owed.items() if since <= until]:
            del self._owed[reply]
            self._send(reply)

    def _send(self, reply: moves.Reply) -> None:
        update = reply.update
        self._out.receipt(
            update.device,
            Receipt(
                boot=update.boot,
                seq=update.seq,
                round=update.round,
                status=reply.status,
                reason=_addressed(reply),
                retry_after_s=reply.retry_s,
            ),
        )

    def _say_full(self, state: RoundsState) -> None:
        """Once in a round."""
        if self._full != state.round:
            self._full = state.round
            log.warning(
                "round %d takes %d contributions, others are put off: raise max_devices, or enrol devices",
                self._full,
                state.rules.max_contributions,
            )


def _addressed(reply: moves.Reply) -> str:
    """The reason as one short line, whatever the device's own names in it; a sentence where it is refused."""
    reason = printable(reply.reason)
    if reply.status == "refused":
        return f"update from {reply.update.device} refused: {reason}"
    return reason
