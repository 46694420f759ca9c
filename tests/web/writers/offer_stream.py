"""What devices hear on the topics of offers, and what Python makes of it; compact contributions."""

from typing import Any

import msgspec
import numpy as np

from device_runtime.broker.security import signing
from device_runtime.broker.security.signing import DeviceSigner, Signer
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages as wire
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import CompactOffer
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    Kind,
    MessageError,
    Metrics,
    Offer,
    Receipt,
    Step,
    Stretch,
    encode,
    encode_settings,
)
from device_runtime.broker.wire.topics import down
from device_runtime.broker.wire.topics import offer as topic_of
from device_runtime.device.connection.offers import OfferStream
from device_runtime.device.connection.trust import Trust
from device_runtime.models.bundles import tensors

SIGNER, OTHER = Signer(bytes(range(32))), Signer(bytes(32))
OWN, EARLIER = bytes(range(7, 39)), bytes(range(8, 40))
SECRET = bytes(range(60, 92))
BLOB = Blob(bytes(range(32)), 310_000)
TOPIC, TASK, MINE = topic_of("t"), down("a", "task"), down("a", "n")

Heard = tuple[str, bytes, bool, str]
"""Topic, payload, whether it was retained, the task that the device is in."""


def step(number: int, scalars: tuple[float, ...] = (0.5, -1.25), **changes: Any) -> Step:
    usual = Step(number, "philox/1", steps.round_seed(5, number), "all", 0.01, 1.0, scalars)
    return msgspec.structs.replace(usual, **changes)


def offer(number: int = 2, tail: tuple[Stretch, ...] | None = None, **changes: Any) -> Offer:
    if tail is None:
        tail = steps.pack([step(1)], 5)
    base = Base((BLOB,), bytes(32), bytes(8), steps=1, at=1, tail=tail, log=(BLOB,))
    usual = Offer(
        task="t",
        run="r",
        round=number,
        seed=steps.round_seed(5, number),
        deadline_s=20.0,
        remaining_s=5.0,
        bundle=BLOB,
        base=base,
        kinds=(Kind("zeroth-order", encode_settings({"lr": 0.01})),),
    )
    return msgspec.structs.replace(usual, **changes)


def after(number: int, over: bool = False, new: tuple[Step, ...] | None = None) -> bytes:
    if new is None:
        return small.encode_offer(CompactOffer(number, b"abcd", over, (1.0, 2.0)))
    return small.encode_offer(CompactOffer(number, b"abcd", over, steps=steps.pack(new, 5)))


def plain(payload: bytes, topic: str = TOPIC, retained: bool = False, task: str = "") -> Heard:
    return topic, payload, retained, task


def next_offer(
    number: int, by: Signer = SIGNER, own: bytes = OWN, topic: str = MINE, run: str = "r"
) -> bytes:
    """A compact offer with the MAC for a device that draws such a key."""
    payload = after(number)
    return small.with_mac(payload, by.agree(signing.public_key(own)).mac(topic, run, payload))


def sealed(offer_: Offer, topic: str = TASK, by: Signer = SIGNER, issued: int = 7) -> bytes:
    return by.seal(topic, offer_, issued)


