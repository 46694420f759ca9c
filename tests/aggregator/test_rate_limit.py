"""A device that never stops sending is not heard any more; the others are, and it is again later."""

import queue

import pytest

from device_runtime.aggregator.limits import BURST, BoundedInbox, RateLimit, message_cost
from device_runtime.aggregator.rounds.device_messages import HELLO_BURST
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import block_count
from device_runtime.broker.wire.link_events import Connected, Received
from device_runtime.broker.wire.messages import Get


def accepted_count(flood, device, messages, now):
    return sum(flood.lets(device, now) for _ in range(messages))


def test_a_burst_is_taken_and_then_as_many_as_the_bucket_fills_by():
    flood = RateLimit(burst=10, rate=2)
    assert accepted_count(flood, "a", 50, 0.0) == 10
    assert accepted_count(flood, "a", 50, 3.0) == 6
    assert accepted_count(flood, "a", 50, 1000.0) == 10


def test_devices_do_not_share_a_bucket_and_a_clock_that_goes_back_gives_nothing():
    flood = RateLimit(burst=3, rate=1)
    assert accepted_count(flood, "a", 5, 10.0) == 3
    assert accepted_count(flood, "b", 5, 10.0) == 3
    assert accepted_count(flood, "a", 5, 5.0) == 0


def test_only_so_many_devices_are_remembered():
    flood = RateLimit(burst=1, rate=0, most=2)
    for device in ("a", "b", "c"):
        assert flood.lets(device, 0.0)
    assert flood.lets("a", 0.0)  # forgotten, and so anew
    assert not flood.lets("c", 0.0)


def test_it_is_said_once_a_minute():
    flood = RateLimit()
    assert [flood.worth_saying("a", now) for now in (0.0, 30.0, 61.0)] == [True, False, True]


def test_the_service_drops_what_is_too_much_and_counts_what_comes_again(bench, make_task, update_of, caplog):
    b = bench(make_task("few-shot", rounds=1, min_contributions=2))
    b.join("pi", "evil")
    message = b.contribution("few-shot", update_of("few-shot"))
    for _ in range(int(BURST) + 5):
        b.sit_out("evil", 7)
    assert b.contribute("evil", message) == []
    assert [record.getMessage() for record in caplog.records].count(
        "messages from evil dropped: it sends more than 100 a second"
    ) == 1
    assert b.contribute("pi", b.contribution("few-shot", update_of("few-shot", 1)))[0].status == "accepted"
    b.now += 1.0
    assert b.contribute("evil", message)[0].status == "accepted"


@pytest.mark.parametrize("leaf", ["get", "state", "trial", "hello", "nonsense"])
def test_every_kind_of_message_of_a_device_counts(bench, make_task, update_of, leaf, caplog):
    b = bench(make_task("few-shot", rounds=1, min_contributions=2))
    b.join("pi", "evil")
    for _ in range(int(BURST / message_cost(leaf, 0)) + 5):
        b.service.handle(Received(topics.up("evil", leaf), b"\xc1"))
    assert "messages from evil dropped: it sends more than 100 a second" in caplog.text
    assert b.contribute("evil", b.contribution("few-shot", update_of("few-shot"))) == []
    assert b.contribute("pi", b.contribution("few-shot", update_of("few-shot", 1)))[0].status == "accepted"


def test_blocks_that_nobody_waits_for_count(bench, make_task, caplog):
    b = bench(make_task("few-shot"))
    b.join("evil")
    for _ in range(int(BURST) + 5):
        b.service.handle(Received(topics.up("evil", topics.block(bytes(32), 0)), bytes(65536)))
    assert "messages from evil dropped: it sends more than 100 a second" in caplog.text


def test_blocks_that_are_waited_for_do_not_count(bench, make_task, update_of):
    b = bench(make_task("full"))
    b.service._messages.admission._rate_limit = RateLimit(burst=3.0, rate=0.0)
    b.join("pi")  # two messages
    message = b.contribution("full", update_of("full"))
    assert block_count(message.blob) > 3
    assert b.contribute("pi", message)[0].status == "accepted"


