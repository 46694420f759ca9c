"""Several tasks on one link: who is told what."""

import logging
import queue

import pytest

from device_runtime.aggregator.delivery.router import MOST_BLOBS, HostedTasks, Router
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Connected, Disconnected, Received
from device_runtime.broker.wire.messages import (
    Blob,
    Contribution,
    Get,
    Hello,
    Metrics,
    Plan,
    State,
    decode,
    encode,
)


def hello(device, task="", boot=1, retain=False):
    message = Hello(boot=boot, num_examples=5, profile="", memory_bytes=0, engine="", task=task)
    return Received(topics.up(device, "hello"), encode(message), retain)


def state(device, online=True, boot=1, retain=True):
    return Received(topics.up(device, "state"), encode(State(boot=boot, online=online)), retain)


def get(device):
    return Received(topics.up(device, "get"), encode(Get(blob=Blob(bytes(32), 5), blocks=(0,))))


def contribution(device, task, **where):
    where = where or {"body": b"x"}
    metrics = Metrics(train_loss=1.0, train_time_ms=1, energy_mj=1, peak_memory_kib=1)
    message = Contribution(
        task=task, run="r", round=1, boot=1, seq=1, kind="full", num_examples=1, metrics=metrics, **where
    )
    return Received(topics.up(device, "contribution"), encode(message))


def plan(device, task):
    message = Plan(task=task, round=1, kind="full", seconds=1, memory_bytes=1, energy_j=0, reasons=())
    return Received(topics.up(device, "plan"), encode(message))


class Bench:
    def __init__(self, *tasks, most=100, helpers=None):
        self.inboxes = {task: queue.SimpleQueue() for task in tasks}
        self.over, self.answers, self.blobs = set(), [], {}
        self.router = Router(
            self.inboxes,
            HostedTasks(
                self.over.__contains__,
                lambda task, device: self.answers.append((task, device)),
                lambda task, blob: blob in self.blobs.get(task, ()),
            ),
            most,
            helpers or {},
        )

    def route(self, *events):
        for event in events:
            self.router.route(event)

    def messages_of(self, task):
        """What came since it was last asked."""
        events = []
        while not self.inboxes[task].empty():
            events.append(self.inboxes[task].get())
        return events


@pytest.fixture
def two():
    return Bench("digits", "speech")


def test_the_link_concerns_all(two):
    two.route(Connected(True), Disconnected("lost"))
    assert two.messages_of("digits") == two.messages_of("speech") == [Connected(True), Disconnected("lost")]


def test_a_device_is_in_the_task_that_it_names_or_in_the_first(two):
    events = [hello("a", "speech"), get("a"), hello("b"), get("b"), state("a", retain=False)]
    two.route(*events)
    assert two.messages_of("speech") == [events[0], events[1], events[4]]
    assert two.messages_of("digits") == events[2:4]


def test_who_names_no_task_is_not_sent_to_one_that_is_over(two):
    two.route(hello("a"))
    two.over.add("digits")
    two.route(hello("a"), hello("b"))
    assert [topics.parse(event.topic).device for event in two.messages_of("speech")] == ["a", "b"]
    two.over.add("speech")
    two.route(hello("c"))
    assert [topics.parse(event.topic).device for event in two.messages_of("digits")] == ["a"]


def test_what_is_for_a_task_that_is_over_does_not_pile_up(two):
    two.route(hello("a", "digits"))
    two.messages_of("digits")
    two.over.add("digits")
    two.route(hello("a", "digits"), get("a"), contribution("a", "digits"), Connected(False))
    assert two.messages_of("digits") == []
    assert two.messages_of("speech") == [Connected(False)]


def test_presence_from_before_is_held_until_its_task_is_known(two):
    events = [state("a"), hello("a", "speech")]
    two.route(*events)
    assert two.messages_of("speech") == events
    assert two.messages_of("digits") == []


def test_who_goes_to_another_task_has_left_the_one_before(two):
    two.route(hello("a", "digits", boot=7), hello("a", "speech", boot=7))
    came, left = two.messages_of("digits")
    assert came == hello("a", "digits", boot=7)
    assert decode(left.payload, State) == State(boot=7, online=False, leaving=True)
    assert left.topic == topics.up("a", "state")
    assert two.messages_of("speech") == [hello("a", "speech", boot=7)]


