"""How a device makes a base model: by replaying steps from its state, or from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from device_runtime.broker.wire import step_log
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Base, Blob, MessageError, Step
from device_runtime.device.errors import UnusableBase
from device_runtime.models.bundles.tensors import Tensors

MOST_REPLAYED = 2**34
"""Most products of a scalar and an element of its direction to replay if a checkpoint can be had instead.

They take a minute or two on a small board, see docs/zeroth-order.md.
"""


@dataclass(frozen=True)
class ReplayState:
    """Weights that the device has, after `at` steps of the log named `line`."""

    line: bytes
    at: int
    weights: Tensors


@dataclass(frozen=True)
class BaseRoute:
    """Replays `steps` steps from `start`, or from the checkpoint if that is None.

    `needed` are the blobs for it.
    """

    start: ReplayState | None
    steps: int
    needed: tuple[Blob, ...]


def find_route(base: Base, state: ReplayState | None, here: Callable[[Blob], bool]) -> BaseRoute | None:
    """The route to a base that fetches fewer bytes, from the replay state or from the checkpoint.

    None if the base names no route, or if the whole offer may name a shorter one. Blobs that are `here` need
    not be fetched. If there is a choice, replay is limited to MOST_REPLAYED.
    """
    segments = _segments(base, base.steps)
    anew = None if segments is None else BaseRoute(None, base.steps, (*base.checkpoint, *segments))
    if state is None or state.line != base.line or not state.at <= base.at:
        return anew
    lacking = base.at - state.at
    segments = _segments(base, lacking)
    if segments is None:
        return anew if base.whole or (anew and not _lacking(anew, here)) else None
    on = BaseRoute(state, lacking, segments)
    if anew is None:
        return on
    elements = sum(part.size for part in base.checkpoint) // 4
    scalars = lacking * base.tail[-1].width if base.tail else sum(blob.size for blob in segments)
    if scalars * elements > MOST_REPLAYED and lacking > base.steps:
        return anew
    return on if _lacking(on, here) <= _lacking(anew, here) else anew


def steps_of(route: BaseRoute, base: Base, blobs: Blobs) -> tuple[Step, ...]:
    """The steps of a route. Raises BlobError, UnusableBase for a log that is damaged or not of this base."""
    try:
        tail = step_log.unpack(base.tail)
        if route.steps <= len(tail):
            return tail[len(tail) - route.steps :]
        named = [blob for blob in route.needed if blob in base.log]
        logged = tuple(step for blob in named for step in step_log.decode(blobs.get(blob)))
    except MessageError as error:
        raise UnusableBase(f"the log of the base is damaged: {error}") from None
    if len(logged) < route.steps:
        raise UnusableBase(f"the log of the base has {len(logged)} steps, {route.steps} are needed")
    return logged[len(logged) - route.steps :]


def _segments(base: Base, lacking: int) -> tuple[Blob, ...] | None:
    """The blobs with the last `lacking` steps: none if the offer itself has them.

    None if the log does not go back so far.
    """
    if lacking <= _in_tail(base):
        return ()
    first = base.at - lacking
    if first < step_log.log_start(base) or first < 0:
        return None
    return base.log[(first - step_log.log_start(base)) // step_log.SEGMENT :]


def _in_tail(base: Base) -> int:
    try:
        return step_log.count(base.tail)
    except MessageError as error:
        raise UnusableBase(f"the last steps of the base are damaged: {error}") from None


def _lacking(route: BaseRoute, here: Callable[[Blob], bool]) -> int:
    """Bytes to fetch."""
    return sum(blob.size for blob in route.needed if not here(blob))
