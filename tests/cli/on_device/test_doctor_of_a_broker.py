"""What `doctor` finds between a device and its rounds, each failure with what to do about it."""

import argparse
import queue
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.security.signing import Signer
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.brokers import start
from device_runtime.broker.servers.production import issue, make_authority
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.broker.wire.url import TLS, BrokerUrl
from device_runtime.device.connection.connecting import Connection, connect
from device_runtime.device.doctor import connection as examining_broker
from device_runtime.device.doctor.connection import DAY_S, _all_offered, examine
from tests.network import Proxy

needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
NOW = datetime.now(timezone.utc)
USERS = {"pi-1": "one", "aggregator": "all"}
SIGNER = Signer(bytes(range(32)))
AUTHORITY = make_authority("device-runtime", NOW, 100)


def findings_of(connection, now=None):
    return {finding.what: finding for finding in examine(connection, now or time.time())}


def plain(url, user="pi-1", password="one", key=b""):  # noqa: S107 - of a test
    return Connection(
        replace(BrokerUrl.parse(url), user=user, password=password), "pi-1", Path(), "pi-1", key
    )


def secure(broker, host="127.0.0.1", authority=AUTHORITY):
    url = BrokerUrl(host, broker.port, True, "pi-1", "one", tls=TLS(authority=authority.certificate))
    return Connection(url, "pi-1", Path(), "pi-1")


