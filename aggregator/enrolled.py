"""What an aggregator has of an enrolment: its place at the broker, and the key that its devices know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker.messages import Offer
from broker.signing import Signer
from broker.site import AGGREGATOR_KEY, Opened
from broker.url import BrokerUrl

from .ports import Agree, Seal


def address(enrolment: Path, given: BrokerUrl | None = None) -> BrokerUrl:
    """The broker that was set up there, or the one `given` with its credential and authority.

    What `given` has of its own stands. Raises SiteError.
    """
    url = Opened(enrolment).for_aggregator
    if given is None:
        return url
    tls = given.tls if given.tls.ca else replace(given.tls, ca=url.tls.ca)
    if given.user is None and given.secure:
        given = replace(given, user=url.user, password=url.password)
    return replace(given, tls=tls)


def sealing(enrolment: Path | None, run_folder: Path, clock: Callable[[], float] = time.time) -> Seal:
    """For `Ports`: signs by the key of the enrolment, or by the run's own, which is made on first need.

    `clock` gives seconds since 1970. Raises SiteError, KeyFileError; what it returns raises KeyFileError.
    """
    keys = [Opened(enrolment).signer] if enrolment is not None else []

    def seal(topic: str, offer: Offer) -> bytes:
        if not keys:
            keys.append(Signer.kept(run_folder / AGGREGATOR_KEY))
        return keys[0].seal(topic, offer, max(0, int(clock())))

    return seal


def agreeing(enrolment: Path | None) -> Agree | None:
    """For `Ports`: by the key of the enrolment; without one no device knows a key. Raises SiteError."""
    return Opened(enrolment).signer.agree if enrolment is not None else None
