"""Rounds of scalars alone, in few bytes: who is told what, and when a receipt comes."""

import numpy as np
import pytest

from device_runtime.aggregator.delivery.outbound import Outbound
from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.machine.state import SETTLE_S, RoundsState
from device_runtime.aggregator.rounds.receipts import RECEIPT_S
from device_runtime.aggregator.storage.contributions import Contributions
from device_runtime.aggregator.storage.store import StoredRounds
from device_runtime.broker.security.signing import Signer
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import Hello, Offer
from device_runtime.device.connection.trust import Trust

KIND = "zeroth-order"


def offers_sent(bench, since=0):
    """What went to all: the rounds of whole offers, and of what follows from one."""
    payloads = [p for t, p in bench.link.sent[since:] if t == topics.offer(bench.task.name)]
    read = {True: lambda p: small.decode_offer(p).round, False: lambda p: messages.decode(p, Offer).round}
    names = {True: "next", False: "offer"}
    return [(names[small.is_compact_offer(p)], read[small.is_compact_offer(p)](p)) for p in payloads]


def scalars(seed=0):
    return {"g": np.random.default_rng(seed).normal(size=2).astype(np.float32)}, 10


def short(bench, number, like, device="a"):
    """Sends one like an earlier one; returns the receipts that came of it at once."""
    before = len(bench.receipts(device))
    whole = bench.contribution(KIND, scalars(number), number)
    bench.raw(topics.up(device, "c"), small.compact_contribution(whole, like))
    return bench.receipts(device)[before:]


@pytest.fixture
def two(bench, make_task):
    """Two devices, in the second round of scalars; and what they sent in the first."""
    b = bench(make_task(KIND, rounds=9))
    b.join("a", "b")
    like = b.contribution(KIND, scalars(1))
    for device in ("a", "b"):
        assert b.contribute(device, like)[0].status == "accepted"
    return b, like


def test_the_next_round_is_told_in_few_bytes_to_who_keeps_up_and_whole_to_who_says_hello(two):
    b, _ = two
    assert offers_sent(b)[-2:] == [("offer", 1), ("next", 2)]
    for device in ("a", "b"):
        b.contribute(device, b.contribution(KIND, scalars(2), 2))
    assert offers_sent(b)[-1] == ("next", 3)
    b.join("c")
    answer = [p for t, p in b.link.sent if t == topics.down("c", "task")][-1]
    assert messages.decode(answer, Offer).round == 3
    assert messages.decode(b.link.retained[topics.offer(b.task.name)], Offer).round == 1


def test_a_short_contribution_counts_as_a_whole_one_does(two):
    b, like = two
    assert short(b, 2, like) == short(b, 2, like, "b") == []
    [_, second] = b.heard(RoundClosed)
    assert second.record.participants == 2
    assert b.service.state.round == 3
    assert {c.device for c in second.contributions} == {"a", "b"}


def test_that_it_counts_is_said_by_the_next_round_or_else_by_a_receipt_soon(two):
    b, like = two
    assert short(b, 2, like) == []
    b.wait(RECEIPT_S - 1)
    assert len(b.receipts("a")) == 1
    b.wait(1.0)
    last = b.receipts("a")[-1]
    assert (last.seq, last.round, last.boot, last.status) == (0, 2, 1, "accepted")
    sent = len(b.link.sent)
    short(b, 2, like, "b")
    assert offers_sent(b, sent) == [("next", 3)]
    b.wait(RECEIPT_S)
    assert len(b.receipts("b")) == 1
    assert small.decode_offer(b.link.sent[sent][1]).over


def test_what_is_sent_again_whole_is_a_duplicate_and_what_does_not_count_is_said_at_once(two):
    b, like = two
    short(b, 2, like)
    again = b.contribution(KIND, scalars(2), 2)
    assert [r.status for r in b.contribute("a", again)] == ["duplicate"]
    short(b, 2, like, "b")
    assert [r.status for r in short(b, 2, like)] == ["duplicate"]
    assert [r.status for r in short(b, 1, like, "b")] == ["duplicate"]
    b.join("c")
    b.contribute("c", b.contribution(KIND, scalars(1), 3))
    assert [r.status for r in short(b, 2, like, "c")] == ["late"]


