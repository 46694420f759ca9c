"""What comes on the topics of offers, and the offers that it stands for."""

import msgspec
import pytest

from device_runtime.broker.security.signing import NotTrusted, Signer
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.compact_round import CompactOffer, UnknownRoundBefore
from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import (
    RELEASE,
    Base,
    Blob,
    Hello,
    MessageError,
    Offer,
    Step,
    decode,
    encode,
)
from device_runtime.broker.wire.topics import down
from device_runtime.broker.wire.topics import offer as topic_of
from device_runtime.device.agent.agent import Agent
from device_runtime.device.connection.offers import TASKS, OfferStream, update_advice
from device_runtime.device.connection.trust import Trust
from device_runtime.device.training.settings import Settings

SIGNER, OTHER = Signer(bytes(32)), Signer(bytes([1]) * 32)
BLOB = Blob(bytes(range(32)), 310_000)
STEP = Step(1, "philox/1", steps.round_seed(5, 1), "all", 0.01, 1.0, (0.5, -1.25))
TOPIC, MINE = topic_of("t"), down("a", "n")


def offer(number=2, task="t", run="r", **changes):
    base = Base((BLOB,), bytes(32), bytes(8), steps=1, at=1, tail=steps.pack([STEP], 5))
    usual = Offer(
        task=task, run=run, round=number, seed=steps.round_seed(5, number), deadline_s=20.0, remaining_s=5.0,
        bundle=BLOB, base=base, kinds=(),
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)


def after(number=3, over=False):
    return small.encode_offer(CompactOffer(number, b"abcd", over, (1.0, 2.0)))


def test_a_round_is_followed_from_the_offer_of_the_one_before():
    following = OfferStream(Trust())
    assert following.offer(TOPIC, encode(offer())) == offer()
    assert not following.over
    third = following.offer(TOPIC, after(3, over=True))
    assert (third.round, third.base.at, third.base.sha, following.over) == (3, 2, b"abcd", True)
    assert following.offer(TOPIC, after(4)).base.at == 3
    assert not following.over


def test_who_has_missed_a_round_asks_and_goes_on_from_the_answer():
    following = OfferStream(Trust())
    following.offer(TOPIC, encode(offer()))
    for _ in range(2):
        with pytest.raises(UnknownRoundBefore):
            following.offer(TOPIC, after(5))
    following.offer("fl/v1/d/a/dn/task", encode(offer(5)))
    assert following.offer(TOPIC, after(6)).round == 6


def test_what_was_heard_of_before_changes_nothing():
    following = OfferStream(Trust())
    following.offer(TOPIC, encode(offer(3)))
    with pytest.raises(MessageError, match="round 3 of 't' was heard of before"):
        following.offer(TOPIC, after(3))
    assert following.offer(TOPIC, after(4)).round == 4


def test_a_retained_offer_of_earlier_does_not_lead_back():
    following = OfferStream(Trust())
    following.offer(TOPIC, encode(offer(3)))
    following.offer(TOPIC, encode(offer(1)), retained=True)
    assert following.offer(TOPIC, after(4)).round == 4


def test_each_task_is_followed_by_itself_and_only_so_many():
    following = OfferStream(Trust())
    for number in range(TASKS + 1):
        following.offer(topic_of(f"t{number}"), encode(offer(task=f"t{number}")))
    assert following.offer(topic_of("t1"), after()).task == "t1"
    with pytest.raises(UnknownRoundBefore):
        following.offer(topic_of("t0"), after())


def next_offer(trust, by=SIGNER, topic=MINE, run="r", number=3):
    """A next round with the MAC for a device that has sent this key."""
    payload = after(number)
    return small.with_mac(payload, by.agree(trust.key).mac(topic, run, payload))


