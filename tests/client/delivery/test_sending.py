"""When a contribution is sent, and when it is sent again."""

import logging

import pytest

from device_runtime.broker.wire.messages import Contribution, Metrics, Receipt, decode
from device_runtime.broker.wire.topics import up
from device_runtime.client.connection.presence import DeviceMessages
from device_runtime.client.delivery.outbox import Outbox
from device_runtime.client.delivery.sending import ContributionSender

BOOT = 7


class Line:
    """A link whose broker acknowledges when it is told to."""

    def __init__(self):
        self.published = []
        self.waiting = []

    def publish(self, topic, payload, retain=False):
        self.published.append(decode(payload, Contribution))
        self.waiting.append(topic)
        return True

    def unacknowledged(self, topic=""):
        return sum(topic in ("", one) for one in self.waiting)

    @property
    def rounds(self):
        return [message.round for message in self.published]


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def sending(line, tmp_path):
    messages = DeviceMessages("a", BOOT)
    messages.link = line
    return ContributionSender(Outbox(tmp_path), messages)


def keep(sending, number=1, epsilon_milli=0):
    metrics = Metrics(0.5, 10, 20, 30, epsilon_milli)
    given = {"task": "t", "run": "r", "kind": "few-shot", "num_examples": 4, "metrics": metrics, "body": b"x"}
    return sending.keep(Contribution(round=number, boot=0, seq=0, **given))


def receipt(message, number=None):
    return Receipt(boot=BOOT, seq=message.seq, round=number or message.round, status="accepted")


def sent_at(sending, line, until_s):
    """Seconds at which something was sent, of a look at each."""
    moments = []
    for now in range(until_s):
        before = len(line.published)
        sending.due(float(now))
        moments += [now] * (len(line.published) - before)
        line.waiting.clear()
    return moments


def test_what_has_no_receipt_is_sent_again_after_waits_that_double_up_to_a_minute(sending, line):
    keep(sending)
    assert sent_at(sending, line, 200) == [0, 10, 30, 70, 130, 190]


def test_what_is_still_on_its_way_to_the_broker_is_not_sent_again(sending, line):
    keep(sending)
    for now in range(300):
        sending.due(float(now))
    assert line.rounds == [1]
    line.waiting.clear()  # it has arrived, 299 s after it was sent: the silence begins
    sending.due(308.0)
    assert line.rounds == [1]
    sending.due(309.0)
    assert line.rounds == [1, 1]


def test_while_its_content_goes_up_an_announcement_is_not_repeated(sending, line):
    keep(sending)
    sending.due(0.0)
    line.waiting[:] = [up("a", "block")]
    sending.due(60.0)
    assert line.rounds == [1]


def test_after_a_lost_session_what_the_broker_had_goes_again_and_the_link_brings_the_rest(sending, line):
    keep(sending, 1)
    sending.due(0.0)
    line.waiting.clear()  # the broker has round 1's, but maybe nobody else
    keep(sending, 2)
    sending.due(1.0)
    sending.restart()
    sending.due(1.0)
    assert line.rounds == [1, 2, 1]
    sending.restart()  # now both are on their way
    sending.due(1.0)
    assert line.rounds == [1, 2, 1]


def test_after_a_lost_session_waits_are_short_again(sending, line):
    keep(sending)
    sent_at(sending, line, 71)
    sending.restart()
    line.published.clear()
    assert sent_at(sending, line, 40) == [0, 10, 30]


def test_what_is_put_off_goes_again_when_the_aggregator_said_and_is_not_settled(sending, line, caplog):
    message = keep(sending)
    sending.due(0.0)
    line.waiting.clear()
    full = Receipt(boot=BOOT, seq=message.seq, round=1, status="refused", reason="full", retry_after_s=100)
    assert sending.settle(full, 5.0) == (0, 0.0)
    assert sending.outbox.answering(full) is None
    assert caplog.messages == ["round 1: few-shot again in 100 s: full"]
    sending.due(104.0)
    assert line.rounds == [1]
    sending.due(105.0)
    assert line.rounds == [1, 1]
    assert len(sending.outbox) == 1
    sending.settle(receipt(message), 106.0)
    assert len(sending.outbox) == 0
    sending.settle(full, 107.0)  # of one that is settled


def test_a_transfer_is_timed_from_its_first_announcement(sending, line):
    message = keep(sending)
    assert sent_at(sending, line, 12) == [0, 10]
    assert sending.settle(receipt(message), 12.0) == (0, 12.0)
    assert sending.settle(receipt(message), 13.0) == (0, 0.0)


def test_a_receipt_is_told_with_what_of_the_samples_privacy_was_spent(sending, caplog):
    caplog.set_level(logging.INFO)
    for number, spent in ((1, 0), (2, 2616)):
        sending.settle(receipt(keep(sending, number, spent)), 1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "round 1: few-shot accepted",
        "round 2: few-shot accepted, epsilon 2.62 spent of these samples' privacy",
    ]
