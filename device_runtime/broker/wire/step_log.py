"""Compact encoding of the log of zeroth-order steps: fields that steps share are written once.

No clock, no sockets, no numpy. The encoding is exact: scalars take the fewest bytes that hold every bit, and
seeds that are derived from the task's (`round_seed`) take none.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from .messages import Base, Form, MessageError, Step, Stretch

SEGMENT = 512
"""Steps in one blob of the log, and between two checkpoints."""
MOST_SEGMENTS = 16
"""Blobs of the log that are kept: a device that lacks more steps than these hold fetches the checkpoint."""
TAIL, TAIL_BYTES = 32, 256
"""The most steps in an offer itself, and the most bytes of their scalars."""
MOST_STEPS, MOST_NUMBERS = SEGMENT, 2**20
"""The most steps in one blob or list of stretches, and the most scalars; more are refused."""

_FORMS: dict[Form, tuple[str, int]] = {"i1": ("b", 1), "f2": ("e", 2), "f4": ("f", 4), "f8": ("d", 8)}


def round_seed(seed: int, number: int) -> int:
    """The seed of a round, from the task's seed; below 2**53, so that every language holds it exactly."""
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 11


def numbers_bytes(step: Step) -> int:
    """Bytes that the scalars of a step take, unless another step of its stretch needs a wider format."""
    return _FORMS[_form(step.scalars)][1] * len(step.scalars)