def test_a_large_message_counts_as_several():
    flood = RateLimit(burst=8, rate=0)
    assert [message_cost("contribution", size) for size in (0, 16 * 1024 - 1, 64 * 1024)] == [1.0, 1.0, 5.0]
    assert flood.lets("a", 0.0, 5.0)
    assert not flood.lets("a", 0.0, 5.0)
    assert flood.lets("a", 0.0, 3.0)


def test_a_get_without_end_brings_as_many_bytes_as_a_device_may_need(bench, make_task):
    b = bench(make_task("full"))
    b.join("evil")
    bundle = b.offer.bundle
    everything = Get(blob=bundle, blocks=tuple(range(32)))
    for _ in range(300):
        b.say("evil", "get", everything)
    sent = sum(len(payload) for topic, payload in b.link.sent if "/block/" in topic)
    assert bundle.size <= sent <= 2 * bundle.size + 17 * 65536


def message(device, size):
    return Received(topics.up(device, "block/x/0"), bytes(size))


def test_an_inbox_keeps_so_many_bytes_of_one_device_and_of_all_and_always_what_is_no_message():
    inbox = BoundedInbox(most=10_000, most_of_one=5_000)
    for _ in range(100):
        inbox.put(message("evil", 1_000))
    for number in range(100):
        inbox.put(message(f"pi-{number}", 1_000))
    inbox.put(Connected(False))
    events = []
    while not inbox.empty():
        events.append(inbox.get_nowait())
    assert [event for event in events if isinstance(event, Connected)] == [Connected(False)]
    names = [event.topic.split("/")[3] for event in events[:-1]]
    assert (names.count("evil"), len(names)) == (3, 6)  # of 1,512 bytes each
    with pytest.raises(queue.Empty):
        inbox.get_nowait()
    inbox.put(message("evil", 1_000))
    assert inbox.get().topic == topics.up("evil", "block/x/0")


def commits_of(service, monkeypatch):
    """A list that grows by each commit of the presence of devices."""
    session, commits, settling = service.rounds.store.session, [], []
    commit, settle = session._db.commit, session.settle

    def settled(*arguments):
        settling.append(1)
        settle(*arguments)
        settling.clear()

    monkeypatch.setattr(session._db, "commit", lambda: commits.extend(settling) or commit())
    monkeypatch.setattr(session, "settle", settled)
    return commits


def test_hellos_of_ever_new_boots_cost_a_commit_now_and_then_and_the_last_one_is_kept(
    bench, make_task, monkeypatch
):
    b = bench(make_task("few-shot"))
    b.join("pi", "evil")
    b.service.tick()
    commits = commits_of(b.service, monkeypatch)
    for number in range(600):  # a minute
        b.join("evil", boot=2 + number)
        b.now += 0.1
        b.service.tick()
    assert len(commits) <= 22  # 8 at once, then one in five seconds
    b.join("pi", boot=9)
    b.service.tick()
    b.service.close()
    b.restart()
    assert {device: device_.boot for device, device_ in b.service.state.devices.items()}["pi"] == 9


def test_a_device_that_says_the_same_again_costs_no_commit(bench, make_task, monkeypatch):
    b = bench(make_task("few-shot"))
    b.join("pi")
    b.service.tick()
    commits = commits_of(b.service, monkeypatch)
    for _ in range(50):
        b.join("pi")
        b.now += 1.0
        b.service.tick()
    assert commits == []


def test_hellos_are_answered_by_so_many_offers(bench, make_task, caplog):
    b = bench(make_task("few-shot"))
    b.join("evil")
    for number in range(int(HELLO_BURST) + 30):
        b.join("evil", boot=2 + number)
    assert caplog.text.count("hellos of evil dropped") == 1
    offers = [topic for topic, *_ in b.link.sent if topic == topics.down("evil", "task")]
    assert len(offers) <= HELLO_BURST
