"""The messages between an aggregator and its mask helpers, as those of `messages`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .messages import Blob, Mask, Message, State, decode


class HelperState(State, frozen=True, array_like=True, kw_only=True):
    """`up/state` of a mask helper. `checks`: it answers `SumCheck`; helpers of before could not."""

    checks: bool = False


class SumSeed(msgspec.Struct, frozen=True, array_like=True):
    """The mask of one device of a sum, and the form of the update's kind, to which the mask is bound."""

    device: str
    form: str
    mask: Mask


_Count = Annotated[int, Meta(ge=0, le=2**31)]
_Exponent = Annotated[int, Meta(ge=-1024, le=31)]


class SumRequest(Message, frozen=True, array_like=True, kw_only=True):
    """`dn/sum`: asks a mask helper for the sum of the masks of a set of devices.

    All of them sent updates of `kind` for `round`. `at`: the helper's place among the helpers of the offer.
    `values` and `sums` are the lengths of the vector. Exactly one of `body` and `blob` is given: the encoded
    tuple of SumSeed. A request with the same `id` is the same request.
    """

    id: Annotated[bytes, Meta(min_length=32, max_length=32)]
    task: str
    run: str
    round: int
    kind: str
    at: Annotated[int, Meta(ge=0, le=2)]
    min_group: Annotated[int, Meta(ge=1, le=2**20)]
    values: Annotated[int, Meta(ge=0, le=2**31)]
    sums: Annotated[int, Meta(ge=0, le=2**31)]
    noise_milli: Annotated[int, Meta(ge=0, le=2**40)] = 0
    clip_milli: Annotated[int, Meta(ge=0, le=2**40)] = 0
    exponents: tuple[tuple[_Count, _Exponent], ...] = ()
    """With noise: how many values there are of each fixed-point exponent, in order."""
    body: bytes = b""
    blob: Blob | None = None


MOST_NAMED = 1000
"""The most devices that an answer names; a message has at most MESSAGE_LIMIT bytes."""
_Names = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=MOST_NAMED)]


class SumCheck(Message, frozen=True, array_like=True, kw_only=True):
    """`dn/sum`: asks a mask helper whether it would answer a request; it notes nothing.

    Only helpers whose presence says so (`HelperState.checks`) are asked; others cannot read it.
    """

    request: SumRequest


class SumAnswer(Message, frozen=True, array_like=True, kw_only=True):
    """A helper's answer to a SumRequest (`up/sum`): the sum of masks (`MaskedVector`), or why there is none.

    Exactly one of `body`, `blob` and `refusal` is given. A refusal names devices without which the sum might
    be told: `invalid` are those whose masks cannot be opened, `used` those whose masks are in another set.
    `checked`: it answers a SumCheck; without a refusal the request would be answered.
    """

    id: Annotated[bytes, Meta(min_length=32, max_length=32)]
    body: bytes = b""
    blob: Blob | None = None
    refusal: str = ""
    invalid: _Names = ()
    used: _Names = ()
    checked: bool = False


def sum_question_in(payload: bytes) -> SumRequest | SumCheck:
    """The question on `dn/sum` in a payload, told apart by the length of its array. Raises MessageError."""
    is_check = payload[:1] == bytes([0x90 + len(SumCheck.__struct_fields__)])
    return decode(payload, SumCheck) if is_check else decode(payload, SumRequest)
