"""Whose offers this device acts on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import small
from broker.messages import MessageError, Offer, offer_in

if TYPE_CHECKING:
    from broker.pact import Pact
    from broker.signing import Verifier

RUNS = 64
"""Runs of which the latest round is remembered."""


class Trust:
    """Reads offers. With the key of an aggregator (32 bytes) only that one's, and no round twice over.

    Without a key any offer is taken, signed or not. Raises NotTrusted for a key that is none.
    """

    def __init__(self, key: bytes = b"", draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """`draw` gives so many random bytes."""
        self.key = b""
        """To say in a hello, so that the aggregator need not sign what it says in few bytes."""
        self._verifier: Verifier | None = None
        self._pact: Pact | None = None
        self._rounds: dict[str, int] = {}
        if key:
            from broker import pact  # a device that is not enrolled needs no cryptography
            from broker.signing import Verifier

            own = draw(pact.KEY_BYTES)
            self._verifier = Verifier(key)
            self._pact, self.key = self._verifier.agree(own), pact.public(own)

    def next(self, topic: str, run: str, payload: bytes) -> small.Next:
        """The next round of this run that came on this topic. Raises MessageError as `offer`."""
        said, word = small.parted(payload)
        if self._pact is None:
            return small.decode_next(said)
        if not self._pact.holds(word, topic, run, said):
            from broker.signing import NotTrusted

            raise NotTrusted(
                f"next round on {topic} refused: it is not said to this device, for run {run!r}, by the "
                "aggregator that it is enrolled with"
            )
        made = small.decode_next(said)
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
