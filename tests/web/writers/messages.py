"""Messages as Python writes them, what it reads in them, and what it refuses."""

from typing import Any

import msgspec

from device_runtime.broker.wire import messages as wire
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Kind,
    Member,
    Message,
    Metrics,
    Step,
    encode_settings,
)

BLOB = Blob(bytes(range(32)), 310_000)
SMALL = Blob(bytes(reversed(range(32))), 17)
BOOT = 2**62 + 12345
STEPS = [
    Step(3, "philox-1", steps.round_seed(7, 3), "all", 1e-3, 1.0, (0.5, -1.25)),
    Step(4, "philox-1", steps.round_seed(7, 4), "all", 1e-3, 0.25, (0.1, 2.0)),
]
BASE = Base((BLOB, SMALL), bytes(range(32, 64)), bytes(8), 1, 9, steps.pack(STEPS, 7), (SMALL,))
METRICS = Metrics(0.625, 1234, 5678, 90_000, 1500, "rapl", 12)
EXAMPLES: tuple[Message, ...] = (
    wire.State(boot=BOOT, online=True),
    wire.State(boot=0, online=False, leaving=True, paused=True),
    wire.Hello(boot=BOOT, num_examples=120, profile="phone, Straße 🦊", memory_bytes=2**33, engine="wasm"),
    wire.Hello(
        boot=1,
        num_examples=0,
        profile="p",
        memory_bytes=512 * 2**20,
        engine="onnx",
        battery_percent=80,
        task="words",
        key=bytes(range(32)),
        tags=("kitchen", "floor=2"),
        version="0.2.0",
    ),
    wire.Offer(
        task="digits",
        run="r1",
        round=3,
        seed=2**53 - 1,
        deadline_s=60.5,
        remaining_s=41.25,
        bundle=BLOB,
        base=BASE,
        kinds=(
            Kind("full", encode_settings({"epochs": 2, "rate": 0.05})),
            Kind("class-means", encode_settings({})),
        ),
        family=(Member("small", SMALL, Base((SMALL,), bytes(range(32)))),),
        aside=SMALL,
        rare=(7, 0, 65_535),
        masks=wire.Masks(
            helpers=(wire.HelperKey("uni", bytes(range(32))), wire.HelperKey("club", bytes(32))),
            min_group=20,
            capacity=2**20,
            most_weight=2**40,
            noise_milli=1100,
            clip_milli=500,
            alone=("full", "few-shot"),
        ),
        shortages=wire.Shortages(statistics=bytes([0, 33, 100]), training=bytes([50, 0, 100])),
        title="Read digits",
        about="We teach a model to read handwriting, \u00e9 too.",
        ask="Draw a digit and tap what it is.",
    ),
    wire.Offer(
        task="digits",
        run="r1",
        round=0,
        seed=2**64 - 1,
        deadline_s=0.5,
        remaining_s=0.5,
        bundle=SMALL,
        base=Base((), bytes(range(4))),
        kinds=(),
        done=True,
        version="0.2.0",
    ),
    wire.FromDevice(signature=bytes(range(64)), message=b"a message"),
    wire.Signed(issued=1_800_000_000, signature=bytes(range(64)), offer=b"an offer"),
    wire.Signed(
        issued=0,
        signature=bytes(64),
        offer=b"",
        successions=(wire.Succession(bytes(32), bytes(range(32)), 2**40 - 1, bytes(range(64))),),
    ),
    wire.Plan(
        task="digits",
        round=300,
        kind="full",
        seconds=1.5,
        memory_bytes=2**31,
        energy_j=0.1,
        reasons=("fits", ""),
    ),
    wire.Contribution(
        task="digits",
        run="r1",
        round=70_000,
        boot=BOOT,
        seq=7,
        kind="full",
        num_examples=120,
        metrics=METRICS,
        body=b"tensors",
    ),
    wire.Contribution(
        task="digits",
        run="r1",
        round=1,
        boot=BOOT,
        seq=8,
        kind="entropy-subset",
        num_examples=1,
        metrics=Metrics(-1.5, 0, 0, 0),
        blob=BLOB,
        form="all@0.5",
        mask=wire.Mask(bytes(range(32)), (bytes(range(16)), bytes(16))),
    ),
    wire.Receipt(boot=BOOT, seq=7, round=3, status="accepted"),
    wire.Receipt(boot=-5, seq=7, round=3, status="refused", reason="full", retry_after_s=30),
    wire.Get(blob=BLOB, blocks=(0, 1, 127, 128, -1)),
)

