"""Checks what a device needs to take part: enrolment, broker, TLS, access list, offers, clock."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone

from device_runtime.broker.errors import BrokerError, BrokerRefused, UrlError
from device_runtime.broker.security.access_trial import AccessTrial
from device_runtime.broker.security.enrolment import FILE
from device_runtime.broker.sockets.addresses import StepLimit, look_up, open_socket
from device_runtime.broker.wire import certificate, topics
from device_runtime.broker.wire.certificate import (
    EXPIRED,
    NOT_YET,
    OTHER_ADDRESS,
    OTHER_NAME,
    CertificateRefused,
    PeerCertificate,
)
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import MESSAGE_LIMIT, MessageError, Signed, decode
from device_runtime.broker.wire.pieces import SMALLEST
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.connection.offers import task_title, update_advice
from device_runtime.device.connection.trust import Trust

from .installation import Finding, State

REACH_S = 20.0
"""Seconds for the name lookup, and for the TCP connection."""
DAY_S = 86_400.0
SOON_S = 30 * DAY_S
"""A certificate that ends in fewer seconds is reported."""
SKEW_S = 300.0
"""Seconds that a clock may be behind before it is reported."""
LISTEN_S = 1.0
"""Seconds to listen for messages that must not come."""
TO_ALL = f"{topics.ROOT}/all/"
OFFER_BYTES = 8 * 1024
"""A packet of this size holds any usual offer, which is retained and does not go in pieces."""
_PACKETS = tuple(SMALLEST << power for power in range(7, -1, -1))
"""Sizes of packets that are tried: 128 KiB, and halves down to the smallest of use."""
NOBODY = "nobody-in-particular"
"""Name of another device, to test access. The aggregator ignores the topics that are used."""

_SET_CLOCK = "set the clock: `timedatectl set-ntp true`, or a server of your network"
_TLS_ADVICE = {
    NOT_YET: f"the certificate begins later than this device's clock says: {_SET_CLOCK}",
    EXPIRED: "if this device's clock is right, on the broker: `device-runtime broker renew DIR`",
    OTHER_NAME: "use a host of the certificate, or make one with it: `broker init --name HOST`",
    OTHER_ADDRESS: "use an address of the certificate, or make one with it: `broker init --name ADDRESS`",
}
_FORGES = "whoever runs the broker can send updates in its name, and receipts to it"
_NO_AUTHORITY = (
    "give the broker's authority with --ca, or enrol the device anew: the broker is not the one it was"
)


def examine(connection: Connection, now: float) -> Iterator[Finding]:
    """Checks from near to far; ends at the first problem that keeps the next check from being tried.

    `now` is what this device's clock says, in seconds since 1970.
    """
    yield enrolled(connection)
    url = connection.url
    reached = _reached(connection)
    yield reached
    if reached.state == "problem":
        return
    peer: PeerCertificate | None = None
    if url.secure:
        try:
            peer = certificate.examine_certificate(url)
        except (CertificateRefused, UrlError, OSError) as error:
            yield _distrusted(error)
            yield _clock(connection, now, None, 0)
            return
        yield _trusted(peer, now)
    else:
        plain = (
            "not used: what is said stays on this machine"
            if url.loopback
            else "not used: all can be read on the way"
        )
        yield Finding(
            "tls", "ok" if url.loopback else "missing", plain, "" if url.loopback else "use mqtts://"
        )
    yield from _inside(connection, now, peer)


def enrolled(connection: Connection) -> Finding:
    """Whether this device knows whose offers count, and keeps its password to itself."""
    own = connection.enrolment
    if own is None:
        advice = "enrol it: `device-runtime device add NAME` where the broker is set up"
        text = f"none: offers of any aggregator are taken, {_FORGES}"
        return Finding("enrolment", "missing", text, advice)
    path = connection.folder / FILE
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return Finding("enrolment", "problem", f"{path} can be read by others", f"chmod 600 {path}")
    day = datetime.fromtimestamp(own.issued, timezone.utc)
    text = f"{own.name}, since {day:%Y-%m-%d}; offers by key {own.key[:8].hex()}"
    if not own.secret:
        advice = f"enrol it again: `device-runtime device add {own.name} --again` where the broker is set up"
        return Finding("enrolment", "missing", f"{text}; it has no key of its own: {_FORGES}", advice)
    return Finding("enrolment", "ok", f"{text}; signs by its own")


def _reached(connection: Connection) -> Finding:
    url = connection.url
    try:
        endpoints = look_up(*url.first_hop, StepLimit.of(REACH_S))
        began = time.perf_counter()
        way, endpoint = open_socket(endpoints, StepLimit.of(REACH_S))
        took, address = time.perf_counter() - began, endpoint.address[0]
        way.close()
    except socket.gaierror as error:
        advice = "check the host in the URL, and this device's name server"
        host, _ = url.first_hop
        return Finding("broker", "problem", f"no machine is called {host!r} ({error.strerror})", advice)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = "start the broker, check host and port, and the firewalls between"
        return Finding("broker", "problem", f"nothing answers at {url} ({why})", advice)
    answers = f"the proxy {url.proxy} of {url}" if url.proxy else str(url)
    return Finding("broker", "ok", f"{answers} ({address}) answers in {1e3 * took:.0f} ms")


def _distrusted(error: Exception) -> Finding:
    if not isinstance(error, CertificateRefused):
        return Finding("tls", "problem", str(error), "check the port: is TLS spoken there, and the TLS files")
    if error.code:
        return Finding("tls", "problem", str(error), _TLS_ADVICE.get(error.code, _NO_AUTHORITY))
    return Finding("tls", "problem", str(error), "check the port: is TLS spoken there?")


def _trusted(peer: PeerCertificate, now: float) -> Finding:
    days = (peer.ends - now) / DAY_S
    text = f"{peer.protocol}, certificate of {peer.subject} by {peer.issuer}, {days:.0f} days left"
    if peer.ends - now < SOON_S:
        return Finding("tls", "missing", text, "on the broker: `device-runtime broker renew DIR`")
    return Finding("tls", "ok", text)


def _inside(connection: Connection, now: float, peer: PeerCertificate | None) -> Iterator[Finding]:
    """Uses a connection of its own: the running device, if any, keeps its connection."""
    name = connection.name
    filters = (f"{TO_ALL}#", topics.up("+", "state"), topics.up(name, "trial"))
    try:
        trial = AccessTrial(connection.url, f"{connection.client_id}-doctor", filters)
    except BrokerRefused as error:
        advice = "enrol the device anew (`device add NAME --again`), or check user and password in the URL"
        yield Finding("credentials", "problem", str(error), advice)
        return
    except BrokerError as error:
        yield Finding("credentials", "problem", str(error), "check that an MQTT broker listens there")
        return
    with closing(trial):
        user = connection.url.user
        who = f"user {user!r}" if user else "a client without a name"
        yield Finding("credentials", "ok", f"{who} is let in")
        yield _writing(trial, name)
        yield _fence(trial, connection)
        yield _limit(trial, name)
        messages = trial.hear(0.0)
    offers = [message for message in messages if message.topic.startswith(TO_ALL) and message.payload]
    if not offers:
        yield Finding("offer", "missing", "no aggregator has offered anything here yet", "start `serve`")
    yield from _all_offered(connection, offers)
    yield _clock(connection, now, peer, _issued(offers))


def _writing(trial: AccessTrial, name: str) -> Finding:
    answer = trial.publish(topics.up(name, "trial"), b"")
    if not answer.is_accepted:
        advice = (
            f"give it `pattern write {topics.up('%u', 'LEAF')}` for each of {', '.join(topics.UP)} (`broker "
            "upgrade DIR` writes them), and let the user name be the device's name"
        )
        text = f"may not write below {topics.up(name, '')} ({answer.reason})"
        return Finding("own branch", "problem", text, advice)
    if not answer.is_known:
        return Finding("own branch", "ok", "written to; whether it arrived, MQTT 3.1.1 does not say")
    return Finding("own branch", "ok", f"may write below {topics.up(name, '')}")


def _fence(trial: AccessTrial, connection: Connection) -> Finding:
    """Whether the device is kept from others' branches and from the aggregator's topics to all."""
    name = connection.name
    tried = (topics.up(NOBODY, "trial"), topics.down(NOBODY, "trial"), f"{TO_ALL}trial")
    answers = [(topic, trial.publish(topic, b"")) for topic in tried]
    open_to = [f"write {topic}" for topic, answer in answers if answer.is_accepted and answer.is_known]
    trial.publish(topics.up(name, "trial"), b"echo")
    messages = trial.hear(LISTEN_S)
    for message in messages:
        if message.topic.startswith(f"{TO_ALL}round"):
            trial.inbox.put(message)  # it is looked at later
        elif message.topic != topics.up(name, "state"):
            open_to.append(f"read {message.topic}")
    if open_to:
        state: State = "missing" if connection.url.loopback else "problem"
        text = f"this device may {', '.join(sorted(set(open_to)))}"
        return Finding("access list", state, text, "give the broker the access list of `broker init`")
    if not all(answer.is_known for _, answer in answers):
        return Finding("access list", "missing", "reads no other's; of writing MQTT 3.1.1 does not say")
    return Finding("access list", "ok", "kept from the branches of others, and from speaking to all")


def _limit(trial: AccessTrial, name: str) -> Finding:
    """Whether the broker's packets are large enough. Smaller ones than our messages are no problem."""
    topic = topics.up(name, "trial")
    answer = trial.publish(topic, bytes(MESSAGE_LIMIT))
    size = f"{MESSAGE_LIMIT // 1024} KiB in one message"
    if answer.is_accepted and not answer.is_known:
        return Finding("packet limit", "missing", f"{size} are taken, or dropped silently (MQTT 3.1.1)")
    if answer.is_accepted:
        return Finding("packet limit", "ok", f"{size} are taken")
    try:
        most = trial.largest_packet(topic, _PACKETS)
    except BrokerError as error:
        return Finding("packet limit", "problem", f"{size} are refused, and then: {error}")
    advice = f"raise it; Mosquitto: `message_size_limit {2 * MESSAGE_LIMIT}`, `max_packet_size` of none"
    if most < SMALLEST:
        detail = f"packets of {SMALLEST} bytes are refused ({answer.reason})"
        return Finding("packet limit", "problem", detail, advice)
    detail = f"packets of {most} bytes are taken, larger messages go in pieces"
    if most < OFFER_BYTES:
        return Finding("packet limit", "missing", f"{detail}; an offer of many kinds may not pass", advice)
    return Finding("packet limit", "ok", detail)