REPLACED = bytes([small.WITH_MAC | after(3)[0]])
OPEN: dict[str, list[Heard]] = {
    "a round after the other": [
        plain(encode(offer())),
        plain(after(3, True)),
        plain(after(4)),
        plain(after(5, True, (step(3, (3.0,), share=0.3), step(4, share=0.7)))),
        plain(after(6, False, ())),
        plain(after(7)),
    ],
    "a round is missed": [
        plain(after(2)),
        plain(encode(offer())),
        plain(after(5)),
        plain(after(6)),
        plain(encode(offer(5)), TASK),
        plain(after(6)),
    ],
    "what was heard before": [plain(encode(offer(3))), plain(after(3)), plain(after(4)), plain(after(4))],
    "what the broker kept": [
        plain(encode(offer(3))),
        plain(encode(offer(1)), retained=True),
        plain(after(4)),
        plain(encode(offer(9)), TASK, True),
    ],
    "no step that it is like": [plain(encode(offer(tail=()))), plain(after(3))],
    "seeds of their own": [plain(encode(offer(tail=steps.pack([step(1, seed=9)], 5)))), plain(after(3))],
    "it is done": [plain(encode(offer(done=True))), plain(after(3))],
    "the lobby": [plain(encode(offer(0))), plain(after(1))],
    "signed by anybody": [plain(sealed(offer(), by=OTHER), TASK), plain(REPLACED + after(3)[1:] + bytes(8))],
    "to this device": [plain(encode(offer()), TASK), plain(after(3), MINE, task="t"), plain(after(4), MINE)],
    "rubbish": [
        plain(b""),
        plain(b"\x04"),
        plain(encode(offer())),
        plain(b"\x04"),
        plain(b"\x04\xff\xff\xff\xff\xff"),
        plain(b"\x05\x03abcd"),
        plain(b"\x04\x03abc"),
        plain(b"\x04\x03abcd\x00"),
        plain(b"\x44\x03abcd\xc1"),
        plain(b"\x44\x03abcd" + msgspec.msgpack.encode([[1, "g"]])),
        plain(b"\x14\x03"),
        plain(after(3)),
    ],
}
ENROLLED: dict[str, list[Heard]] = {
    "whom to believe": [
        plain(encode(offer()), TASK),
        plain(sealed(offer(), by=OTHER), TASK),
        plain(sealed(offer(), TOPIC), TASK),
        plain(sealed(offer())[:-1] + b"?", TASK),
        plain(b"rubbish", TASK),
        plain(sealed(offer(), issued=2**33), TASK),
    ],
    "rounds only go up": [
        plain(sealed(offer(5)), TASK),
        plain(sealed(offer(2)), TASK),
        plain(sealed(offer(5)), TASK),
        plain(sealed(offer(0)), TASK),
        plain(sealed(offer(2), TOPIC), retained=True),
        plain(sealed(offer(2, done=True), TOPIC), retained=True),
        plain(sealed(offer(2, run="r2")), TASK),
    ],
    "the time of issue only goes up": [
        plain(sealed(offer(), issued=9), TASK),
        plain(sealed(offer(3, run="r2"), issued=8), TASK),
        plain(sealed(offer(3, run="r2"), TOPIC, issued=8), retained=True),
        plain(sealed(offer(3, run="r2", done=True), TOPIC, issued=8), retained=True),
        plain(sealed(offer(3), issued=9), TASK),
        plain(sealed(offer(4), issued=10), TASK),
        plain(sealed(offer(4), issued=9), TASK),
    ],
    "another key follows": [
        plain(sealed(offer(), issued=9), TASK),
        plain(OTHER.seal(TASK, offer(3), 9, (OTHER.succeeded(OTHER.public, 3),)), TASK),
        plain(OTHER.seal(TASK, offer(3), 9, (SIGNER.succeeded(OTHER.public, 3),)), TASK),
        plain(sealed(offer(3), issued=10), TASK),
        plain(next_offer(4, OTHER), MINE, task="t"),
        plain(next_offer(4), MINE, task="t"),
    ],
    "the MAC": [
        plain(sealed(offer()), TASK),
        plain(after(3)),
        plain(after(3), MINE, task="t"),
        plain(next_offer(3, OTHER), MINE, task="t"),
        plain(next_offer(3, own=EARLIER), MINE, task="t"),
        plain(next_offer(3, run="r2"), MINE, task="t"),
        plain(next_offer(3, topic=down("b", "n")), MINE, task="t"),
        plain(next_offer(3)[:-1] + b"?", MINE, task="t"),
        plain(next_offer(3), TOPIC, task="t"),
        plain(next_offer(3), MINE, task="t"),
        plain(next_offer(3), MINE, task="t"),
        plain(next_offer(4), MINE, True, "t"),
        plain(sealed(offer(2)), TASK),
        plain(next_offer(4), MINE, task="t"),
    ],
}


