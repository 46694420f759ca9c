"""A broker that forges: what comes under the names of enrolled devices counts when they have signed it."""

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.configuration.enrolled import Enrolled, enrolled_devices
from device_runtime.aggregator.delivery.router import Router
from device_runtime.aggregator.intake.check import CheckedMessage
from device_runtime.aggregator.serving.worker_main import check_received
from device_runtime.broker.security import signing
from device_runtime.broker.security.signing import DeviceSigner, Signer
from device_runtime.broker.servers.broker_folder import DEVICES, SITE, BrokerFolder, BrokerSetup
from device_runtime.broker.servers.register import RegisteredDevice
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Hello, Receipt
from device_runtime.device.connection.trust import Trust

KIND = "zeroth-order"
AGGREGATOR = Signer(bytes(range(32)))
KEYS = {name: DeviceSigner(name.encode() * 32) for name in "abc"}


def listed(folder, *entries):
    """As `device add` keeps the list."""
    beside = folder / "new"
    beside.write_bytes(msgspec.json.encode(entries))
    beside.replace(folder / DEVICES)


def entry(name, key=None, **changes):
    key = KEYS[name].public.hex() if key is None else key
    return RegisteredDevice(name=name, enrolled="2026-01-01T00:00:00+00:00", key=key, **changes)


@pytest.fixture
def enrolment(tmp_path):
    folder = tmp_path / "enrolment"
    folder.mkdir()
    (folder / SITE).write_bytes(msgspec.json.encode(BrokerSetup(names=("localhost",))))
    listed(folder, entry("a"), entry("b"), entry("old", key=""))
    return folder


@pytest.fixture
def served(bench, make_task, enrolment):
    """A round that is open to the enrolled devices a and b, who have said hello."""
    enrolled = Enrolled(BrokerFolder(enrolment))
    b = bench(make_task(KIND, rounds=9), agree=AGGREGATOR.agree, devices=enrolled)
    b.trusts = {name: Trust(AGGREGATOR.public, signs=True) for name in "ab"}
    for name in "ab":
        b.say(name, "state", messages.State(boot=1, online=True))
        signed(b, name, "hello", hello_of(b, name))
    return b


def hello_of(b, name):
    about = {"boot": 1, "num_examples": 20, "profile": "pi", "memory_bytes": 2**29, "engine": "onnx"}
    return Hello(**about, key=b.trusts[name].key if name in b.trusts else b"")


def signed(b, name, leaf, message, by=None):
    topic = topics.up(name, leaf)
    b.raw(topic, (by or KEYS[name]).seal(topic, messages.encode(message)))


def scalars(seed=0):
    return {"g": np.random.default_rng(seed).normal(size=2).astype(np.float32)}, 10


def receipts(b, name):
    """Those that the device believes."""
    topic = topics.down(name, "receipt")
    return [b.trusts[name].receipt(topic, payload) for where, payload in b.link.sent if where == topic]


def test_a_broker_that_forges_the_contributions_of_all_devices_moves_nothing(served, caplog):
    """Under names that there are, and under names that there are not; unsigned, or by keys of its own."""
    b, forger = served, DeviceSigner(bytes(32))
    sent = len(b.link.sent)
    for name in ("a", "b", "stranger"):
        lie = b.contribution(KIND, ({"g": np.full(2, 1e6, np.float32)}, 10))
        b.say(name, "contribution", lie)
        signed(b, name, "contribution", lie, forger)
        topic = topics.up(name, "contribution")
        b.raw(topic, KEYS["a"].seal(topics.up("a", "plan"), messages.encode(lie)))
        b.raw(topic, forger.seal(topic, b"rubbish"))
    assert b.service.state.contributions == 0
    assert b.link.sent[sent:] == []  # a refusal would have the devices drop their own
    assert [name for name in ("a", "b", "stranger") if name in caplog.text and "not signed" in caplog.text]
    assert len(caplog.records) == 3  # once for each device, and once for strangers, however many
    for name in "ab":
        signed(b, name, "contribution", b.contribution(KIND, scalars()))
        assert [receipt.status for receipt in receipts(b, name)] == ["accepted"]
    assert b.service.state.round == 2


def test_what_one_device_signed_is_nothing_from_another_or_on_another_topic(served):
    b = served
    topic, lie = topics.up("b", "contribution"), messages.encode(b.contribution(KIND, scalars()))
    b.raw(topic, KEYS["a"].seal(topic, lie))
    b.raw(topic, KEYS["b"].seal(topics.up("b", "hello"), lie))
    b.raw(topic, KEYS["a"].seal(topics.up("a", "contribution"), lie))
    assert b.service.state.contributions == 0


def test_a_contribution_that_is_repeated_counts_once(served):
    b = served
    for _ in range(3):
        signed(b, "a", "contribution", b.contribution(KIND, scalars()))
    assert [receipt.status for receipt in receipts(b, "a")] == ["accepted", "duplicate", "duplicate"]
    assert b.service.state.contributions == 1


def test_a_forged_hello_puts_no_key_of_the_broker_in_place_of_the_device_s(served):
    b = served
    for name in "ab":
        signed(b, name, "contribution", b.contribution(KIND, scalars()))
    own = signing.public_key(bytes(range(1, 33)))
    b.say("a", "hello", msgspec.structs.replace(hello_of(b, "a"), key=own))
    sent = len(b.link.sent)
    for name in "ab":
        signed(b, name, "contribution", b.contribution(KIND, scalars(2), 2))
    message = dict(b.link.sent[sent:])[topics.down("a", "n")]
    assert b.trusts["a"].next(topics.down("a", "n"), b.service.run_id, message).round == 3