def _all_offered(connection: Connection, offers: list[Received]) -> list[Finding]:
    """Findings of all offers. A refused offer is no problem if another is accepted.

    It may be of a task that was over before the aggregator's key changed.
    """
    findings = [_offered(connection, message) for message in offers]
    if any(finding.state == "ok" for finding in findings):
        return [replace(f, state="missing") if f.state == "problem" else f for f in findings]
    return findings


def _offered(connection: Connection, message: Received) -> Finding:
    try:
        offer = Trust(connection.key).offer(message.topic, message.payload)
    except MessageError as error:
        advice = "is it the aggregator that the device was enrolled by? Serve with its --enrolment"
        return Finding("offer", "problem", str(error), advice)
    where = (
        "is done" if offer.done else f"is in round {offer.round}" if offer.round else "gathers its devices"
    )
    signed = ", signed by the aggregator of the enrolment" if connection.key else ""
    newer = update_advice(offer.version)
    return Finding("offer", "ok", f"{task_title(offer.task, offer.title)} {where}{signed}", newer)


def _issued(offers: list[Received]) -> int:
    """When the latest offer was issued; 0 if none is signed."""
    moments = [0]
    for message in offers:
        with suppress(MessageError):
            moments.append(decode(message.payload, Signed).issued)
    return max(moments)


def _clock(connection: Connection, now: float, peer: PeerCertificate | None, offered: int) -> Finding:
    """Whether the clock is behind: no message can be of a later time than now."""
    at = {"the offer": offered, "the enrolment": connection.enrolment.issued if connection.enrolment else 0}
    if peer is not None:
        at["the broker's certificate"] = int(peer.begins)
    what = max(at, key=lambda source: at[source])
    day = datetime.fromtimestamp(now, timezone.utc)
    if at[what] - now > SKEW_S:
        late = datetime.fromtimestamp(at[what], timezone.utc)
        text = f"{day:%Y-%m-%d %H:%M} UTC, but {what} is of {late:%Y-%m-%d %H:%M}: it is behind"
        return Finding("clock", "missing" if peer else "problem", text, _SET_CLOCK)
    if not at[what]:
        return Finding("clock", "ok", f"{day:%Y-%m-%d %H:%M} UTC; there is nothing to hold it against")
    return Finding("clock", "ok", f"{day:%Y-%m-%d %H:%M} UTC, not behind {what}")
