"""Scalars of zeroth-order rounds on a bench: lies, what comes twice, late, or to an aggregator that fell."""

import hashlib

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles import tensors
from device_runtime.strategies.directions.replaying import replay

KIND = "zeroth-order"


def scalars(first, second, examples=10, dtype=np.float32):
    return {"g": np.array([first, second], dtype)}, examples


def sent(bench, device, update, number=1):
    """The status and the reason of its receipt."""
    [receipt] = bench.contribute(device, bench.contribution(KIND, update, number))
    return receipt.status, receipt.reason


def log(bench, number):
    """The steps that lead to round `number`, as they are kept."""
    rows = bench.store._db.rows("SELECT step FROM steps WHERE round < ? ORDER BY round, position", number)
    return [msgspec.msgpack.decode(row["step"], type=Step) for row in rows]


def steps(bench, number):
    """(round, share, scalars) of each."""
    return [
        (step.round, pytest.approx(step.share), pytest.approx(step.scalars)) for step in log(bench, number)
    ]


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (scalars(np.nan, 1), "g has 1 non-finite value"),
        (scalars(np.inf, -np.inf), "g has 2 non-finite values"),
        (({"g": np.ones(3, np.float32)}, 10), "g is (3,), expected (2,)"),
        (({"g": np.ones(1, np.float32)}, 10), "g is (1,), expected (2,)"),
        (scalars(1, 1, dtype=np.int32), "g is int32, expected float32"),
        (scalars(1.0, -2e9), "a scalar is 2e+09 away from 0, at most 1e+09 is accepted with eps 0.001"),
        (scalars(3e38, 1.0), "a scalar is 3e+38 away from 0"),
    ],
    ids=["nan", "infinite", "too many", "too few", "integers", "absurd", "the largest there is"],
)
def test_scalars_that_no_device_can_have_are_refused_and_the_receipt_says_why(bench, make_task, update, why):
    b = bench(make_task(KIND, rounds=1))
    b.join("liar", "pi")
    status, reason = sent(b, "liar", update)
    assert (status, why in reason) == ("refused", True), reason
    assert sent(b, "pi", scalars(1.0, 2.0))[0] == "accepted"
    assert steps(b, 2) == [(1, 1.0, (1.0, 2.0))]


def test_scalars_beyond_a_stated_bound_are_refused_with_both_numbers(bench, make_task):
    b = bench(make_task(KindSettings(name=KIND, max_norm=50.0), rounds=1))
    b.join("liar", "pi")
    status, reason = sent(b, "liar", scalars(300.0, 400.0))
    assert status == "refused"
    assert "500" in reason
    assert "at most 50 is accepted" in reason


@pytest.mark.parametrize(
    ("rule", "word"), [("value-clip", "value-clip clipped liar"), ("norm-clip", "norm-clip shortened liar")]
)
def test_what_is_finite_and_absurd_counts_as_no_more_than_others_and_the_round_names_it(
    bench, make_task, rule, word
):
    b = bench(make_task(KIND, rounds=1, robust=rule))
    b.join("a", "b", "c", "liar")
    for device, first in (("a", 1.0), ("b", 1.5), ("c", 2.0)):
        assert sent(b, device, scalars(first, first))[0] == "accepted"
    assert sent(b, "liar", scalars(-1e8, -1e8))[0] == "accepted"
    [step] = log(b, 2)
    assert all(abs(scalar) <= 2.0 for scalar in step.scalars)
    [closed] = b.heard(RoundClosed)
    assert word in closed.note


def test_scalars_that_are_sent_again_count_once_whatever_falls_in_between(bench, make_task):
    b = bench(make_task(KIND, rounds=2))
    b.join("a", "b")
    assert sent(b, "a", scalars(1.0, 2.0, 30))[0] == "accepted"
    assert sent(b, "a", scalars(1.0, 2.0, 30))[0] == "duplicate"
    b = b.restart()
    b.join("a", "b", boot=2)
    assert sent(b, "a", scalars(1.0, 2.0, 30))[0] == "duplicate"
    assert sent(b, "b", scalars(5.0, -2.0, 10))[0] == "accepted"
    b.wait(11.0)
    assert sent(b, "a", scalars(1.0, 2.0, 30))[0] == "duplicate"
    assert steps(b, 2) == [(1, 1.0, (2.0, 1.0))]


def late_round(bench, make_task, **settings):
    """Round 1 has closed with a's scalars; b, who was away, has its own for it; c is new."""
    b = bench(make_task(KIND, rounds=3, late="count", staleness_weight=1.0, **settings))
    b.join("a", "b")
    sent(b, "a", scalars(1.0, 1.0))
    b.wait(11.0)
    assert b.offer.round == 2
    return b


