"""Compact encoding of zeroth-order rounds: the offer of the next round, and a device's contribution.

No clock, no sockets. A compact offer goes to devices that have the offer of the round before; a compact
contribution goes to an aggregator that has a similar one from the device. Either is sent only if decoding it
gives the full message, bit for bit; otherwise the full message is sent. Full messages are MessagePack arrays,
and their first byte tells them from compact ones.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from . import step_log as log
from .messages import CHECK_BYTES, VERSION, Contribution, MessageError, Offer, Step, Stretch

_VERSION = VERSION & 0x0F
WITH_MAC, _OVER, _STRETCHES = 0x10, 0x20, 0x40
MAC_BYTES = 8
MOST_ROUNDS = 2**35
MOST_BYTES = 2048
"""The largest full contribution that has compact forms; in a larger one the saving does not matter."""
FOLLOWED_STEPS = 128
"""Steps that a device keeps while it follows compact offers, to replay when it works again."""
_METRICS = struct.Struct("<f2H")


class UnknownRoundBefore(MessageError):
    """The round before is not known here as the sender knows it: ask for the full offer."""


@dataclass(frozen=True)
class CompactOffer:
    """The compact offer of round `round`: nothing has changed but the round and, by steps, the base.

    `check`: the first CHECK_BYTES of the hash of the new base. `steps`: the steps of the round before; or
    only the `scalars` of one step, which is otherwise like the step before it. `over`: contributions to the
    round before that have no receipt do not count any more.
    """

    round: int
    check: bytes
    over: bool = False
    scalars: tuple[float, ...] = ()
    steps: tuple[Stretch, ...] = ()


def is_compact_offer(payload: bytes) -> bool:
    """Whether a payload is a compact offer, not a MessagePack array."""
    return bool(payload) and payload[0] < 0x80


def encode_offer(compact: CompactOffer) -> bytes:
    """The compact offer in bytes, without a MAC."""
    flags = (_OVER if compact.over else 0) | (_STRETCHES if compact.steps else 0)
    rest = msgspec.msgpack.encode(compact.steps) if compact.steps else _floats(compact.scalars)
    return bytes([_VERSION | flags]) + _varint(compact.round) + compact.check + rest


def with_mac(payload: bytes, mac: bytes) -> bytes:
    """The payload with its MAC (see `security.signing`) appended."""
    return bytes([payload[0] | WITH_MAC]) + payload[1:] + mac


def split_mac(payload: bytes) -> tuple[bytes, bytes]:
    """The payload without its MAC, and the MAC; the MAC is empty if there is none."""
    if not payload[:1] or not payload[0] & WITH_MAC:
        return payload, b""
    return bytes([payload[0] & ~WITH_MAC]) + payload[1:-MAC_BYTES], payload[-MAC_BYTES:]


def decode_offer(payload: bytes) -> CompactOffer:
    """Read a compact offer that has no MAC (see `split_mac`). Raises MessageError."""
    number, rest = _split_header(payload, "next round")
    check, rest = rest[:CHECK_BYTES], rest[CHECK_BYTES:]
    over = bool(payload[0] & _OVER)
    if len(check) < CHECK_BYTES:
        raise MessageError(f"not a next round: {len(payload)} bytes")
    if not payload[0] & _STRETCHES:
        return CompactOffer(number, check, over, scalars=_from_floats(rest))
    try:
        return CompactOffer(number, check, over, steps=msgspec.msgpack.decode(rest, type=tuple[Stretch, ...]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a next round: {error}") from None


def full_offer(before: Offer, compact: CompactOffer) -> Offer:
    """The full offer, from the offer before and a compact one. Raises UnknownRoundBefore, MessageError."""
    if before.done or before.round < 1 or compact.round != before.round + 1:
        raise UnknownRoundBefore(
            f"round {compact.round} of {before.task!r} is open; round {before.round} is known here"
        )
    base = before.base
    new = compact.steps
    if compact.scalars:
        if not base.tail:
            raise UnknownRoundBefore(
                f"round {compact.round} of {before.task!r}: the previous step is not known here"
            )
        like = base.tail[-1]
        step = Step(before.round, like.generator, before.seed, like.tunable, like.lr, 1.0, compact.scalars)
        new = log.pack([step], like.seeds if isinstance(like.seeds, int) else None)
    tail = log.last_of_both(base.tail, new, FOLLOWED_STEPS)
    if not tail or not isinstance(tail[-1].seeds, int):
        raise UnknownRoundBefore(f"round {compact.round} of {before.task!r}: its seed is not known here")
    count = log.count(new)
    base = msgspec.structs.replace(
        base, sha=compact.check, steps=base.steps + count, at=base.at + count, tail=tail, log=()
    )
    return msgspec.structs.replace(
        before,
        round=compact.round,
        seed=log.round_seed(tail[-1].seeds, compact.round),
        remaining_s=before.deadline_s,
        base=base,
    )


def compact_offer(before: Offer, now: Offer, steps: tuple[Step, ...], over: bool) -> CompactOffer | None:
    """The compact offer for a device that has the offer before; None if only a full one will do."""
    if before.done or before.base.checkpoint != now.base.checkpoint or before.base.line != now.base.line:
        return None
    check = now.base.sha[:CHECK_BYTES]
    candidates = (
        [CompactOffer(now.round, check, over, steps=log.pack(steps, _task_seed(now)))] if steps else []
    )
    if len(steps) <= 1:
        candidates.insert(0, CompactOffer(now.round, check, over, steps[0].scalars if steps else ()))
    for candidate in candidates:
        try:
            full = full_offer(before, decode_offer(encode_offer(candidate)))
            if _alike(full, now) and log.unpack(full.base.tail)[-len(steps) or full.base.at :] == steps:
                return candidate
        except (MessageError, OverflowError):
            continue
    return None


def _task_seed(offer: Offer) -> int | None:
    """The task's seed, as the last steps of the offer give it; None if they do not."""
    seeds = [stretch.seeds for stretch in offer.base.tail if isinstance(stretch.seeds, int)]
    return seeds[-1] if seeds else None


