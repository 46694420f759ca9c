"""What is said, and what is left out where the link is slow."""

import pytest

from device_runtime.broker.wire.blobs import BLOCK, Blobs, blob_of
from device_runtime.broker.wire.link_events import packet_bytes
from device_runtime.broker.wire.messages import Get, Hello, Plan, State, decode
from device_runtime.broker.wire.topics import block, parse, up
from device_runtime.device.connection.presence import DeviceMessages

REASONS = (
    "full needs 30.0 s and has 2.7 s (mostly on the link)",
    "few-shot needs 9.6 s and has 2.7 s (mostly on the link)",
    "x given up: too late",
)


class Line:
    def __init__(self):
        self.published = []
        self.waiting = set()

    def publish(self, topic, payload, retain=False):
        self.published.append((topic, payload))
        return True

    def unacknowledged(self, topic=""):
        return len(self.waiting) if not topic else int(topic in self.waiting)

    @property
    def plans(self):
        return [decode(payload, Plan) for topic, payload in self.published if parse(topic).leaf == "plan"]

    @property
    def plan_bytes(self):
        return [packet_bytes(*packet) for packet in self.published if parse(packet[0]).leaf == "plan"]


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def messages(line):
    messages = DeviceMessages("a", 7)
    messages.link = line
    return messages


def plan(kind="zeroth-order", number=1, reasons=REASONS):
    return Plan(
        task="t", round=number, kind=kind, seconds=1.0, memory_bytes=10, energy_j=2.0, reasons=reasons
    )


def size(reasons):
    line = Line()
    messages = DeviceMessages("a", 7)
    messages.link = line
    messages.plan(plan(reasons=reasons), float("inf"))
    return line.plan_bytes[0]


def test_presence_is_told_in_the_name_of_this_life(messages):
    for online in (True, False):
        will = messages.presence(online)
        assert (will.topic, will.retain) == (up("a", "state"), True)
        assert decode(will.payload, State) == State(boot=7, online=online)


def test_a_plan_is_told_when_it_is_another_than_the_last_or_the_device_sits_out(messages, line):
    messages.plan(plan(), 1e6)
    messages.plan(plan(number=2), 1e6)
    messages.plan(plan(number=3, reasons=REASONS[:1]), 1e6)
    messages.plan(plan("", 4), 1e6)
    messages.plan(plan("", 5), 1e6)
    assert [(plan_.round, plan_.reasons) for plan_ in line.plans] == [
        (1, REASONS), (3, REASONS[:1]), (4, REASONS), (5, REASONS)
    ]  # fmt: skip


def test_after_a_hello_the_same_plan_is_told_anew(messages, line):
    messages.plan(plan(), 1e6)
    messages.hello(Hello(boot=7, num_examples=1, profile="", memory_bytes=0, engine=""))
    messages.plan(plan(), 1e6)
    assert len(line.plans) == 2


@pytest.mark.parametrize("count", [2, 1, 0])
def test_reasons_for_which_the_update_would_have_to_wait_too_long_are_left_out(messages, line, count):
    reasons = (*REASONS[:count], "...")
    messages.plan(plan(), size(reasons))
    assert [plan_.reasons for plan_ in line.plans] == [reasons]
    messages.plan(plan(number=2), size(reasons))  # nor are they repeated in each round
    assert len(line.plans) == 1


def test_a_plan_that_leaves_no_time_for_its_update_is_not_told(messages, line):
    messages.plan(plan(), size(("...",)) - 1)
    messages.plan(plan(reasons=()), size(()) - 1)
    assert line.plans == []
    messages.plan(plan(number=2), 1e6)  # there is time now
    assert [(plan_.round, plan_.reasons) for plan_ in line.plans] == [(2, REASONS)]


def test_who_sits_out_says_all(messages, line):
    messages.plan(plan(""), 0.0)
    assert [plan_.reasons for plan_ in line.plans] == [REASONS]


def test_a_block_that_is_still_on_its_way_is_not_sent_twice(messages, line, tmp_path):
    blobs = Blobs(tmp_path)
    blob = blobs.put(bytes(2 * BLOCK) + b"end")
    topics = [up("a", block(blob.sha, index)) for index in range(3)]
    line.waiting.add(topics[1])
    messages.blocks(blobs, Get(blob=blob, blocks=(0, 1, 2)))
    assert [topic for topic, _ in line.published] == [topics[0], topics[2]]
    line.waiting.clear()  # the broker had it, but it was lost after that
    messages.blocks(blobs, Get(blob=blob, blocks=(1,)))
    assert [topic for topic, _ in line.published][2:] == [topics[1]]
    assert blob == blob_of(bytes(2 * BLOCK) + b"end")