@pytest.fixture
def running(tmp_path):
    """Starts brokers; with `names` they have a certificate of `days`."""
    brokers = []

    def running(users=USERS, names=(), days=90, kind="auto"):
        tls = None
        if names:
            pair = issue(AUTHORITY, names, NOW, days)
            tls = TLS(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
            tls.cert.write_text(pair.certificate)
            tls.key.write_text(pair.key)
        brokers.append(start(kind, BrokerOptions(users=users, tls=tls)))
        return brokers[-1]

    yield running
    for broker in brokers:
        broker.stop()


def test_what_is_not_there_is_said_with_where_to_look():
    port = find_port(BrokerOptions())
    [_, nothing] = examine(plain(f"mqtt://127.0.0.1:{port}"), 0.0)
    assert (nothing.what, nothing.state) == ("broker", "problem")
    assert f"nothing answers at mqtt://127.0.0.1:{port}" in nothing.found
    assert "firewalls" in nothing.advice


@needs_mosquitto
def test_a_wrong_password_ends_the_examination_with_how_to_enrol_anew(running):
    findings = findings_of(plain(running().url, password="wrong"))
    assert findings["credentials"].state == "problem"
    assert "refused user 'pi-1'" in findings["credentials"].found
    assert "device add NAME --again" in findings["credentials"].advice
    assert "access list" not in findings


@needs_mosquitto
def test_a_fenced_broker_is_sound(running):
    findings = findings_of(plain(running().url))
    for what in ("broker", "tls", "credentials", "own branch", "access list", "packet limit", "clock"):
        assert findings[what].state == "ok", findings[what]
    assert findings["offer"].state == "missing"


@needs_mosquitto
def test_a_device_that_is_not_called_like_its_user_may_not_write_its_branch(running):
    broker = running({"other": "one", "aggregator": "all"})
    findings = findings_of(plain(broker.url, "other"))
    assert findings["own branch"].state == "problem"
    assert "pattern write fl/v1/d/%u/up/LEAF" in findings["own branch"].advice


@needs_mosquitto
def test_a_broker_without_an_access_list_is_found_out(running, monkeypatch):
    connection = plain(running({}).url, None, None)
    finding = findings_of(connection)["access list"]
    assert finding.state == "missing"
    for what in (
        f"write {topics.up(examining_broker.NOBODY, 'trial')}",
        f"read {topics.up('pi-1', 'trial')}",
    ):
        assert what in finding.found
    connection = replace(connection, url=replace(connection.url, insecure=True))
    monkeypatch.setattr(BrokerUrl, "loopback", property(lambda self: False))
    assert findings_of(connection)["access list"].state == "problem"


@pytest.mark.slow
def test_what_amqtt_does_not_tell_is_not_claimed(running):
    findings = findings_of(plain(running(kind="amqtt").url))
    assert findings["credentials"].state == "ok"
    assert "MQTT 3.1.1 does not say" in findings["own branch"].found
    assert findings["packet limit"].state == "missing"


@needs_mosquitto
@pytest.mark.parametrize(
    ("line", "state", "message"),
    [
        ("message_size_limit 500", "problem", "packets of 1024 bytes are refused"),
        ("max_packet_size 4096", "missing", "packets of 4096 bytes are taken"),
        ("max_packet_size 16384", "ok", "packets of 16384 bytes are taken, larger messages go in pieces"),
        ("message_size_limit 131072", "ok", "packets of 131072 bytes are taken"),
    ],
)
def test_a_packet_limit_is_a_problem_only_where_nothing_can_pass(running, monkeypatch, line, state, message):
    monkeypatch.setattr(mosquitto, "LIMITS", (line,))
    finding = findings_of(plain(running().url))["packet limit"]
    assert (finding.state, message in finding.found) == (state, True), finding
    assert ("message_size_limit 524288" in finding.advice) == (state != "ok")


@needs_mosquitto
@pytest.mark.parametrize("limit", [16_384, pytest.param(131_072, marks=pytest.mark.slow)])
def test_a_limit_that_a_broker_of_mqtt_3_does_not_state_is_found_by_trying(running, monkeypatch, limit):
    """Behind a proxy that ends the connection at larger packets, and that does not know MQTT 5."""
    proxy = Proxy(running().url)
    try:
        proxy.packet_limit = limit
        finding = findings_of(plain(proxy.url))["packet limit"]
    finally:
        proxy.close()
    assert (finding.state, f"packets of {limit} bytes are taken" in finding.found) == ("ok", True), finding


@needs_mosquitto
@pytest.mark.parametrize("days, state", [(90, "ok"), (20, "missing")])
def test_a_certificate_that_ends_soon_is_worth_a_word(running, days, state):
    findings = findings_of(secure(running(names=("127.0.0.1",), days=days)))
    assert findings["tls"].state == state
    assert ("renew" in findings["tls"].advice) == (state == "missing")
    assert findings["credentials"].state == "ok"


@needs_mosquitto
@pytest.mark.parametrize(
    "host, names, authority, message, advice",
    [
        ("127.0.0.1", ("192.0.2.1",), AUTHORITY, "IP address mismatch", "broker init --name ADDRESS"),
        ("localhost", ("192.0.2.1",), AUTHORITY, "Hostname mismatch", "broker init --name HOST"),
        (
            "127.0.0.1",
            ("127.0.0.1",),
            make_authority("x", NOW, 9),
            "issuer certificate",
            "with --ca, or enrol",
        ),
    ],
)
def test_why_a_certificate_is_not_believed_is_told_apart(running, host, names, authority, message, advice):
    findings = findings_of(secure(running(names=names), host, authority))
    assert findings["tls"].state == "problem"
    assert message in findings["tls"].found
    assert advice in findings["tls"].advice
    assert "credentials" not in findings


@needs_mosquitto
def test_an_expired_certificate_and_one_that_is_yet_to_begin_have_their_own_advice(running, monkeypatch):
    for days, code, advice in (
        (-3, "certificate has expired", "renew DIR"),
        (3, "not yet valid", "set the clock"),
    ):
        moment = datetime.fromtimestamp(NOW.timestamp() + days * DAY_S, timezone.utc)
        with monkeypatch.context() as patched:
            patched.setitem(globals(), "NOW", moment)
            finding = findings_of(secure(running(names=("127.0.0.1",), days=1)))["tls"]
        assert (finding.state, code in finding.found, advice in finding.advice) == ("problem", True, True)


@needs_mosquitto
def test_tls_where_there_is_none_is_said(running):
    finding = findings_of(secure(running()))["tls"]
    assert (finding.state, "is TLS spoken there" in finding.advice) == ("problem", True)


@needs_mosquitto
@pytest.mark.parametrize("by, state", [(SIGNER, "ok"), (Signer(bytes(32)), "problem")])
def test_whose_offers_there_are(running, by, state):
    broker = running()
    blob = blob_of(b"x")
    offer = Offer(
        task="t", run="r", round=3, seed=1, deadline_s=1.0, remaining_s=1.0, bundle=blob, kinds=(),
        base=Base(checkpoint=(blob,), sha=blob.sha),
    )  # fmt: skip
    topic, issued = f"{topics.ROOT}/all/round/t", int(time.time()) + 4000
    link = Link(plain(broker.url, "aggregator", "all").url, "aggregator", queue.SimpleQueue(), LinkOptions())
    link.connect()
    link.publish(topic, by.seal(topic, offer, issued), retain=True)
    while link.unacknowledged():
        time.sleep(0.01)
    link.close()
    findings = findings_of(plain(broker.url, key=SIGNER.public))
    assert findings["offer"].state == state
    assert ("round 3, signed by the aggregator" in findings["offer"].found) == (state == "ok")
    assert findings["clock"].state == "problem"
    assert "the offer is of" in findings["clock"].found


def test_an_offer_left_by_an_earlier_key_is_no_problem_beside_one_that_is_believed():
    connection, blob = plain("mqtt://127.0.0.1:1", key=SIGNER.public), blob_of(b"x")
    where = {"bundle": blob, "kinds": (), "base": Base(checkpoint=(blob,), sha=blob.sha)}
    offer = Offer(task="t", run="r", round=3, seed=1, deadline_s=1.0, remaining_s=1.0, **where)
    topic = f"{topics.ROOT}/all/round/t"
    by = [Received(topic, signer.seal(topic, offer, 5), True) for signer in (Signer(bytes(32)), SIGNER)]
    assert [finding.state for finding in _all_offered(connection, by)] == ["missing", "ok"]
    assert [finding.state for finding in _all_offered(connection, by[:1])] == ["problem"]


def test_an_enrolment_that_others_can_read_is_a_problem(tmp_path):
    port = find_port(BrokerOptions())
    enrolment = Enrolment(f"mqtts://127.0.0.1:{port}", "pi-1", "secret", b"der", bytes(32), 5, bytes(32))
    enrolment.save(tmp_path)
    options = argparse.Namespace(
        broker=None, name=None, state=tmp_path, ca=None, cert=None, key=None, insecure=False
    )
    assert findings_of(connect(options))["enrolment"].state == "ok"
    (tmp_path / "enrolment.json").chmod(0o644)
    finding = findings_of(connect(options))["enrolment"]
    assert (finding.state, finding.advice) == ("problem", f"chmod 600 {tmp_path / 'enrolment.json'}")


def test_a_device_without_a_key_of_its_own_is_told_what_the_broker_could_do(tmp_path):
    url = f"mqtts://127.0.0.1:{find_port(BrokerOptions())}"
    flags = {"broker": None, "name": None, "ca": None, "cert": None, "key": None, "insecure": False}
    for secret, state in ((bytes(32), "ok"), (b"", "missing")):
        Enrolment(url, "pi-1", "secret", b"der", bytes(32), 5, secret).save(tmp_path)
        finding = findings_of(connect(argparse.Namespace(**flags, state=tmp_path)))["enrolment"]
        assert finding.state == state
        assert ("whoever runs the broker can send updates in its name" in finding.found) == (not secret)
    assert "device add pi-1 --again" in finding.advice
    flags["broker"] = "mqtt://127.0.0.1:1"
    finding = findings_of(connect(argparse.Namespace(**flags, state=tmp_path / "none")))["enrolment"]
    assert "whoever runs the broker can send updates in its name" in finding.found