def _alike(decoded: Offer, now: Offer) -> bool:
    """Whether two offers are equal but for the remaining time and the description of the base."""
    base = msgspec.structs.replace(decoded.base, sha=now.base.sha, tail=now.base.tail, log=now.base.log)
    return msgspec.structs.replace(decoded, base=base, remaining_s=now.remaining_s) == now


def compact_contribution(message: Contribution, like: Contribution) -> bytes | None:
    """The compact contribution for an aggregator that has received `like`; None if that is not possible."""
    head = _head(like.body)
    metrics = message.metrics
    try:
        written = _METRICS.pack(
            metrics.train_loss, _to_bfloat16(metrics.train_time_ms), _to_bfloat16(metrics.energy_mj)
        )
    except OverflowError:
        return None
    short = bytes([_VERSION]) + _varint(message.round) + bytes([like.seq & 0xFF]) + written
    short += message.body[len(head) :]
    if not head or not message.body.startswith(head) or message.round >= MOST_ROUNDS:
        return None
    return short if _same(full_contribution(short, like), message) else None


def without_values(message: Contribution) -> Contribution:
    """A contribution without the values of its tensors: all that `full_contribution` needs of `like`."""
    return msgspec.structs.replace(message, body=_head(message.body))


def full_contribution(payload: bytes, like: Contribution) -> Contribution:
    """The full contribution, from a compact one and the one that it is like; `seq` is 0.

    Raises MessageError.
    """
    number, rest = _split_header(payload, "short contribution")
    if len(rest) < 1 + _METRICS.size or rest[0] != like.seq & 0xFF:
        raise MessageError("a short contribution that is not like the one that is known")
    loss, *halves = _METRICS.unpack_from(rest, 1)
    try:
        time_ms, energy_mj = (round(_from_bfloat16(half)) for half in halves)
        metrics = msgspec.structs.replace(
            like.metrics, train_loss=loss, train_time_ms=time_ms, energy_mj=energy_mj
        )
    except (ValueError, OverflowError) as error:
        raise MessageError(f"not a short contribution: {error}") from None
    body = _head(like.body) + rest[1 + _METRICS.size :]
    return msgspec.structs.replace(like, round=number, seq=0, metrics=metrics, body=body)


def _same(read: Contribution, message: Contribution) -> bool:
    """Whether both are equal but for `seq`, rounded metrics, and the peak memory, which is that of `like`."""
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
    """The header of safetensors: names, types and shapes; empty if `body` is none."""
    if len(body) < 8:
        return b""
    end = 8 + int.from_bytes(body[:8], "little")
    return body[:end] if end <= len(body) else b""


def _to_bfloat16(value: float) -> int:
    """The upper half of a binary32, rounded; it keeps 8 significant bits."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return 0x7F80
    return int(bits >> 16) if value != value else min(0xFF80, int(bits + 0x8000) >> 16)


def _from_bfloat16(half: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", half << 16))
    return float(value)


def _floats(values: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _from_floats(data: bytes) -> tuple[float, ...]:
    if len(data) % 4:
        raise MessageError(f"not a next round: {len(data)} bytes are no scalars")
    return struct.unpack(f"<{len(data) // 4}f", data)


def _varint(value: int) -> bytes:
    """A number in 7 bits a byte, the lowest first; the highest bit of a byte says that another follows."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _split_header(payload: bytes, what: str) -> tuple[int, bytes]:
    """The number of the round, and the bytes behind it. Raises MessageError."""
    if not payload or payload[0] & 0x0F != _VERSION or payload[0] & (0x80 | WITH_MAC):
        raise MessageError(f"not a {what} of protocol version {VERSION}")
    number = 0
    for place, byte in enumerate(payload[1:6]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, payload[place + 2 :]
    raise MessageError(f"not a {what}: its round has no end")
