"""Sends receipts for contributions to their devices, and reports refusals to observers."""

from __future__ import annotations

import logging
from math import inf

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.machine.events import Reply
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import ContributionRefused
from device_runtime.aggregator.machine.state import RoundsState
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.wire.messages import Receipt

from .reception import Reception

log = logging.getLogger(__name__)

RECEIPT_S = 5.0
"""Seconds after which a compact contribution gets its receipt.

If the next round opens before that, its offer is the receipt. Devices send again after 10 seconds.
"""


class Receipts:
    """Sends receipts through `out` and releases the contributions from `reception`."""

    def __init__(self, reception: Reception, out: Outbound, ports: Ports) -> None:
        self._reception, self._out, self._ports = reception, out, ports
        self._owed: dict[Reply, float] = {}
        self._full = 0

    def give(self, reply: Reply, state: RoundsState) -> None:
        """Send a receipt, and report a contribution that does not count to observers.

        A device that gets no receipt sends its contribution again. The receipt for an accepted compact
        contribution waits for up to RECEIPT_S: the offer of the next round, if it comes first, says the same
        without another message.
        """
        update = reply.update
        if reply.status == "accepted" and not update.seq and not state.rules.counts_late:
            self._reception.release(update)
            self._owed[reply] = self._ports.clock()
            return
        if reply.status != "accepted":
            self._reception.turn_away(update)
        self._reception.release(update)
        self._send(reply)
        if reply.retry_s and state.full:
            self._say_full(state)
        if reply.status != "accepted":
            kind, reason = printable(update.kind), printable(reply.reason)
            self._ports.tell(ContributionRefused(update.device, update.round, kind, reply.status, reason))

    def pay(self, waited_s: float = RECEIPT_S) -> None:
        """Send the receipts that have waited for so many seconds."""
        until = self._ports.clock() - waited_s
        for reply in [reply for reply, since in self._owed.items() if since <= until]:
            del self._owed[reply]
            self._send(reply)

    def pay_all(self, by_offer: bool = False) -> None:
        """Send all waiting receipts, or drop them where the next offer says the same (`by_offer`)."""
        if by_offer:
            self._owed.clear()
        self.pay(-inf)

    def _send(self, reply: Reply) -> None:
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
        """Log once a round that it takes no more contributions."""
        if self._full != state.round:
            self._full = state.round
            log.warning(
                "round %d takes %d contributions, later ones are deferred: "
                "raise max_devices, or enrol devices",
                self._full,
                state.rules.max_contributions,
            )


def _addressed(reply: Reply) -> str:
    """The reason as one printable line; for a refusal it names the device."""
    reason = printable(reply.reason)
    if reply.status == "refused":
        return f"update from {reply.update.device} refused: {reason}"
    return reason
