"""Whose offers this device acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import small
from broker.messages import MessageError, Offer, offer_in

if TYPE_CHECKING:
    from broker.signing import Verifier

RUNS = 64
"""Runs of which the latest round is remembered."""


class Trust:
    """Reads offers. With the key of an aggregator (32 bytes) only that one's, and no round twice over.

    Without a key any offer is taken, signed or not. Raises NotTrusted for a key that is none.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._verifier: Verifier | None = None
        self._rounds: dict[str, int] = {}
        if key:
            from broker.signing import Verifier  # a device that is not enrolled needs no cryptography

            self._verifier = Verifier(key)

    def next(self, topic: str, run: str, payload: bytes) -> small.Next:
        """The next round of this run that came on this topic. Raises MessageError as `offer`."""
        if self._verifier is None:
            return small.decode_next(small.unsigned(payload)[0])
        made = small.decode_next(self._verifier.open_next(topic, run, payload))
        self._rounds[run] = max(self._rounds.get(run, 0), made.round)
        return made

    def offer(self, topic: str, payload: bytes, retained: bool = False) -> Offer:
        """The offer that came on this topic. Raises MessageError, which says why it is not to be acted on.

        Rounds of a run only go up: an earlier one is what somebody has kept, and sends again. Of a round that
        is `retained` nobody makes more than that there is a task.
        """
        if self._verifier is None:
            return offer_in(payload)
        offer, _ = self._verifier.open(topic, payload)
        latest = self._rounds.pop(offer.run, 0)
        self._rounds[offer.run] = max(latest, offer.round)
        while len(self._rounds) > RUNS:
            del self._rounds[next(iter(self._rounds))]
        if 0 < offer.round < latest and not (retained and not offer.done):
            raise MessageError(
                f"offer of round {offer.round} refused: round {latest} of this run was offered before"
            )
        return offer
