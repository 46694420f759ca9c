"""The log of steps as Python writes it, and what of it does not fit together."""

import struct
from typing import Any

import msgspec
import numpy as np

from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import Base, Blob, MessageError, Step, Stretch

SEED = 5
LARGE = 2**64 - 1
BLOB = Blob(bytes(32), 9)


def step(number: int, scalars: tuple[float, ...] = (0.5, -1.25), **changes: Any) -> Step:
    usual = Step(number, "philox/1", steps.round_seed(SEED, number), "all", 0.01, 1.0, scalars)
    return msgspec.structs.replace(usual, **changes)


def plain_step(step_: Step) -> dict[str, Any]:
    """Scalars in bytes of binary64; seed as text."""
    return {
        "round": step_.round,
        "generator": step_.generator,
        "seed": str(step_.seed),
        "tunable": step_.tunable,
        "lr": step_.lr,
        "share": step_.share,
        "scalars": struct.pack(f"<{len(step_.scalars)}d", *step_.scalars),
    }


F32 = float(np.float32(0.1))
LOGS: dict[str, tuple[list[Step], int | None]] = {
    "one, whole numbers": ([step(1, (3.0, -128.0))], SEED),
    "one, binary16": ([step(1)], SEED),
    "one, binary32": ([step(1, (F32, 2.0))], SEED),
    "one, binary64": ([step(1, (0.1, 2.0))], SEED),
    "minus nothing, and the smallest": ([step(1, (-0.0, 2.0**-24))], SEED),
    "no numbers": ([step(1, (float("inf"), float("nan")))], SEED),
    "rounds that follow": ([step(number, (F32 * number,)) for number in range(1, 40)], SEED),
    "seeds of their own": ([step(1, seed=LARGE), step(2, seed=0)], SEED),
    "no seed of the task": ([step(1), step(2)], None),
    "shares": ([step(1, share=0.3), step(1, share=0.7), step(2)], SEED),
    "what changes": ([step(1), step(2, lr=0.5), step(3, tunable="head"), step(5, (1.0,)), step(6)], SEED),
}


HALVES = (
    *(0.0, -0.0, 1.0, -2.5, 0.1, 1 / 3, 2049.0, 2051.0, 4095.9999),
    *(65504.0, 65519.99, 65520.0, -1e9, float("inf")),
    *(2.0**-14, 2.0**-14 - 2.0**-26, 6.1e-5, 2.0**-24, 2.0**-25, 1.0000001 * 2.0**-25, 3 * 2.0**-25, 1e-300),
)


def half(number: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float64(number).astype("<f2").view(np.uint16))


def stretch(**changes: Any) -> Stretch:
    return msgspec.structs.replace(steps.pack([step(1), step(2)], SEED)[0], **changes)


DAMAGED: dict[str, list[Stretch]] = {
    "no scalars": [stretch(scalars=b"")],
    "half a step": [stretch(scalars=bytes(5))],
    "no width": [stretch(width=0)],
    "a share too few": [stretch(shares=bytes(8))],
    "a seed too many": [stretch(seeds=bytes(24))],
    "too many steps": [stretch(form="i1", width=1, scalars=bytes(513))],
    "too many scalars": [stretch(form="i1", width=2**19, scalars=bytes(2**20)), stretch()],
}
JOINED = (
    ([step(1), step(2)], [step(3)], 10),
    ([step(1), step(2)], [step(3)], 2),
    ([step(1), step(2)], [step(3)], 1),
    ([step(1)], [step(3)], 10),
    ([step(1), step(2)], [step(3, lr=0.5)], 2),
    ([step(1, share=0.5)], [step(2, share=0.3), step(3, share=0.7)], 2),
    ([step(1, seed=1), step(2, seed=2)], [step(3)], 2),
    ([], [step(1)], 5),
)


def refused(stretches: list[Stretch]) -> str:
    try:
        steps.unpack(stretches)
    except MessageError as error:
        return str(error)
    raise AssertionError(f"{stretches} are read")


def vectors() -> dict[str, Any]:
    packs = [(steps.pack(before, SEED), steps.pack(new, SEED), most) for before, new, most in JOINED]
    encode = msgspec.msgpack.encode
    return {
        "segment": steps.SEGMENT,
        "seeds": [
            {"seed": str(seed), "round": number, "made": str(steps.round_seed(seed, number))}
            for seed, number in ((0, 0), (5, 1), (2**63, 70_000), (-3, 12), (LARGE, 2**40))
        ],
        "logs": [
            {"of": of, "blob": steps.encode(log, seed), "steps": [plain_step(entry) for entry in log]}
            for of, (log, seed) in LOGS.items()
        ],
        "single": [
            {
                "step": plain_step(log[0]),
                "seed": None if seed is None else str(seed),
                "stretches": encode(steps.pack(log, seed)),
            }
            for log, seed in LOGS.values()
            if len(log) == 1
        ],
        "damaged": [
            {"of": of, "blob": encode(stretches), "python": refused(stretches)}
            for of, stretches in DAMAGED.items()
            if of != "too many scalars"
        ],
        "too_many_scalars": refused(DAMAGED["too many scalars"]),
        "joined": [
            {"before": encode(before), "new": encode(new), "most": most, "made": encode(log)}
            for before, new, most in packs
            for log in [steps.last_of_both(before, new, most)]
        ],
        "begins": [
            {
                "at": at,
                "log": count,
                "begins": steps.log_start(Base((BLOB,), bytes(32), at=at, log=(BLOB,) * count)),
            }
            for at, count in ((0, 0), (7, 0), (7, 1), (512, 1), (513, 1), (513, 2), (9000, 16), (9000, 3))
        ],
        "halves": [{"number": struct.pack("<d", number), "bits": half(number)} for number in HALVES],
    }