def test_contributions_in_few_bytes_count_with_the_word_of_the_device_alone(served, caplog):
    b = served
    like = b.contribution(KIND, scalars(1))
    for name in "ab":
        signed(b, name, "contribution", like)
    short = small.compact_contribution(b.contribution(KIND, scalars(2), 2), like)
    topic, run = topics.up("a", "c"), b.service.run_id
    mac = b.trusts["a"].mac(topic, run, short)
    for forged in (
        short,
        small.with_mac(short, bytes(8)),
        small.with_mac(short, b.trusts["b"].mac(topic, run, short)),
        small.with_mac(short, b.trusts["a"].mac(topic, "another", short)),
        small.with_mac(short[:-1] + b"?", mac),
    ):
        b.raw(topic, forged)
    assert b.service.state.contributions == 0
    assert caplog.text.count("a contribution in few bytes without the MAC of a") == 1
    b.raw(topic, small.with_mac(short, mac))
    assert b.service.state.contributions == 1


def test_a_receipt_that_the_broker_makes_up_ends_nothing_at_the_device(served):
    b = served
    topic = topics.down("a", "receipt")
    signed(b, "a", "contribution", b.contribution(KIND, scalars()))
    [real] = [payload for where, payload in b.link.sent if where == topic]
    assert b.trusts["a"].receipt(topic, real).status == "accepted"
    made_up = messages.encode(Receipt(boot=1, seq=7, round=1, status="accepted"))
    for forged in (made_up, made_up + bytes(8), real[:-1] + b"?", real[8:], b""):
        with pytest.raises(messages.MessageError):
            b.trusts["a"].receipt(topic, forged)


def test_a_device_that_an_earlier_version_enrolled_takes_part_unsigned_and_is_named_at_the_start(
    served, enrolment, caplog
):
    b = served
    b.say("old", "hello", hello_of(b, "old"))
    b.say("old", "contribution", b.contribution(KIND, scalars()))
    assert b.service.state.contributions == 1
    [receipt] = [payload for where, payload in b.link.sent if where == topics.down("old", "receipt")]
    assert messages.decode(receipt, Receipt).status == "accepted"
    enrolled_devices(enrolment)
    assert "1 devices sign nothing, so that the broker could send updates in their names: old" in caplog.text


def test_the_list_of_devices_is_read_again_when_it_changes(served, enrolment):
    b = served
    b.trusts["c"] = Trust(AGGREGATOR.public, signs=True)
    signed(b, "c", "hello", hello_of(b, "c"))
    assert "c" not in b.service.state.devices
    listed(enrolment, entry("a", key=KEYS["c"].public.hex()), entry("b", revoked="now"), entry("c"))
    signed(b, "c", "hello", hello_of(b, "c"))
    assert "c" in b.service.state.devices
    for name in "ab":  # enrolled again with another key, and revoked
        signed(b, name, "contribution", b.contribution(KIND, scalars()))
    assert b.service.state.contributions == 0
    (enrolment / DEVICES).write_text("[")
    signed(b, "c", "contribution", b.contribution(KIND, scalars()))
    assert b.service.state.contributions == 1


def test_a_device_that_is_revoked_is_not_waited_for_once_the_broker_says_that_it_has_gone(served, enrolment):
    b = served
    listed(enrolment, entry("a"), entry("b", revoked="now"))
    signed(b, "a", "contribution", b.contribution(KIND, scalars()))
    assert b.service.state.round == 1
    b.say("b", "state", messages.State(boot=1, online=False, leaving=True))
    assert b.service.state.round == 2


def test_what_the_broker_kept_of_a_stranger_is_cleared(served):
    b, topic = served, topics.up("stranger", "state")
    b.raw(topic, messages.encode(messages.State(boot=1, online=True)), retain=True)
    assert "stranger" not in b.service.state.devices
    assert b.link.retained[topic] == b""


def test_without_the_list_nobody_is_kept_out_and_it_is_said(enrolment, caplog):
    (enrolment / DEVICES).unlink()
    assert enrolled_devices(enrolment) is None
    assert "can send updates in the name of any device" in caplog.text
    assert enrolled_devices(None) is None


def test_without_an_enrolment_signed_messages_are_read_unverified(bench, make_task):
    b = bench(make_task(KIND, rounds=9))
    b.trusts = {}
    signed(b, "a", "hello", hello_of(b, "a"))
    signed(b, "a", "contribution", b.contribution(KIND, scalars()))
    assert b.service.state.round == 2


def test_several_tasks_and_workers_look_into_signed_messages():
    class Inbox(list):
        put = list.append

    inboxes = {"t": Inbox(), "u": Inbox()}
    hello = Hello(boot=1, num_examples=0, profile="", memory_bytes=0, engine="", task="u")
    topic = topics.up("a", "hello")
    event = Received(topic, KEYS["a"].seal(topic, messages.encode(hello)))
    Router(inboxes).route(event)
    assert (inboxes["t"], inboxes["u"]) == ([], [event])

    class Looks:
        def refusal(self, message):
            return f"round {message.round}"

    metrics = messages.Metrics(0.0, 0, 0, 0)
    about = {"task": "t", "run": "r", "round": 7, "boot": 1, "seq": 1, "num_examples": 1, "metrics": metrics}
    topic, message = topics.up("a", "contribution"), messages.Contribution(**about, kind=KIND)
    event = Received(topic, KEYS["a"].seal(topic, messages.encode(message)))
    assert check_received(event, {"t": Looks()}) == CheckedMessage(
        event.topic, event.payload, False, "round 7"
    )
