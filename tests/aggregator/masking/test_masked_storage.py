"""What is kept of masked rounds, in a file and on a server, over crashes."""

from math import isnan

import pytest

from device_runtime.aggregator.storage.sums import (
    SUSPENDED_ROUNDS,
    WINDOW,
    MaskFault,
    StoredAnswer,
    SumRecord,
)

DATABASES = ("sqlite", "postgres")


@pytest.fixture
def b(bench, masked_task, mask_of, update_of):
    """A masked round to which three devices have contributed; no mask helper has answered yet."""
    b = bench(masked_task("entropy-subset", "class-means", rounds=2, head="trained"))
    b.join("pi-0", "pi-1", "pi-2", samples=20)
    for at in range(3):
        message = mask_of(b, f"pi-{at}", "entropy-subset", update_of("entropy-subset", at))
        assert b.contribute(f"pi-{at}", message)[0].status == "accepted"
    return b


def test_a_masked_round_goes_on_after_a_crash_at_each_point(b, helpers):
    assert b.service.state.phase == "unmask"
    for helper in helpers:
        b = b.restart()
        assert (b.service.state.round, b.service.state.phase) == (1, "unmask")
        helper.answer(b)
    assert (b.service.state.round, b.service.state.phase) == (2, "collect")
    b = b.restart()
    [record] = b.store.sums.records(1)
    assert (record.kind, record.round, record.devices, record.num_examples) == ("entropy-subset", 1, 3, 33)
    assert record.train_loss == pytest.approx(0.5, rel=1e-6)
    [closed] = b.store.rounds.closed()
    assert (closed.note, closed.record.train_loss) == ("", record.train_loss)
    assert b.store.sums.masks(2) == b.offer.masks


def test_answers_are_kept_once_until_their_round_is_closed(b, helpers):
    [request] = helpers[0].requests(b)
    first = StoredAnswer(request.id, "helper-a", b"\x00\xff")
    sums = b.store.sums
    sums.keep(first, 1)
    sums.keep(StoredAnswer(request.id, "helper-a", b"another"), 1)
    sums.keep(StoredAnswer(request.id, "helper-b", refusal="no"), 1)
    sums.keep(StoredAnswer(b"\x01" * 32, "helper-a", blob=sums.blobs.put(b"large")), 2)
    answers = sums.answers(1)
    assert answers[request.id, "helper-a"] == first and sums.content(first) == b"\x00\xff"
    assert answers[request.id, "helper-b"].refusal == "no"
    with sums._db.commit() as db:
        sums.forget(db, 1)
    sums.prune()
    assert (sums.answers(1), len(sums.answers(2)), b.store.contributions.masked(1)) == ({}, 1, ())
    assert sums.content(sums.answers(2)[b"\x01" * 32, "helper-a"]) == b"large"


def test_records_of_a_merge_replace_those_of_an_earlier_attempt(b):
    opened = SumRecord(b"\x01" * 32, 1, "full", 3, 30, 0.25)
    left = SumRecord(b"\x02" * 32, 1, "peft", 1, 10, why="too few devices, a sum has at least 2")
    sums = b.store.sums
    for records in ([opened], [opened, left]):
        with sums._db.commit() as db:
            sums.add_records(db, 1, records)
    first, second = sums.records(1)
    assert first == opened
    assert (second.kind, second.why, isnan(second.train_loss)) == ("peft", left.why, True)


def test_who_was_left_out_and_why_is_known_after_a_restart(b):
    faults = b.store.sums.faults
    faults.begin_checks(2, ("helper-a", "helper-b"))
    wrong, used = MaskFault("pi-0", "mask", "wrong mask"), MaskFault("pi-1", "used", "summed before")
    for _ in range(2):  # the second time changes nothing
        faults.leave_out(1, (wrong, used))
    assert [record.device for record in b.store.contributions.masked(1)] == ["pi-2"]
    b = b.restart()
    faults = b.store.sums.faults
    assert faults.checks(2) == (("helper-a", "helper-b"), False)
    faults.end_checks(2)
    assert faults.checks(2) == (("helper-a", "helper-b"), True)
    assert faults.left_out(1) == (("pi-0", "wrong mask"), ("pi-1", "summed before"))


def test_the_suspicions_of_sums_that_a_named_device_was_in_are_gone(b):
    faults, db = b.store.sums.faults, b.store._db
    together = [MaskFault(name, "sum", "spoilt", b"one") for name in ("pi-0", "pi-1")]
    alone = [MaskFault("pi-2", "sum", "spoilt", b"two")]
    with db.commit() as commit:
        faults.add(commit, 1, (*together, *alone))
    assert dict(faults.suspicions(2)) == {"pi-0": 1, "pi-1": 1, "pi-2": 1}
    assert dict(faults.suspicions(1 + WINDOW)) == {"pi-0": 1, "pi-1": 1, "pi-2": 1}
    assert dict(faults.suspicions(2 + WINDOW)) == {}
    with db.commit() as commit:
        faults.add(commit, 2, (MaskFault("pi-0", "named", "in common"),))
    assert dict(faults.suspicions(3)) == {"pi-2": 1}
    assert faults.suspension("pi-0", 2 + SUSPENDED_ROUNDS).startswith("in common (in round 2)")
    assert faults.suspension("pi-0", 3 + SUSPENDED_ROUNDS) == faults.suspension("pi-1", 3) == ""