NAMED = [bytes(32), 1]
"""A blob."""
OFFER = [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b""], [], False, [], None, []]
"""An offer up to its masks."""
HELPER = ["a", bytes(32)]
CONTRIBUTION = [4, "", "", 1, 1, 1, "", 1, [1, 1, 1, 1], b"", None, ""]
STRETCHES = [[1, "g", "t", 1, 1, "f3", b"", 1]]
REFUSED: tuple[tuple[str, str, Any], ...] = (
    ("State", "expected at least 3", [4, 1]),
    ("State", "State.boot", [4, 1.5, True]),
    ("State", "State.boot", [4, True, True]),
    ("State", "State.boot", [4, -1, True]),
    ("State", "State.boot", [4, 2**63, True]),
    ("State", "State.online", [4, 1, 1]),
    ("State", "version 3", [3, 1, True]),
    ("State", "expected array", {"v": 4}),
    ("State", "State.v", ["4", 1, True]),
    ("Get", "Get.blob: a sha256 has 32 bytes, not 31", [4, [bytes(31), 2], [1]]),
    ("Get", "Get.blob.sha", [4, ["x" * 32, 2], [1]]),
    ("Get", "Get.blob: a blob of", [4, [bytes(32), 2**41], [1]]),
    ("Get", "Get.blob: a blob of", [4, [bytes(32), -1], [1]]),
    ("Get", "Get.blocks[1]", [4, [bytes(32), 1], [1, "2"]]),
    ("Receipt", "Receipt.status", [4, 1, 1, 1, "maybe"]),
    ("Receipt", "Receipt.retry_after_s", [4, 1, 1, 1, "late", "", 90_000]),
    ("Plan", "Plan.reasons", [4, "t", 1, "k", 3, 4, 5, "a"]),
    ("Plan", "Plan.reasons[0]", [4, "t", 1, "k", 3, 4, 5, [1]]),
    ("Plan", "Plan.seconds", [4, "t", 1, "k", "3", 4, 5, []]),
    ("Signed", "Signed.issued", [4, 2**40, b"", b""]),
    ("Contribution", "metrics.energy_source", [4, "", "", 1, 1, 1, "", 1, [1, 1, 1, 1, 0, "x" * 33]]),
    ("Contribution", "metrics.energy_off_percent", [4, "", "", 1, 1, 1, "", 1, [1, 1, 1, 1, 0, "", 101]]),
    ("Offer", "Offer.bundle", [4, "t", "r", 1, 1, 1, 1, None, [], []]),
    ("Offer", "base.tail[0].form", [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b"", b"", 1, 1, STRETCHES], []]),
    ("Offer", "Offer.rare[1]", [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b""], [], False, [], None, [1, 65_536]]),
    ("Offer", "Offer.rare", [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b""], [], False, [], None, [*range(17)]]),
    ("Offer", "Offer.rare", [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b""], [], False, [], None, [2, 1, 2]]),
    ("Offer", "Offer.masks.helpers", [*OFFER, [[], 2, 64, 1]]),
    ("Offer", "Offer.masks.helpers", [*OFFER, [[HELPER] * 4, 2, 64, 1]]),
    ("Offer", "Offer.masks.helpers[0].key", [*OFFER, [[["a", bytes(31)]], 2, 64, 1]]),
    ("Offer", "Offer.masks.min_group", [*OFFER, [[HELPER], 0, 64, 1]]),
    ("Offer", "Offer.masks.capacity", [*OFFER, [[HELPER], 2, 2**20 + 1, 1]]),
    ("Offer", "Offer.masks.most_weight", [*OFFER, [[HELPER], 2, 64, 0]]),
    ("Contribution", "Contribution.mask.key", [*CONTRIBUTION, [bytes(33), []]]),
    ("Contribution", "Contribution.mask.tags[1]", [*CONTRIBUTION, [bytes(32), [bytes(16), bytes(15)]]]),
    ("Contribution", "Contribution.mask.tags", [*CONTRIBUTION, [bytes(32), [bytes(16)] * 4]]),
    ("Offer", "Offer.kinds[0].name", [4, "t", "r", 1, 1, 1, 1, NAMED, [[], b""], [[1, {}]]]),
)  # fmt: skip
BROKEN = (b"", b"\xc1", b"\x93\x04\x01", b"\x93\x04\x01\xc3x", b"\x91" * 5000, bytes(wire.MESSAGE_LIMIT + 1))

NO_TEXT = (b"\xa1\xff", b"\xa2\xc3(", b"\xa3\xed\xa0\x80", b"\xa2\xc0\x80", b"\xd9\x01\x80", b"\xa2\xf5\x80")
"""In place of a text: a byte that begins none, a cut letter, half a pair, a letter too long, ..."""


def tagged(value: Any) -> Any:
    """As JSON can hold it: {"hex": ...} for bytes, {"big": ...} for a whole number beyond 2**53."""
    if isinstance(value, msgspec.Raw):
        return msgspec.msgpack.decode(value)
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name != "v"]
        return {name: tagged(getattr(value, name)) for name in names}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [tagged(item) for item in value]
    return {"big": str(value)} if isinstance(value, int) and abs(value) > 2**53 else value


def refused(kind: str, payload: bytes) -> str:
    try:
        wire.decode(payload, getattr(wire, kind))
    except wire.MessageError as error:
        return str(error)
    raise AssertionError(f"{kind} of {payload[:40]!r} is read")


def vectors() -> dict[str, Any]:
    whole_seconds = msgspec.msgpack.encode([4, "t", 1, "k", 3, 4, 5, []])
    assert wire.decode(whole_seconds, wire.Plan).seconds == 3.0  # a whole number is read as a float, too
    return {
        "version": wire.VERSION,
        "inline_limit": wire.INLINE_LIMIT,
        "message_limit": wire.MESSAGE_LIMIT,
        "examples": [
            {"kind": type(message).__name__, "payload": wire.encode(message), "object": tagged(message)}
            for message in EXAMPLES
        ],
        "whole_seconds": whole_seconds,
        "longer": {"payload": msgspec.msgpack.encode([4, 1, True, False, False, "later", 9])},
        "refused": [
            {
                "kind": kind,
                "where": where,
                "payload": msgspec.msgpack.encode(values),
                "python": refused(kind, msgspec.msgpack.encode(values)),
            }
            for kind, where, values in REFUSED
        ],
        "no_text": [
            {"payload": payload, "python": refused("Plan", payload)}
            for payload in (whole_seconds.replace(b"\xa1t", text) for text in NO_TEXT)
        ],
        "broken": [
            {"length": len(payload), "start": payload[:6000], "python": refused("State", payload)}
            for payload in BROKEN
        ],
    }