def test_late_scalars_are_a_step_of_the_log_and_who_replays_it_has_the_aggregators_weights(
    bench, make_task, bundle
):
    b = late_round(bench, make_task)
    assert sent(b, "b", scalars(-4.0, 2.0, 30), number=1)[0] == "accepted"
    b = b.restart()
    b.join("a", "b", boot=2)
    assert sent(b, "b", scalars(-4.0, 2.0, 30), number=1)[0] == "duplicate"
    sent(b, "a", scalars(3.0, 3.0, 10), number=2)
    b.wait(21.0)
    # round 2: 30 samples of 40 are late, by half; both along the directions of their own rounds
    assert steps(b, 3) == [(1, 1.0, (1.0, 1.0)), (1, 0.375, (-4.0, 2.0)), (2, 0.25, (3.0, 3.0))]
    first, late, now = log(b, 3)
    assert first.seed == late.seed != now.seed
    assert b.offer.base.steps == 3
    replayed = replay(bundle.weights(), log(b, 3), bundle.manifest)
    assert hashlib.sha256(tensors.encode(replayed)).digest().startswith(b.offer.base.sha)


def test_under_a_rule_one_that_is_late_alone_moves_nothing(bench, make_task):
    b = late_round(bench, make_task, robust="median")
    assert sent(b, "b", scalars(-4e8, 2e8, 30), number=1)[0] == "accepted"
    sent(b, "a", scalars(3.0, 3.0, 10), number=2)
    b.wait(21.0)
    assert steps(b, 3) == [(1, 1.0, (1.0, 1.0)), (2, 1.0, (3.0, 3.0))]


def test_where_late_updates_are_discarded_late_scalars_are_too(bench, make_task):
    b = bench(make_task(KIND, rounds=3))
    b.join("a", "b")
    sent(b, "a", scalars(1.0, 1.0))
    b.wait(11.0)
    assert sent(b, "b", scalars(-4.0, 2.0, 30), number=1) == ("late", "round 1 is closed, round 2 is open")


def cohort_of(bench, number):
    """Who was asked for a round, by what was said to each."""
    return sorted(name for name, latest in bench.service.state.asked.items() if latest == number)


def test_in_a_cohort_late_scalars_count_once_and_none_of_who_was_not_asked(bench, make_task, bundle):
    """Two of four are asked for each round; the second of the first round is late, and says it again to an
    aggregator that was killed after it had acknowledged it.
    """
    cohort = {"devices_per_round": 2, "late": "count", "staleness_weight": 1.0}
    b = bench(make_task(KIND, rounds=3, **cohort))
    b.join("a", "b", "c", "d")
    first, late = cohort_of(b, 1)
    stranger = next(name for name in "abcd" if name not in (first, late))
    assert sent(b, stranger, scalars(9.0, 9.0))[0] == "refused"
    assert sent(b, first, scalars(1.0, 1.0))[0] == "accepted"
    b.wait(11.0)
    assert b.service.state.round == 2
    assert late not in cohort_of(b, 2), "it is at work on round 1 still"
    assert sent(b, late, scalars(-4.0, 2.0, 30), number=1)[0] == "accepted"
    b = b.restart()
    b.join("a", "b", "c", "d", boot=2)
    assert sent(b, late, scalars(-4.0, 2.0, 30), number=1)[0] == "duplicate"
    assert sent(b, stranger, scalars(9.0, 9.0), number=1)[0] == "refused"
    for name in cohort_of(b, 2):
        sent(b, name, scalars(3.0, 3.0, 5), number=2)
    b.wait(21.0)
    assert b.service.state.round == 3
    assert steps(b, 3) == [(1, 1.0, (1.0, 1.0)), (1, 0.375, (-4.0, 2.0)), (2, 0.25, (3.0, 3.0))]
    replayed = replay(bundle.weights(), log(b, 3), bundle.manifest)
    assert hashlib.sha256(tensors.encode(replayed)).digest() == b.store.rounds.start(3).base.sha


def test_a_liar_among_those_that_are_asked_moves_no_more_than_others_in_time_or_late(bench, make_task):
    """Five of six are asked; the liar of round 1 is late with it, and lies in time in round 2."""
    cohort = {"devices_per_round": 5, "late": "count", "robust": "norm-clip"}
    b = bench(make_task(KIND, rounds=3, **cohort))
    b.join("a", "b", "c", "d", "e", "f")
    *honest, liar = cohort_of(b, 1)
    for name in honest:
        sent(b, name, scalars(1.0, 1.0))
    b.wait(11.0)
    assert b.service.state.round == 2
    assert sent(b, liar, scalars(-1e8, -1e8), number=1)[0] == "accepted"
    for name in cohort_of(b, 2):
        sent(b, name, scalars(2.0, 2.0), number=2)
    b.wait(21.0)
    _, lie, now = log(b, 3)
    assert (lie.round, now.round) == (1, 2)
    usual = np.hypot(2.0, 2.0)
    assert np.hypot(*lie.scalars) == pytest.approx(usual, rel=1e-5)
    assert np.hypot(*now.scalars) == pytest.approx(usual, rel=1e-5)
    assert f"{liar} (zeroth-order)" in b.heard(RoundClosed)[1].note