def test_an_enrolled_device_follows_nobody_else():
    trust, before = Trust(SIGNER.public), Trust(SIGNER.public)
    following = OfferStream(trust)
    following.offer(TOPIC, SIGNER.seal(TOPIC, offer(), 7))
    wrong = [
        (TOPIC, after()),
        (MINE, after()),
        (MINE, next_offer(trust, OTHER)),
        (MINE, next_offer(trust, run="another run")),
        (MINE, next_offer(trust, topic="fl/v1/d/b/dn/n")),
        (MINE, next_offer(before)),
        (MINE, next_offer(trust)[:-1] + b"?"),
        (TOPIC, next_offer(trust)),
    ]
    for topic, payload in wrong:
        with pytest.raises(NotTrusted, match=f"next round on {topic} refused"):
            following.offer(topic, payload, task="t")
    assert following.offer(MINE, next_offer(trust), task="t").round == 3
    with pytest.raises(MessageError, match="round 3 of 't' was heard of before"):
        following.offer(MINE, next_offer(trust), task="t")
    with pytest.raises(MessageError, match="retained offer on .*dn/n"):
        following.offer(MINE, next_offer(trust, number=4), retained=True, task="t")
    with pytest.raises(MessageError, match="round 2 refused: round 3 of this run was offered before"):
        following.offer(TOPIC, SIGNER.seal(TOPIC, offer(), 7))


def test_what_the_broker_kept_from_before_is_no_alarm_but_leads_nowhere():
    trust = Trust(SIGNER.public)
    trust.offer(TOPIC, SIGNER.seal(TOPIC, offer(5), 7))
    old = SIGNER.seal(TOPIC, offer(2), 7)
    assert trust.offer(TOPIC, old, retained=True).round == 2
    ended = SIGNER.seal(TOPIC, offer(2, done=True), 7)
    for payload, retained in ((old, False), (ended, True)):
        with pytest.raises(MessageError, match="round 2 refused"):
            trust.offer(TOPIC, payload, retained)


@pytest.mark.parametrize("key", [b"", SIGNER.public], ids=["any", "enrolled"])
def test_what_is_kept_on_a_topic_of_one_device_is_dropped(key):
    """Else whoever has the broker could offer a device an earlier round again."""
    topic = "fl/v1/d/a/dn/task"
    following = OfferStream(Trust(key))
    following.offer(topic, SIGNER.seal(topic, offer(5), 7))
    with pytest.raises(MessageError, match="retained offer on .*dn/task"):
        following.offer(topic, SIGNER.seal(topic, offer(2), 7), retained=True)


class Line:
    """Keeps what is published."""

    url = "a test"

    def __init__(self):
        self.sent = []

    def publish(self, topic, payload, retain=False):
        self.sent.append((topic, payload))
        return True

    def unacknowledged(self, topic=""):
        return 0


def test_an_enrolled_device_says_a_key_in_its_hello_and_takes_the_next_round_that_has_its_word(tmp_path):
    settings = Settings("a", tmp_path / "none.npz", tmp_path, aggregator=SIGNER.public)
    agent, line = Agent(settings, 1, lambda: 0.0), Line()
    agent.begin(line)
    agent.hello()
    [hello] = [decode(payload, Hello) for topic, payload in line.sent if topic.endswith("hello")]
    task = down("a", "task")
    payload = after(3)
    for mac, expected in ((bytes(8), 2), (SIGNER.agree(hello.key).mac(MINE, "r", payload), 3)):
        agent.inbox.put(Received(task, SIGNER.seal(task, offer(), 7)))
        agent.inbox.put(Received(MINE, small.with_mac(payload, mac)))
        for _ in range(2):
            agent.step()
        assert agent.runner.state.open.round == expected


def test_two_lives_of_a_device_say_different_keys_and_one_that_is_not_enrolled_none():
    first, other = (Trust(SIGNER.public).key for _ in range(2))
    assert first != other
    assert (len(first), len(other), Trust().key) == (32, 32, b"")


def test_a_device_is_told_once_what_brings_it_to_the_version_of_a_newer_aggregator(caplog, tmp_path):
    agent = Agent(Settings("a", tmp_path / "none.npz", tmp_path), 1, lambda: 0.0)
    agent.begin(Line())
    for number, version in enumerate(("0.1.0", "99.1.0", "99.1.0", "", "\x1b[31m9.9", "0.0.9"), 1):
        agent._receive(Received(TOPIC, encode(offer(number, version=version))), 0.0)
    lines = [record.message for record in caplog.records if "the aggregator runs" in record.message]
    [line] = lines
    assert line.startswith(f"the aggregator runs device-runtime 99.1.0, this device {RELEASE}: with")
    assert "-m pip install device_runtime-99.1.0-py3-none-any.whl`" in line


def test_versions_are_compared_by_their_numbers():
    assert update_advice("0.10.0") and update_advice("1.0")
    assert not any(map(update_advice, (RELEASE, "0.0.99", "", "newest", "1.0; rm -rf /", "1" * 30)))
