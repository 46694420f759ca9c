"""Which contributions go in few bytes, and how their receipts are taken."""

import logging

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire.messages import Contribution, Mask, Metrics, Receipt, decode
from device_runtime.broker.wire.topics import up
from device_runtime.device.connection.presence import DeviceMessages
from device_runtime.device.delivery.sending import ContributionSender, Outbox
from device_runtime.models.bundles.tensors import encode

BOOT = 7


class Line:
    """A link that remembers what was sent whole, and what in few bytes."""

    def __init__(self):
        self.sent = []

    def publish(self, topic, payload, retain=False):
        self.sent.append((topic.rsplit("/", 1)[-1], payload))
        return True

    def unacknowledged(self, topic=""):
        return 0

    @property
    def leaves(self):
        return [leaf for leaf, _ in self.sent]


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def sending(line, tmp_path):
    messages = DeviceMessages("a", BOOT)
    messages.link = line
    return ContributionSender(Outbox(tmp_path), messages)


def give(sending, number, kind="zeroth-order", **changes):
    body = encode({"g": np.array([number, -1.5], np.float32)})
    usual = Contribution(
        task="t", run="r", round=number, boot=0, seq=0, kind=kind, num_examples=4,
        metrics=Metrics(0.5, 10, 20, 30), body=body,
    )  # fmt: skip
    message = sending.keep(msgspec.structs.replace(usual, **changes))
    sending.send(message.seq, first=True)
    return message


def receive(sending, message, status="accepted", seq=None):
    seq = message.seq if seq is None else seq
    receipt = Receipt(boot=BOOT, seq=seq, round=message.round, status=status)
    named = sending.outbox.named(receipt)
    if named is not None:
        sending.settle(named.seq, receipt)


def test_what_is_like_one_that_was_counted_goes_in_few_bytes(sending, line):
    first = give(sending, 1)
    receive(sending, first)
    second = give(sending, 2)
    assert line.leaves == ["contribution", "c"]
    assert small.full_contribution(line.sent[1][1], first) == msgspec.structs.replace(second, seq=0)


@pytest.mark.parametrize("status", ["late", "refused", None])
def test_what_was_not_counted_is_nothing_to_be_like(sending, line, status):
    first = give(sending, 1)
    if status:
        receive(sending, first, status)
    give(sending, 2)
    assert line.leaves == ["contribution", "contribution"]


def test_another_one_goes_whole_and_is_what_the_next_are_like(sending, line):
    receive(sending, give(sending, 1))
    other = give(sending, 2, num_examples=5)
    give(sending, 3, num_examples=5)  # no receipt yet
    receive(sending, other)
    assert line.leaves == ["contribution"] * 3
    give(sending, 4, num_examples=5)
    assert line.leaves[-1] == "contribution"  # the third was sent after it
    assert len(sending.outbox) == 2


def test_a_masked_update_goes_whole(sending, line):
    mask = Mask(key=b"\x01" * 32, tags=(b"\x02" * 16,))
    receive(sending, give(sending, 1, mask=mask))
    receive(sending, give(sending, 2, mask=mask))
    give(sending, 3)
    assert line.leaves == ["contribution"] * 3


def test_an_update_with_a_codec_goes_whole(sending, line):
    receive(sending, give(sending, 1, kind="few-shot"))
    give(sending, 2, kind="few-shot")
    assert line.leaves == ["contribution", "contribution"]


def test_a_large_update_goes_whole(sending, line):
    body = encode({"g": np.zeros(512, np.float32)})
    receive(sending, give(sending, 1, body=body))
    give(sending, 2, body=body)
    assert line.leaves == ["contribution", "contribution"]


def test_who_listens_after_a_lost_link_may_be_another(sending, line):
    receive(sending, give(sending, 1))
    second = give(sending, 2)
    sending.forget()
    sending.send(second.seq, first=True)
    assert line.leaves == ["contribution", "c", "contribution"]


def test_what_has_no_receipt_is_sent_again_whole(sending, line):
    receive(sending, give(sending, 1))
    second = give(sending, 2)
    sending.send(second.seq, first=False)
    assert decode(line.sent[-1][1], Contribution) == second


def test_a_receipt_of_a_short_one_names_its_round(sending):
    receive(sending, give(sending, 1))
    second = give(sending, 2)
    receive(sending, msgspec.structs.replace(second, round=3), seq=0)
    assert len(sending.outbox) == 1
    receive(sending, second, seq=0)
    assert len(sending.outbox) == 0
    assert sending.outbox.settled == second


def test_a_receipt_of_a_short_one_is_not_that_of_an_older_task_s_round_of_this_number(sending):
    receive(sending, give(sending, 1))
    older = give(sending, 2, task="another", run="another")
    receive(sending, give(sending, 2), seq=0)
    assert list(sending.outbox) == [older]


def test_a_short_one_whose_round_is_over_is_answered_and_one_of_a_task_that_is_done_is_not(sending, tmp_path):
    first, second = give(sending, 1), give(sending, 2)
    sending.close(first.seq, over=True)
    sending.close(second.seq, over=False)
    left = Outbox(tmp_path)
    assert (len(left), left.settled) == (0, first)


def test_a_short_one_goes_on_its_own_topic(line):
    messages = DeviceMessages("pi-0", 1)
    published = []
    line.publish = lambda topic, payload, retain=False: published.append((topic, payload))
    messages.link = line
    messages.short(b"abc", "a run")
    assert published == [(up("pi-0", "c"), b"abc")]


def test_a_receipt_is_told_with_what_of_the_samples_privacy_was_spent(sending, caplog):
    caplog.set_level(logging.INFO)
    for number, spent in ((1, 0), (2, 2616)):
        metrics = Metrics(0.5, 10, 20, 30, epsilon_milli=spent)
        receive(sending, give(sending, number, kind="few-shot", metrics=metrics))
    assert [record.getMessage() for record in caplog.records] == [
        "round 1: few-shot accepted",
        "round 2: few-shot accepted, epsilon 2.62 spent of these samples' privacy",
    ]


def test_what_an_earlier_process_kept_is_sent_in_this_one_s_name(line, tmp_path):
    Outbox(tmp_path).add(
        Contribution(
            task="t", run="r", round=1, boot=3, seq=5, kind="few-shot", num_examples=4,
            metrics=Metrics(0.5, 10, 20, 30), body=b"x",
        )
    )  # fmt: skip
    messages = DeviceMessages("a", BOOT)
    messages.link = line
    sending = ContributionSender(Outbox(tmp_path), messages)
    assert not sending.send(5, first=True)
    assert decode(line.sent[0][1], Contribution).boot == BOOT
    assert Outbox(tmp_path).message(5).boot == BOOT