def test_where_late_ones_count_every_contribution_has_its_receipt(bench, make_task):
    b = bench(make_task(KIND, rounds=9, late="count"))
    b.join("a", "b")
    like = b.contribution(KIND, scalars(1))
    for device in ("a", "b"):
        b.contribute(device, like)
    sent = [p for t, p in b.link.sent if t == topics.offer(b.task.name)][-1]
    assert not small.decode_offer(sent).over
    assert [r.status for r in short(b, 2, like)] == ["accepted"]


def test_an_aggregator_that_is_new_does_not_know_what_it_is_like_and_counts_it_when_it_comes_whole(two):
    b, like = two
    short(b, 2, like)
    b = b.restart()
    b.join("a", "b")
    assert short(b, 2, like) == []
    assert [r.status for r in b.contribute("a", b.contribution(KIND, scalars(2), 2))] == ["duplicate"]
    assert short(b, 2, like, "b") == []
    assert b.service.state.contributions == 1


def test_when_all_is_over_everybody_has_a_receipt_before_that_is_said(bench, make_task):
    b = bench(make_task(KIND, rounds=2))
    b.join("a")
    like = b.contribution(KIND, scalars(1))
    b.contribute("a", like)
    sent = len(b.link.sent)
    short(b, 2, like)
    leaves = [t.rsplit("/", 1)[-1] for t, _ in b.link.sent[sent:]]
    assert leaves == ["receipt", b.task.name]
    assert b.offer.done


def test_rounds_of_other_kinds_are_offered_whole(bench, make_task, update_of):
    b = bench(make_task("few-shot", KIND, rounds=4))
    b.join("a")
    b.contribute("a", b.contribution("few-shot", update_of("few-shot")))
    b.contribute("a", b.contribution(KIND, scalars(1), 2))
    assert offers_sent(b)[-3:] == [("offer", 1), ("offer", 2), ("next", 3)]


def test_a_deadline_that_passes_is_offered_whole_and_goes_on_from_there(bench, make_task):
    b = bench(make_task(KIND, rounds=4, min_contributions=2))
    b.join("a", "b")
    b.wait(10.0)
    assert offers_sent(b)[-1] == ("offer", 1)
    for device in ("a", "b"):
        b.contribute(device, b.contribution(KIND, scalars(1)))
    assert offers_sent(b)[-1] == ("next", 2)


def test_where_devices_are_enrolled_each_is_told_by_itself_with_a_word_or_else_whole(two):
    b, _ = two
    signer, trust = Signer(bytes(32)), Trust(Signer(bytes(32)).public)
    b.service._out._agree = signer.agree
    hello = Hello(boot=1, num_examples=20, profile="pi", memory_bytes=2**29, engine="onnx", key=trust.key)
    b.say("a", "hello", hello)
    sent = len(b.link.sent)
    for device in ("a", "b"):
        b.contribute(device, b.contribution(KIND, scalars(2), 2))
    assert offers_sent(b, sent) == []
    payloads = {topic: payload for topic, payload in b.link.sent[sent:] if not topic.endswith("receipt")}
    assert list(payloads) == [topics.down("a", "n"), topics.down("b", "task")]
    assert trust.next(topics.down("a", "n"), b.service.run_id, payloads[topics.down("a", "n")]).round == 3
    assert messages.decode(payloads[topics.down("b", "task")], Offer).round == 3


def test_a_key_that_is_none_is_a_hello_that_is_none(two):
    b, _ = two
    b.service._out._agree = Signer(bytes(32)).agree
    sent = len(b.link.sent)
    for key in (bytes(32), b"x"):
        hello = Hello(boot=1, num_examples=20, profile="pi", memory_bytes=2**29, engine="onnx", key=key)
        b.say("a", "hello", hello)
    assert b.link.sent[sent:] == []


def test_of_what_is_too_long_nothing_is_remembered_to_be_like(two):
    """Every device could else have a message's worth of memory here."""
    b, like = two
    for long in ({"kind": "k" * 2000}, {"body": like.body[:8] + bytes(2100)}):
        b.contribute("a", b.contribution(KIND, scalars(2), 2, seq=8, **long))
        assert not b.service._run.contributions.statements.whole.get("a")
        assert short(b, 2, like) == []
    assert b.service.state.contributions == 0


