"""The log of steps: what is written is read again to the bit, in few bytes, and rubbish is refused."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import Base, Blob, MessageError, Step, Stretch

FLOAT32 = st.floats(width=32, allow_nan=False)
PLAIN = Step(3, "philox/1", 7, "all", 1e-3, 1.0, (0.5, -1.25))


def numbered(count, seed=None, start=1, scalar=0.1):
    """Steps of rounds in a row, whose scalars are float32 and no less."""
    (exact,) = struct.unpack("<f", struct.pack("<f", scalar))
    return [
        Step(
            n, "philox/1", n if seed is None else steps.round_seed(seed, n), "all", 0.01, 1.0, (exact, -exact)
        )
        for n in range(start, start + count)
    ]


@st.composite
def any_steps(draw):
    log = []
    for _ in range(draw(st.integers(0, 8))):
        width = draw(st.integers(1, 4))
        step = Step(
            round=draw(st.integers(0, 5)),
            generator=draw(st.sampled_from(["a/1", "b/1"])),
            seed=draw(st.integers(0, 2**64 - 1)),
            tunable="all",
            lr=draw(st.sampled_from([0.1, 0.2])),
            share=draw(st.sampled_from([1.0, 0.3])),
            scalars=tuple(draw(st.lists(FLOAT32 | st.floats(), min_size=width, max_size=width))),
        )
        log.append(step)
    return log


@given(any_steps())
def test_what_is_written_is_read_again_to_the_bit(log):
    read = steps.decode(steps.encode(log))
    assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(tuple(log))
    assert steps.count(steps.pack(log)) == len(log)


def test_a_step_of_two_scalars_takes_eight_bytes_where_its_seed_is_made_from_the_tasks():
    def bytes_of(count, seed):
        return len(steps.encode(numbered(count, seed), seed))

    assert bytes_of(501, 5) - bytes_of(1, 5) == 500 * 8 + 1  # and one of what says how long
    assert len(steps.encode(numbered(501))) - len(steps.encode(numbered(1))) == 500 * 16 + 2


@pytest.mark.parametrize(
    ("scalars", "form"),
    [((1.0, -127.0), "i1"), ((0.5, 1.0), "f2"), ((0.5, 2.0**-30), "f4"), ((0.5, 0.1), "f8"), ((-0.0,), "f2")],
)
def test_scalars_take_the_fewest_bytes_that_hold_them(scalars, form):
    [stretch] = steps.pack([msgspec.structs.replace(PLAIN, scalars=scalars)])
    assert stretch.form == form


def test_an_offer_holds_as_many_of_the_last_steps_as_there_is_room_for():
    many = numbered(100)
    assert steps.tail_of(many) == tuple(many[-32:])

    def of(scalars):
        return [msgspec.structs.replace(step, scalars=scalars) for step in many]

    for wide, room in (
        (of(many[0].scalars * 8), 4),
        (of((127.0,) * 16), 16),
    ):
        assert steps.tail_of(wide) == tuple(wide[-room:])
    assert steps.tail_of(of(many[0].scalars * 33)) == ()


def test_a_number_that_has_no_place_is_not_written():
    for wrong in ({"seed": -1}, {"seed": 2**64}):
        with pytest.raises(ValueError):
            steps.pack([msgspec.structs.replace(PLAIN, **wrong)])


@given(st.binary(max_size=60))
def test_rubbish_is_refused_with_one_kind_of_error(data):
    try:
        steps.decode(data)
    except MessageError as error:
        assert str(error)


def test_a_log_with_a_name_that_is_no_text_is_refused_with_the_same_error():
    data = steps.encode([PLAIN]).replace(b"philox/1", b"phi\xffox/1")
    with pytest.raises(MessageError, match="not a log of steps"):
        steps.decode(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 3},
        {"scalars": b""},
        {"scalars": bytes(7)},
        {"seeds": bytes(7)},
        {"seeds": bytes(16)},
        {"shares": bytes(9)},
    ],
)
def test_a_stretch_whose_numbers_do_not_fit_each_other_is_refused(wrong):
    sound = Stretch(3, "philox/1", "all", 0.1, 2, "f4", bytes(8), bytes(8))
    assert len(steps.unpack([sound])) == 1
    with pytest.raises(MessageError, match="steps from round 3 on"):
        steps.unpack([msgspec.structs.replace(sound, **wrong)])


def test_a_log_with_more_numbers_than_any_is_refused_before_it_is_read():
    bombs = {
        "1 steps and 1048577 scalars": [(1, steps.MOST_NUMBERS + 1)],
        "2 steps and 1048578 scalars": [(1, steps.MOST_NUMBERS // 2 + 1)] * 2,
        "513 steps and 513 scalars": [(513, 1)],
        "600 steps and 1200 scalars": [(300, 2)] * 2,
    }
    for what, sizes in bombs.items():
        stretches = [
            Stretch(1, "philox/1", "all", 0.1, width, "i1", bytes(n * width), 5) for n, width in sizes
        ]
        with pytest.raises(MessageError, match=f"a log of {what}: at most 512 and 1048576 are read"):
            steps.unpack(stretches)


def test_where_a_log_begins_follows_from_its_segments():
    def begins(at, segments):
        log = (Blob(bytes(32), 1),) * segments
        return steps.log_start(Base(checkpoint=(), sha=bytes(32), line=bytes(8), at=at, log=log))

    size = steps.SEGMENT
    assert [begins(0, 0), begins(1, 1), begins(size, 1), begins(size + 1, 2)] == [0, 0, 0, 0]
    assert [begins(size + 1, 1), begins(5 * size, 2), begins(7, 0)] == [size, 3 * size, 7]