def tail_of(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The last steps, as many as fit in an offer."""
    room, count = TAIL_BYTES, 0
    for step in reversed(steps[-TAIL:]):
        room -= numbers_bytes(step)
        if room < 0:
            break
        count += 1
    return tuple(steps[len(steps) - count :])


def pack(steps: Iterable[Step], seed: int | None = None) -> tuple[Stretch, ...]:
    """The stretches of steps, in order; `seed` is the task's. Raises ValueError for a number out of range."""
    stretches = []
    for _, group in groupby(enumerate(steps), lambda entry: _common(*entry)):
        try:
            stretches.append(_stretch([step for _, step in group], seed))
        except (struct.error, OverflowError) as error:
            raise ValueError(f"a step cannot be written: {error}") from None
    return tuple(stretches)


def unpack(stretches: Sequence[Stretch]) -> tuple[Step, ...]:
    """The steps of stretches. Raises MessageError for invalid stretches, and for more than a log may hold."""
    steps, numbers = count(stretches), sum(_count(stretch) * stretch.width for stretch in stretches)
    if steps > MOST_STEPS or numbers > MOST_NUMBERS:
        raise MessageError(
            f"a log of {steps} steps and {numbers} scalars: at most {MOST_STEPS} and {MOST_NUMBERS} are read"
        )
    return tuple(step for stretch in stretches for step in _steps(stretch))


def last_of_both(before: Sequence[Stretch], new: Sequence[Stretch], most: int) -> tuple[Stretch, ...]:
    """The last `most` steps of the two lists together; stretches that continue each other become one.

    Raises MessageError as `unpack`.
    """
    stretches = list(before)
    for stretch in new:
        if stretches and _continues(stretches[-1], stretch):
            scalars = stretches[-1].scalars + stretch.scalars
            stretches[-1] = msgspec.structs.replace(stretches[-1], scalars=scalars)
        else:
            stretches.append(stretch)
    over = count(stretches) - most
    while over > 0:
        steps = _count(stretches[0])
        first = stretches.pop(0)
        if over < steps:
            stretches.insert(0, _drop_first(first, over, steps))
        over -= steps
    return tuple(stretches)


def count(stretches: Iterable[Stretch]) -> int:
    """The number of steps. Raises MessageError as `unpack`."""
    return sum(_count(stretch) for stretch in stretches)


def encode(steps: Iterable[Step], seed: int | None = None) -> bytes:
    """A blob of the log with these steps."""
    return msgspec.msgpack.encode(pack(steps, seed))


def decode(data: bytes) -> tuple[Step, ...]:
    """The steps in a blob of the log. Raises MessageError for an invalid one."""
    try:
        return unpack(msgspec.msgpack.decode(data, type=tuple[Stretch, ...]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a log of steps: {error}") from None


def log_start(base: Base) -> int:
    """The number, on the base's line of steps, of the first step in its log."""
    if not base.log:
        return base.at
    return max(0, (base.at - 1) // SEGMENT - len(base.log) + 1) * SEGMENT


def _common(place: int, step: Step) -> tuple[object, ...]:
    """The values that are equal in all steps of one stretch; `place` is the step's index."""
    return step.round - place, step.generator, step.tunable, step.lr, len(step.scalars)


def _stretch(steps: Sequence[Step], seed: int | None) -> Stretch:
    first = steps[0]
    scalars = [scalar for step in steps for scalar in step.scalars]
    shares = [step.share for step in steps]
    from_seed = seed is not None and all(step.seed == round_seed(seed, step.round) for step in steps)
    form = _form(scalars)
    return Stretch(
        round=first.round,
        generator=first.generator,
        tunable=first.tunable,
        lr=first.lr,
        width=len(first.scalars),
        form=form,
        scalars=_packed(_FORMS[form][0], scalars),
        seeds=seed if from_seed and seed is not None else _packed("Q", [step.seed for step in steps]),
        shares=b"" if set(shares) == {1.0} else _packed("d", shares),
    )


def _form(scalars: Sequence[float]) -> Form:
    """The format of the fewest bytes that holds these scalars exactly."""
    return next(form for form in _FORMS if _holds(form, scalars))


def _holds(form: Form, scalars: Sequence[float]) -> bool:
    """Whether this format holds every bit of these scalars."""
    letter, _ = _FORMS[form]
    bits = _packed("d", scalars)
    try:
        return _packed("d", _unpacked(letter, _packed(letter, scalars))) == bits
    except (struct.error, OverflowError, ValueError):
        return False


def _packed(letter: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}{letter}", *(map(int, values) if letter == "b" else values))


def _unpacked(letter: str, data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


def _count(stretch: Stretch) -> int:
    size = stretch.width * _FORMS[stretch.form][1]
    if stretch.width < 1 or not stretch.scalars or len(stretch.scalars) % size:
        raise _invalid(stretch, f"{len(stretch.scalars)} bytes are no steps of {stretch.width} scalars")
    return len(stretch.scalars) // size


def _steps(stretch: Stretch) -> Iterable[Step]:
    steps, width = _count(stretch), stretch.width
    scalars = _unpacked(_FORMS[stretch.form][0], stretch.scalars)
    shares = _each("d", stretch.shares, steps) if stretch.shares else (1.0,) * steps
    rounds = range(stretch.round, stretch.round + steps)
    if isinstance(stretch.seeds, int):
        seeds: Sequence[float] = [round_seed(stretch.seeds, number) for number in rounds]
    else:
        seeds = _each("Q", stretch.seeds, steps)
    if len(shares) != steps or len(seeds) != steps:
        raise _invalid(stretch, f"{steps} steps, {len(shares)} shares, {len(seeds)} seeds")
    for place, number in enumerate(rounds):
        yield Step(
            round=number,
            generator=stretch.generator,
            seed=int(seeds[place]),
            tunable=stretch.tunable,
            lr=stretch.lr,
            share=shares[place],
            scalars=tuple(map(float, scalars[place * width : (place + 1) * width])),
        )


def _continues(stretch: Stretch, new: Stretch) -> bool:
    """Whether `new` continues `stretch`, and neither stores seeds or shares for each step."""
    like = msgspec.structs.replace(new, round=stretch.round, scalars=stretch.scalars)
    plain = isinstance(stretch.seeds, int) and not stretch.shares
    return plain and like == stretch and new.round == stretch.round + _count(stretch)


def _drop_first(stretch: Stretch, first: int, steps: int) -> Stretch:
    """A stretch of `steps` steps without the first ones."""

    def rest(data: bytes) -> bytes:
        return data[len(data) // steps * first :]

    return msgspec.structs.replace(
        stretch,
        round=stretch.round + first,
        scalars=rest(stretch.scalars),
        seeds=rest(stretch.seeds) if isinstance(stretch.seeds, bytes) else stretch.seeds,
        shares=rest(stretch.shares),
    )


def _each(letter: str, data: bytes, steps: int) -> tuple[float, ...]:
    return _unpacked(letter, data) if len(data) == 8 * steps else ()


def _invalid(stretch: Stretch, why: str) -> MessageError:
    return MessageError(f"steps from round {stretch.round} on: {why}")