class Killed(BaseException):
    """As kill -9: nobody catches it, and nothing is done any more."""


MOMENTS = {
    "commit": (Contributions, "settle"),
    "merging": (StoredRounds, "begin_merge"),
    "merged": (StoredRounds, "merged"),
    "evaluated": (StoredRounds, "evaluated"),
    "closed": (StoredRounds, "close"),
    "opened": (StoredRounds, "open"),
    "told": (Outbound, "next"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_instant_before_the_next_round_is_told_each_short_one_counts_once(
    two, monkeypatch, moment, after
):
    """The last one of round 2 is from b; that of a was counted, and has no receipt yet."""
    b, like = two
    short(b, 2, like)
    owner, name = MOMENTS[moment]
    done = getattr(owner, name)

    def killed(*args, **named):
        if after:
            done(*args, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            short(b, 2, like, "b")
    b.restart()
    b.join("a", "b")
    b.wait(SETTLE_S)
    is_lost = (moment, after) == ("commit", False)  # never acknowledged: it counts now
    for device, status in (("a", "duplicate"), ("b", "accepted" if is_lost else "duplicate")):
        receipts = b.contribute(device, b.contribution(KIND, scalars(2), 2))
        assert [receipt.status for receipt in receipts] == [status]
    assert b.service.state.round == 3
    assert [record.device for record in b.store.rounds.closed(2)[0].contributions] == ["a", "b"]
    [_, step] = b.store.step_history.last(3, 2)
    assert (step.round, step.scalars) == (2, tuple(scalars(2)[0]["g"].tolist()))
    b.store.latest = None
    assert b.service.rounds.weights(3)  # its hash is looked at


def test_killed_before_it_has_opened_the_next_round_it_offers_that_twice_and_who_hears_it_says_hello(
    two, monkeypatch
):
    """Else short ones would be like what it does not know, and enrolled devices without a MAC for good."""
    b, _ = two

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StoredRounds, "evaluated", killed)
        with pytest.raises(Killed):
            for device in ("a", "b"):
                b.contribute(device, b.contribution(KIND, scalars(2), 2))
    b.restart()
    assert offers_sent(b) == [("offer", 3), ("offer", 3)]
    b.restart()
    assert offers_sent(b) == [("offer", 3)]  # which devices have heard


def test_a_deadline_that_is_a_little_longer_than_the_last_that_was_told_is_not_told(two, monkeypatch):
    b, _ = two
    deadlines = {3: 10.5, 4: 12.4, 5: 9.9, 6: 12.4}
    monkeypatch.setattr(RoundsState, "deadline_s", lambda _, number: deadlines.get(number, 10.0))
    for number in range(2, 6):
        for device in ("a", "b"):
            b.contribute(device, b.contribution(KIND, scalars(number), number))
    assert offers_sent(b)[-4:] == [("next", 3), ("next", 4), ("offer", 5), ("offer", 6)]
    assert b.offer.deadline_s == 12.4


def test_who_says_hello_is_told_the_deadline_that_the_next_round_leaves_unsaid(two, monkeypatch):
    """Round 4 has less time than round 3 had, and more than was told: who knew the 12 s would be late."""
    b, _ = two
    deadlines = {3: 12.0, 4: 10.5}
    monkeypatch.setattr(RoundsState, "deadline_s", lambda _, number: deadlines.get(number, 10.0))
    for device in ("a", "b"):
        b.contribute(device, b.contribution(KIND, scalars(2), 2))
    b.wait(1.0)
    b.join("c")
    answer = [p for t, p in b.link.sent if t == topics.down("c", "task")][-1]
    offer = messages.decode(answer, Offer)
    assert (offer.round, offer.deadline_s) == (3, 10.0)
    for device in ("a", "b", "c"):
        b.contribute(device, b.contribution(KIND, scalars(3), 3))
    compact = small.decode_offer([p for _, p in b.link.sent if small.is_compact_offer(p)][-1])
    followed = small.full_offer(offer, compact)
    assert (followed.round, followed.deadline_s) == (4, 10.0)