def test_what_names_its_task_goes_there(two):
    late, thought = contribution("a", "digits"), plan("a", "digits")
    two.route(hello("a", "speech"), late, thought)
    assert two.messages_of("digits") == [late, thought]


def block(device, blob):
    return Received(topics.up(device, topics.block(blob.sha, 0)), b"xxxxx")


def test_the_blocks_of_what_a_device_has_made_go_where_that_goes(two):
    old, new, other = (Blob(bytes([number]) * 32, 5) for number in range(3))
    sent = [contribution("a", "digits", blob=old), contribution("a", "speech", blob=new)]
    two.route(hello("a", "speech"), *sent, block("a", old), block("a", new), block("a", other))
    assert two.messages_of("digits") == [sent[0], block("a", old)]
    assert two.messages_of("speech")[1:] == [sent[1], block("a", new), block("a", other)]


def test_of_a_device_that_sends_ever_more_only_the_latest_blobs_are_known(two):
    blobs = [Blob(bytes([number]) * 32, 5) for number in range(MOST_BLOBS + 1)]
    two.route(hello("a", "speech"), *(contribution("a", "digits", blob=blob) for blob in blobs))
    two.messages_of("speech")
    two.route(block("a", blobs[0]), block("a", blobs[-1]))
    assert two.messages_of("speech") == [block("a", blobs[0])]
    assert two.messages_of("digits")[-1] == block("a", blobs[-1])


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (hello("a", "faces"), "a asks for task faces; this aggregator has tasks digits, speech"),
        (contribution("a", "faces"), "message for task faces dropped"),
        (Received(topics.up("a", "plan"), b"\xc1"), "not a Plan"),
        (Received(topics.up("a", "hello"), b"\xc1"), "not a Hello"),
        (Received(topics.up("a", "state"), bytes(300_000), True), "State of 300000 bytes"),
        (Received("fl/v1/x", b""), "is not a device topic"),
    ],
)
def test_what_is_for_no_task_is_dropped_with_a_word(two, event, message, caplog):
    with caplog.at_level(logging.WARNING):
        two.route(event)
    assert message in caplog.text
    assert two.messages_of("digits") == two.messages_of("speech") == []


def test_a_device_without_a_task_fetches_from_the_task_that_has_the_blob_or_learns_that_none_has(two):
    two.blobs["speech"] = (Blob(bytes(32), 5),)
    two.route(get("a"))
    assert (two.messages_of("digits"), two.messages_of("speech")) == ([], [get("a")])
    two.blobs.clear()
    two.over.add("digits")
    two.route(get("a"))
    assert (two.messages_of("digits"), two.messages_of("speech")) == ([], [get("a")])


def test_a_retained_hello_moves_nobody(two):
    two.route(hello("a", "digits"), hello("a", "speech", retain=True))
    assert two.messages_of("speech") == []


def test_strangers_of_many_names_leave_the_router_no_larger_and_take_nobodys_place():
    bench = Bench("one", "two", most=4)
    bench.route(state("pi"), hello("pi", "two"))
    for number in range(50):
        name = f"stranger-{number}"
        bench.route(state(name), hello(name, "one"), contribution(name, "one", blob=Blob(bytes(32), 5)))
        bench.route(state(name, online=False, retain=False))
    assert len(bench.router._devices) == 4
    bench.messages_of("two")
    bench.route(get("pi"))
    assert bench.messages_of("two") == [get("pi")]


def test_a_mask_helper_is_heard_by_each_of_its_tasks_and_takes_no_place():
    three = Bench("digits", "speech", "sound", most=1, helpers={"site-a": ["digits", "sound"]})
    events = [state("site-a"), get("site-a"), Received(topics.up("site-a", "sum"), b"x")]
    three.route(*events)
    assert [three.messages_of(task) for task in ("digits", "speech", "sound")] == [events, [], events]
    three.route(hello("pi-7"))
    assert three.messages_of("digits") == [hello("pi-7")]
    three.over.add("digits")
    three.route(events[0])
    assert [three.messages_of(task) for task in ("digits", "sound")] == [[], events[:1]]