def outcomes(key: bytes, messages: list[Heard]) -> list[dict[str, Any]]:
    offer_stream = OfferStream(Trust(key, lambda size: OWN[:size]))
    entries = []
    for topic, payload, retained, task in messages:
        entry: dict[str, Any] = {"topic": topic, "payload": payload, "retained": retained, "task": task}
        try:
            entry["offer"] = encode(offer_stream.offer(topic, payload, retained, task))
        except MessageError as error:
            entry |= {"error": type(error).__name__, "text": str(error)}
        entries.append(entry | {"over": offer_stream.over})
    return entries


def contribution(number: int = 3, scalars: tuple[float, ...] = (0.5, -1.0), **changes: Any) -> Contribution:
    usual = Contribution(
        task="t",
        run="r",
        round=number,
        boot=2**40,
        seq=300,
        kind="zeroth-order",
        num_examples=120,
        metrics=Metrics(0.625, 1234, 56789, 90_000),
        body=body(scalars),
    )
    return msgspec.structs.replace(usual, **changes)


def body(scalars: tuple[float, ...]) -> bytes:
    return tensors.encode({"scalars": np.array(scalars, np.float32)})


def metrics(**changes: Any) -> Metrics:
    return msgspec.structs.replace(contribution().metrics, **changes)


LIKE = contribution(2, (7.0, 8.0), seq=299)
SENT = {
    "like the one before": contribution(),
    "another form": contribution(form="x"),
    "another number of scalars": contribution(scalars=(1.0,)),
    "another number of samples": contribution(num_examples=121),
    "another life": contribution(boot=1),
    "a large round": contribution(2**35 - 1),
    "too large a round": contribution(2**35),
    "loss too large": contribution(metrics=metrics(train_loss=1e39)),
    "loss without end": contribution(metrics=metrics(train_loss=float("inf"))),
    "no number as loss": contribution(metrics=metrics(train_loss=float("nan"))),
    "times that round": contribution(metrics=metrics(train_time_ms=65_407, energy_mj=65_408)),
    "no time": contribution(metrics=metrics(train_time_ms=0, energy_mj=1)),
    "a long time": contribution(metrics=metrics(train_time_ms=2**52, energy_mj=2**53)),
    "more memory": contribution(metrics=metrics(peak_memory_kib=1)),
    "another meter": contribution(metrics=metrics(energy_source="rapl")),
    "no safetensors": contribution(body=b"1234"),
    "a blob": contribution(body=b"", blob=BLOB),
}


def says() -> dict[str, Any]:
    """What a device with a key of its own says, and what is said to it alone."""
    signer, agreed = DeviceSigner(SECRET), SIGNER.agree(signing.public_key(OWN))
    hello = encode(wire.Hello(boot=7, num_examples=1, profile="p", memory_bytes=1, engine="e"))
    receipt = encode(Receipt(boot=7, seq=2, round=3, status="accepted"))
    short = b"\x04\x03rest"
    return {
        "secret": SECRET,
        "public": signer.public,
        "topic": topics.up("a", "hello"),
        "message": hello,
        "sealed": signer.seal(topics.up("a", "hello"), hello),
        "short_topic": topics.up("a", "c"),
        "short": short,
        "short_with_mac": small.with_mac(short, agreed.mac(topics.up("a", "c"), "r", short)),
        "receipt_topic": down("a", "receipt"),
        "receipt": receipt,
        "receipt_with_mac": receipt + agreed.mac(down("a", "receipt"), "", receipt),
    }


def vectors() -> dict[str, Any]:
    return {
        "key": SIGNER.public,
        "own": OWN,
        "device_key": Trust(SIGNER.public, lambda size: OWN[:size]).key,
        "says": says(),
        "open": [{"of": of, "heard": outcomes(b"", messages)} for of, messages in OPEN.items()],
        "enrolled": [
            {"of": of, "heard": outcomes(SIGNER.public, messages)} for of, messages in ENROLLED.items()
        ],
        "like": encode(LIKE),
        "most_bytes": small.MOST_BYTES,
        "short": [
            {
                "of": of,
                "whole": encode(whole),
                "short": short,
                "read": encode(small.full_contribution(short, LIKE)) if short else None,
            }
            for of, whole in SENT.items()
            for short in [small.compact_contribution(whole, LIKE)]
        ],
    }
