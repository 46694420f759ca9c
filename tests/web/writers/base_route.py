"""Routes to random base models, as Python finds them, and the steps of a route."""

import random
import tempfile
from pathlib import Path
from typing import Any

from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.blobs import Blobs, blob_of
from device_runtime.broker.wire.messages import Base, Blob, Step
from device_runtime.device.delivery.cache import BaseRoute, ReplayState, find_route, steps_of
from device_runtime.device.errors import UnusableBase

LINE, OTHER = bytes(8), bytes([1]) * 8
CASES = 100


def step(number: int, width: int = 2) -> Step:
    return Step(
        number, "philox/1", steps.round_seed(5, number), "all", 0.01, 1.0, tuple(map(float, range(width)))
    )


def base_at(draw: random.Random) -> Base:
    at = draw.choice((0, 1, 20, 31, 33, 511, 512, 513, 1500, 5000))
    since = draw.choice((0, at, at % steps.SEGMENT, min(at, 40)))
    width = draw.choice((1, 2, 200))
    count = min(at, 32, draw.choice((0, 1, 32)))
    log = min(-(-at // steps.SEGMENT), draw.choice((0, 1, 2, 16)))
    return Base(
        checkpoint=tuple(
            Blob(bytes([30 + part]) * 32, draw.choice((100, 10_000, 2**31)))
            for part in range(draw.choice((1, 3)))
        ),
        sha=bytes(draw.choice((4, 32))),
        line=LINE,
        steps=since,
        at=at,
        tail=steps.pack([step(number, width) for number in range(at - count, at)], 5),
        log=tuple(Blob(bytes([60 + part]) * 32, draw.choice((50, 5000, 2**20))) for part in range(log)),
    )


def plain_route(route: BaseRoute | None) -> dict[str, Any] | None:
    if route is None:
        return None
    return {
        "anew": route.start is None,
        "steps": route.steps,
        "needed": [[blob.sha, blob.size] for blob in route.needed],
    }


def cases() -> list[dict[str, Any]]:
    draw = random.Random(11)
    entries = []
    for _ in range(CASES):
        base = base_at(draw)
        state = None
        if draw.random() < 0.8:
            at = draw.choice((0, base.at, max(0, base.at - 1), max(0, base.at - 40), base.at + 1, 600))
            state = ReplayState(OTHER if draw.random() < 0.1 else LINE, at, {})
        here = [blob for blob in (*base.checkpoint, *base.log) if draw.random() < 0.4]
        entries.append(
            {
                "base": {
                    "checkpoint": [[blob.sha, blob.size] for blob in base.checkpoint],
                    "whole": base.whole,
                    "steps": base.steps,
                    "at": base.at,
                    "width": base.tail[-1].width if base.tail else 0,
                    "tail": steps.count(base.tail),
                    "log": [[blob.sha, blob.size] for blob in base.log],
                },
                "state": None if state is None else {"line": state.line, "at": state.at},
                "here": [blob.sha for blob in here],
                "route": plain_route(find_route(base, state, here.__contains__)),
            }
        )
    return entries


def gone(blobs: Blobs, base: Base, route: BaseRoute) -> dict[str, Any]:
    try:
        return {"rounds": [step_.round for step_ in steps_of(route, base, blobs)]}
    except UnusableBase as error:
        return {"error": str(error)}


def logged() -> list[dict[str, Any]]:
    """The steps of a route, from a log of 600 steps in two segments."""
    log_steps = [step(number) for number in range(600)]
    segments = [steps.encode(log_steps[:512], 5), steps.encode(log_steps[512:], 5)]
    log = tuple(map(blob_of, segments))
    base = Base((Blob(bytes(32), 9),), bytes(32), LINE, 600, 600, steps.pack(log_steps[-32:], 5), log)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        blobs = Blobs(Path(folder))
        for segment in segments:
            blobs.put(segment)
        for count, first in ((0, 2), (32, 2), (33, 1), (88, 1), (600, 0), (89, 1)):
            route = BaseRoute(None, count, log[first:])
            results.append({"steps": count, "from": first, **gone(blobs, base, route)})
    return [{"segments": segments, "tail": [568, 600], "at": 600, "gone": results}]


def vectors() -> dict[str, Any]:
    return {"cases": cases(), "logged": logged()}
