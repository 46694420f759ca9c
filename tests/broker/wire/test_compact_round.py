"""Rounds of scalars in few bytes: what is read is what was meant, to the bit, or nothing is written so."""

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.compact_round import CompactOffer, UnknownRoundBefore
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    Kind,
    MessageError,
    Metrics,
    Offer,
    Step,
    encode,
    encode_settings,
)

SEED = 5
BLOB = Blob(bytes(range(32)), 310_000)


def step(number, scalars=(0.5, -1.25), **changes):
    usual = Step(number, "philox/1", steps.round_seed(SEED, number), "all", 0.01, 1.0, scalars)
    return msgspec.structs.replace(usual, **changes)


def offer(number, log, **changes):
    """Round `number` after these steps, as the aggregator has it."""
    base = Base(
        checkpoint=(BLOB,), sha=bytes([number % 256]) * 32, line=bytes(8), steps=len(log), at=len(log),
        tail=steps.pack(steps.tail_of(log), SEED), log=(BLOB,) if log else (),
    )  # fmt: skip
    usual = Offer(
        task="digits", run="r1", round=number, seed=steps.round_seed(SEED, number), deadline_s=60.0,
        remaining_s=59.5, bundle=BLOB, base=base,
        kinds=(Kind("zeroth-order", encode_settings({"lr": 0.01})),),
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)


FIRST, SECOND = step(1), step(2, (0.1, 2.0))
BEFORE = offer(2, [FIRST])
F32 = struct.unpack("<ff", struct.pack("<ff", 0.1, 2.0))


def led(before, now, new, over=False):
    """What follows for who has the offer before; None where the whole offer is needed."""
    compact = small.compact_offer(before, now, tuple(new), over)
    return compact and small.full_offer(before, small.decode_offer(small.encode_offer(compact)))


def test_a_round_of_two_scalars_is_told_in_fourteen_bytes():
    compact = small.compact_offer(BEFORE, offer(3, [FIRST, step(2, F32)]), (step(2, F32),), True)
    assert (compact.over, compact.scalars, compact.steps) == (True, F32, ())
    assert len(small.encode_offer(compact)) == 14
    assert small.encode_offer(compact)[0] < 0x80 <= encode(BEFORE)[0]


@pytest.mark.parametrize(
    "new",
    [
        (),
        (step(2, F32),),
        (step(2, (0.1, 0.2)),),  # not float32
        (step(2, (1.0,)),),
        (step(2, lr=0.5),),
        (step(2, share=0.5),),
        (step(1, (3.0,), share=0.3), step(2, share=0.7)),
        (step(2, tuple(float(n) for n in range(300))),),
    ],
    ids=["none", "plain", "float64", "one", "lr", "share", "late", "many"],
)
def test_who_has_the_offer_before_is_led_to_the_next(new):
    now = offer(3, [FIRST, *new])
    got = led(BEFORE, now, new)
    assert steps.unpack(got.base.tail) == (FIRST, *new)
    assert (got.base.sha, got.base.log, got.remaining_s) == (now.base.sha[:4], (), 60.0)
    same = msgspec.structs.replace(got.base, sha=now.base.sha, tail=now.base.tail, log=now.base.log)
    assert msgspec.structs.replace(got, base=same, remaining_s=59.5) == now


def test_round_after_round_is_followed_as_far_as_it_goes():
    log, latest = [FIRST], BEFORE
    for number in range(3, 600):
        log.append(step(number - 1, F32))
        now = offer(number, log)
        latest = led(latest, now, log[-1:])
    assert steps.unpack(latest.base.tail) == tuple(log[-small.FOLLOWED_STEPS :])
    assert len(latest.base.tail) == 1
    assert (latest.base.at, latest.seed) == (len(log), now.seed)


OTHER = Blob(bytes(32), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"kinds": ()},
        {"deadline_s": 30.0},
        {"aside": OTHER},
        {"rare": (3, 1)},
        {"run": "r2"},
        {"seed": 77},
        {"done": True},
        {"base": msgspec.structs.replace(offer(3, [FIRST, SECOND]).base, checkpoint=(OTHER,))},
        {"base": msgspec.structs.replace(offer(3, [FIRST, SECOND]).base, line=b"another!")},
    ],
    ids="".join,
)
def test_whatever_else_changes_takes_the_whole_offer(changes):
    assert led(BEFORE, offer(3, [FIRST, SECOND]), [SECOND]) is not None
    assert led(BEFORE, offer(3, [FIRST, SECOND], **changes), [SECOND]) is None


def test_the_first_step_of_a_line_takes_more_bytes_and_no_step_at_all_the_whole_offer():
    lobby = offer(1, [])
    assert led(lobby, offer(2, [FIRST]), [FIRST]).base.at == 1
    assert led(lobby, offer(2, []), []) is None


