"""A round of scalars in few bytes: the next one for who has the offer of this one, and a device's answer.

No clock, no sockets. Both are written only where reading them gives what they stand for, to the bit; else
the whole offer or contribution goes. Neither is a MessagePack array, by whose first byte those are told.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from . import step_log as log
from .messages import CHECK_BYTES, VERSION, Contribution, MessageError, Offer, Step, Stretch

_VERSION = VERSION & 0x0F
WITH_WORD, _OVER, _STRETCHES = 0x10, 0x20, 0x40
WORD_BYTES = 8
MOST_ROUNDS = 2**35
MOST_BYTES = 2048
"""Of a whole contribution that others are like: beside more, what is left out does not matter."""
FOLLOWED = 128
"""Steps that who follows has at hand, for when it comes to work again."""
_METRICS = struct.Struct("<f2H")


class LostTrack(MessageError):
    """The round before is not known here as it was: ask for the whole offer."""


@dataclass(frozen=True)
class Next:
    """Round `round` is open, and nothing else has changed but that the base has moved by steps.

    `check`: the first CHECK_BYTES of the hash of the new base. `steps`: those of the round before; or only
    `scalars`, of one step in all else like the one before it. `over`: what was made for the round before and
    has no receipt does not count any more.
    """

    round: int
    check: bytes
    over: bool = False
    scalars: tuple[float, ...] = ()
    steps: tuple[Stretch, ...] = ()


def is_next(payload: bytes) -> bool:
    """Whether this is no MessagePack array."""
    return bool(payload) and payload[0] < 0x80


def encode_next(made: Next) -> bytes:
    """Without a word behind it."""
    flags = (_OVER if made.over else 0) | (_STRETCHES if made.steps else 0)
    rest = msgspec.msgpack.encode(made.steps) if made.steps else _floats(made.scalars)
    return bytes([_VERSION | flags]) + _number(made.round) + made.check + rest


def with_word(payload: bytes, word: bytes) -> bytes:
    """With the word (see `pact`) on `payload` behind it."""
    return bytes([payload[0] | WITH_WORD]) + payload[1:] + word


def split_mac(payload: bytes) -> tuple[bytes, bytes]:
    """What the word is on, and the word; empty where there is none."""
    if not payload[:1] or not payload[0] & WITH_WORD:
        return payload, b""
    return bytes([payload[0] & ~WITH_WORD]) + payload[1:-WORD_BYTES], payload[-WORD_BYTES:]


def decode_next(payload: bytes) -> Next:
    """Of what `parted` gives. Raises MessageError."""
    number, rest = _headed(payload, "next round")
    check, rest = rest[:CHECK_BYTES], rest[CHECK_BYTES:]
    over = bool(payload[0] & _OVER)
    if len(check) < CHECK_BYTES:
        raise MessageError(f"not a next round: {len(payload)} bytes")
    if not payload[0] & _STRETCHES:
        return Next(number, check, over, scalars=_from_floats(rest))
    try:
        return Next(number, check, over, steps=msgspec.msgpack.decode(rest, type=tuple[Stretch, ...]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a next round: {error}") from None


def following(before: Offer, made: Next) -> Offer:
    """The offer that it stands for, to who has the one before. Raises LostTrack, MessageError."""
    if before.done or before.round < 1 or made.round != before.round + 1:
        raise LostTrack(f"round {made.round} of {before.task!r} is open; round {before.round} is known here")
    base = before.base
    new = made.steps
    if made.scalars:
        if not base.tail:
            raise LostTrack(f"round {made.round} of {before.task!r}: no step is known that it is like")
        like = base.tail[-1]
        step = Step(before.round, like.generator, before.seed, like.tunable, like.lr, 1.0, made.scalars)
        new = log.pack([step], like.seeds if isinstance(like.seeds, int) else None)
    tail = log.joined(base.tail, new, FOLLOWED)
    if not tail or not isinstance(tail[-1].seeds, int):
        raise LostTrack(f"round {made.round} of {before.task!r}: its seed is not known here")
    count = log.count(new)
    base = msgspec.structs.replace(
        base, sha=made.check, steps=base.steps + count, at=base.at + count, tail=tail, log=()
    )
    return msgspec.structs.replace(
        before,
        round=made.round,
        seed=log.round_seed(tail[-1].seeds, made.round),
        remaining_s=before.deadline_s,
        base=base,
    )


def next_after(before: Offer, now: Offer, steps: tuple[Step, ...], over: bool) -> Next | None:
    """What leads from one offer to the next, by these steps; None where that takes the whole offer."""
    if before.done or before.base.checkpoint != now.base.checkpoint or before.base.line != now.base.line:
        return None
    check = now.base.sha[:CHECK_BYTES]
    made = [Next(now.round, check, over, steps=log.pack(steps, _task_seed(now)))] if steps else []
    if len(steps) <= 1:
        made.insert(0, Next(now.round, check, over, steps[0].scalars if steps else ()))
    for one in made:
        try:
            read = decode_next(encode_next(one))
            led = following(before, read)
            if _alike(led, now) and log.unpack(led.base.tail)[-len(steps) or led.base.at :] == steps:
                return one
        except (MessageError, OverflowError):
            continue
    return None


def _task_seed(offer: Offer) -> int | None:
    seeds = [one.seeds for one in offer.base.tail if isinstance(one.seeds, int)]
    return seeds[-1] if seeds else None


def _alike(led: Offer, now: Offer) -> bool:
    """But for what remains, and how the base is told."""
    led_base = msgspec.structs.replace(led.base, sha=now.base.sha, tail=now.base.tail, log=now.base.log)
    return msgspec.structs.replace(led, base=led_base, remaining_s=now.remaining_s) == now


def short_of(message: Contribution, like: Contribution) -> bytes | None:
    """A contribution in few bytes for who has received `like`; None where that is not possible."""
    head = _head(like.body)
    metrics = message.metrics
    try:
        written = _METRICS.pack(
            metrics.train_loss, _rounded(metrics.train_time_ms), _rounded(metrics.energy_mj)
        )
    except OverflowError:
        return None
    short = bytes([_VERSION]) + _number(message.round) + bytes([like.seq & 0xFF]) + written
    short += message.body[len(head) :]
    if not head or not message.body.startswith(head) or message.round >= MOST_ROUNDS:
        return None
    return short if _same(long_of(short, like), message) else None


def without_numbers(message: Contribution) -> Contribution:
    """All of a contribution that `long_of` needs to know."""
    return msgspec.structs.replace(message, body=_head(message.body))


def long_of(payload: bytes, like: Contribution) -> Contribution:
    """The contribution that it stands for; `seq` is 0. Raises MessageError."""
    number, rest = _headed(payload, "short contribution")
    if len(rest) < 1 + _METRICS.size or rest[0] != like.seq & 0xFF:
        raise MessageError("a short contribution that is not like the one that is known")
    loss, *halves = _METRICS.unpack_from(rest, 1)
    try:
        time_ms, energy_mj = (round(_number_of(half)) for half in halves)
        metrics = msgspec.structs.replace(
            like.metrics, train_loss=loss, train_time_ms=time_ms, energy_mj=energy_mj
        )
    except (ValueError, OverflowError) as error:
        raise MessageError(f"not a short contribution: {error}") from None
    body = _head(like.body) + rest[1 + _METRICS.size :]
    return msgspec.structs.replace(like, round=number, seq=0, metrics=metrics, body=body)


def _same(read: Contribution, message: Contribution) -> bool:
    """But for the name of the sending, and for metrics that are rounded or as in the one before."""
    metrics = msgspec.structs.replace(
        message.metrics,
        train_loss=0.0,
        train_time_ms=0,
        energy_mj=0,
        peak_memory_kib=read.metrics.peak_memory_kib,
    )
    rounded = msgspec.structs.replace(read.metrics, train_loss=0.0, train_time_ms=0, energy_mj=0)
    ours = msgspec.structs.replace(message, seq=0, metrics=metrics)
    return msgspec.structs.replace(read, metrics=rounded) == ours


def _head(body: bytes) -> bytes:
    """Of safetensors: their names, types and shapes; empty where it is none."""
    if len(body) < 8:
        return b""
    end = 8 + int.from_bytes(body[:8], "little")
    return body[:end] if end <= len(body) else b""


def _rounded(value: float) -> int:
    """The upper half of a binary32, rounded: 8 bits of the number."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return 0x7F80
    return int(bits >> 16) if value != value else min(0xFF80, int(bits + 0x8000) >> 16)


def _number_of(half: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", half << 16))
    return float(value)


def _floats(values: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _from_floats(data: bytes) -> tuple[float, ...]:
    if len(data) % 4:
        raise MessageError(f"not a next round: {len(data)} bytes are no scalars")
    return struct.unpack(f"<{len(data) // 4}f", data)


def _number(value: int) -> bytes:
    """7 bits a byte, the lowest first; the highest bit of a byte says that another follows."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _headed(payload: bytes, what: str) -> tuple[int, bytes]:
    """The round, and what follows it."""
    if not payload or payload[0] & 0x0F != _VERSION or payload[0] & (0x80 | WITH_WORD):
        raise MessageError(f"not a {what} of protocol version {VERSION}")
    number = 0
    for place, byte in enumerate(payload[1:6]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, payload[place + 2 :]
    raise MessageError(f"not a {what}: its round has no end")