@pytest.mark.parametrize(
    ("before", "number"),
    [(offer(1, []), 2), (BEFORE, 4), (BEFORE, 2), (offer(0, []), 1), (offer(2, [], done=True), 3)],
)
def test_who_does_not_have_the_round_before_has_lost_track(before, number):
    with pytest.raises(UnknownRoundBefore, match=f"round {number}"):
        small.full_offer(before, CompactOffer(number, bytes(4), scalars=(1.0,)))


def test_a_word_is_behind_what_it_is_on():
    message = small.encode_offer(CompactOffer(3, b"abcd", True, (1.0,)))
    sealed = small.with_mac(message, b"8 bytes.")
    assert small.split_mac(sealed) == (message, b"8 bytes.")
    assert small.split_mac(message) == (message, b"")
    assert len(sealed) == len(message) + 8
    with pytest.raises(MessageError):
        small.decode_offer(sealed)


@given(st.binary(max_size=40))
def test_rubbish_is_no_next_round_and_no_contribution_and_says_so(data):
    for read in (small.decode_offer, lambda data: small.full_contribution(data, LIKE)):
        try:
            read(data)
        except MessageError as error:
            assert str(error)


def test_a_next_round_with_a_name_that_is_no_text_is_refused_with_the_same_error():
    message = small.encode_offer(CompactOffer(3, b"abcd", steps=steps.pack([step(2, share=0.5)], SEED)))
    with pytest.raises(MessageError, match="not a next round"):
        small.decode_offer(message.replace(b"philox/1", b"phi\xffox/1"))


def body(*scalars, name="g"):
    head = f'{{"{name}":{{"dtype":"F32","shape":[{len(scalars)}]}}}}'.encode()
    return len(head).to_bytes(8, "little") + head + struct.pack(f"<{len(scalars)}f", *scalars)


LIKE = Contribution(
    task="digits", run="r1", round=300, boot=9, seq=270, kind="zeroth-order", num_examples=40,
    metrics=Metrics(2.25, 1504, 800, 40_000, energy_source="rapl", energy_off_percent=5), body=body(1.0, 2.0),
)  # fmt: skip


def like(number=301, **changes):
    fields = {"round": number, "seq": 271, "body": body(0.1, -3.5), **changes}
    return msgspec.structs.replace(LIKE, **fields)


def test_a_contribution_of_two_scalars_takes_twenty_bytes_beside_one_like_it():
    short = small.compact_contribution(like(), LIKE)
    assert len(short) == 20
    assert small.full_contribution(short, small.without_values(LIKE)) == like(seq=0)


def test_loss_is_exact_time_and_energy_within_four_thousandths_and_memory_is_as_it_was():
    measured = Metrics(0.123456, 123_457, 7_654_321, 99_999, energy_source="rapl", energy_off_percent=5)
    read = small.full_contribution(small.compact_contribution(like(metrics=measured), LIKE), LIKE).metrics
    assert read.train_loss == np.float32(0.123456)
    for figure in ("train_time_ms", "energy_mj"):
        assert getattr(read, figure) == pytest.approx(getattr(measured, figure), rel=0.004)
    assert read.peak_memory_kib == LIKE.metrics.peak_memory_kib


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "other"},
        {"run": "r2"},
        {"boot": 10},
        {"kind": "class-means"},
        {"num_examples": 41},
        {"form": "half"},
        {"body": body(1.0, name="h")},
        {"body": body(1.0)},
        {"body": b"", "blob": BLOB},
        {"round": 2**35},
        {"metrics": Metrics(2.25, 1500, 800, 40_000)},
        {"metrics": Metrics(2.25, 1500, 800, 40_000, 5, "rapl", 5)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_contribution_that_is_another_in_anything_else_goes_whole(changes):
    assert small.compact_contribution(like(), LIKE) is not None
    assert small.compact_contribution(msgspec.structs.replace(like(), **changes), LIKE) is None


def test_a_loss_that_is_no_number_or_infinite_is_told():
    for loss in (float("nan"), float("inf"), -1e-3):
        metrics = msgspec.structs.replace(LIKE.metrics, train_loss=loss)
        read = small.full_contribution(
            small.compact_contribution(like(metrics=metrics), LIKE), LIKE
        ).metrics.train_loss
        assert read == pytest.approx(loss, rel=1e-7, nan_ok=True)


def test_a_loss_beyond_binary32_goes_whole():
    metrics = msgspec.structs.replace(LIKE.metrics, train_loss=1e39)
    assert small.compact_contribution(like(metrics=metrics), LIKE) is None


def test_a_short_contribution_names_the_one_that_it_is_like():
    short = small.compact_contribution(like(), LIKE)
    with pytest.raises(MessageError, match="not like the one that is known"):
        small.full_contribution(short, msgspec.structs.replace(LIKE, seq=269))
