"""Decoders that the browser's side and Python both have, with sound inputs; for fuzz_browser.py."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from benchmarks.fuzz import targets
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    FromDevice,
    Kind,
    Message,
    Metrics,
    Offer,
    Signed,
    Step,
    Succession,
)
from device_runtime.models.bundles import archive, graph_check, manifest, tensors
from device_runtime.models.bundles.bundle import Bundle, check_manifest, shipped_folder
from device_runtime.models.errors import BundleError, ModelError
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.kinds import registry


@dataclass(frozen=True)
class Pair:
    """A decoder of both sides. `read` gives what it read, and raises one of `errors`; `alike` compares that
    with the bytes that Node gave. Without `read` Node is looked at alone. `before`: what Node is told first.
    """

    name: str
    sound: tuple[bytes, ...]
    read: Callable[[bytes], Any] | None = None
    alike: Callable[[Any, bytes], bool] = lambda ours, theirs: ours == theirs
    errors: tuple[type[Exception], ...] = (messages.MessageError,)
    form: str = ""
    share: float = 1.0
    before: tuple[str, bytes] | None = None


def as_json(ours: Any, theirs: bytes) -> bool:
    return bool(json.loads(theirs) == json.loads(json.dumps(ours)))


def same_message(kind: type[Message]) -> Callable[[Any, bytes], bool]:
    """Node gives what it read as a message again; floats without a fraction are whole numbers there."""
    return lambda ours, theirs: _plain(messages.decode(theirs, kind)) == _plain(ours)


def _plain(message: Message) -> str:
    """All of it, as text; settings of kinds are read, too. Raises MessageError where they cannot be."""
    if not isinstance(message, Offer):
        return repr(message).replace("=-0.0", "=0.0")  # which is written as a whole number there
    try:
        kinds = [(kind.name, _floats(msgspec.msgpack.decode(kind.settings))) for kind in message.kinds]
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise messages.MessageError(str(error)) from None
    base = msgspec.structs.replace(message.base, tail=())
    return repr((msgspec.structs.replace(message, kinds=(), base=base), kinds, _tail(message.base)))


def _tail(base: Base) -> object:
    """Its steps; one that is no number has many forms."""
    try:
        return _plain_steps(steps.unpack(base.tail))
    except messages.MessageError:
        return base.tail


def _floats(value: Any) -> Any:
    """Numbers as those of JavaScript, which has one sort alone; entries in order."""
    if isinstance(value, dict):
        return sorted((_named(key), _floats(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return [_floats(inner) for inner in value]
    return value + 0.0 if isinstance(value, int | float) else value


def _named(key: Any) -> str:
    """A key, which is a text there, though it was a number."""
    try:
        return repr(float(key))
    except (TypeError, ValueError):
        return str(key)


def message_pairs() -> Iterator[Pair]:
    sound = {target.name: target.sound for target in targets()}
    sound |= {"Offer": (messages.encode(offer()),), "Signed": (messages.encode(_signed()),)}
    sound["FromDevice"] = (messages.encode(FromDevice(signature=bytes(64), message=b"a hello")),)
    plain = (messages.State, messages.Hello, messages.Plan, messages.Receipt, messages.Get)
    for kind in (*plain, FromDevice, Offer, Signed, Contribution):
        name = kind.__name__

        def read(data: bytes, kind: type[Message] = kind) -> Any:
            return _whole(messages.decode(data, kind))

        yield Pair(name, sound[name], read, same_message(kind), form="msgpack")


def _whole(message: Any) -> Any:
    _plain(message)
    return message


def offer() -> Offer:
    """Of the second round of a run, after a step."""
    blob = Blob(bytes(range(32)), 313_000)
    tail = steps.pack([_step(1), _step(2)], 77)
    base = Base(checkpoint=(blob, blob), sha=bytes(32), line=bytes(8), steps=2, at=2, tail=tail, log=(blob,))
    return Offer(
        task="t", run="r", round=3, seed=steps.round_seed(77, 3), deadline_s=20.5, remaining_s=3.25,
        bundle=blob, base=base, aside=blob,
        kinds=tuple(registry.write(registry.make(name)) for name in registry.DEFAULT_KINDS),
    )  # fmt: skip


def _step(number: int, width: int = 2) -> Step:
    seed = steps.round_seed(77, number)
    return Step(number, "philox4x64-popcount/1", seed, "all", 0.01, 1.0, (0.5,) * width)


def _signed() -> Signed:
    change = Succession(bytes(32), bytes(range(32)), 1_700_000_000, bytes(64))
    content = messages.encode(offer())
    return Signed(issued=1_700_000_000, signature=bytes(64), offer=content, successions=(change,))


def contribution() -> Contribution:
    body = tensors.encode({"g": np.array([0.5, -0.25], np.float32)})
    metrics = Metrics(0.5, 1500, 2000, 1024)
    who = {"task": "t", "run": "r", "round": 3}
    return Contribution(**who, boot=1, seq=2, kind="zeroth-order", num_examples=9, metrics=metrics, body=body)


def _plain_steps(read: tuple[Step, ...]) -> Any:
    return [
        [step.round, step.generator, str(step.seed), step.tunable, _bits(step.lr), _bits(step.share),
         [_bits(value) for value in step.scalars]]
        for step in read
    ]  # fmt: skip


def _bits(value: float) -> str:
    return "nan" if value != value else str(struct.unpack(">Q", struct.pack(">d", value))[0])


def _twice(data: bytes) -> str:
    """A word on names that stand twice in an object, each of which Python looks at."""
    repeats: list[bool] = []
    try:
        json.loads(data, object_pairs_hook=lambda pairs: repeats.append(len(dict(pairs)) < len(pairs)))
    except (ValueError, RecursionError):
        return ""
    return ", with a name twice" if any(repeats) else ""


def _manifest(data: bytes) -> Any:
    try:
        read = manifest.decode(data)
    except ModelError as error:
        raise BundleError(f"{error}{_twice(data)}") from None
    check_manifest(read)
    fields = msgspec.to_builtins(read)
    return {name: value for name, value in fields.items() if name != "seal"}


def _settings(data: bytes) -> Any:
    offered = messages.decode(data, Offer).kinds
    if not offered:
        raise KindError("none")
    kind = offered[0]
    registry.read(kind)
    return [kind.name, True]


def _next(data: bytes) -> Offer:
    if not data:
        raise messages.MessageError("by its first byte it is known to be one")
    return small.full_offer(offer(), small.decode_offer(small.split_mac(data)[0]))


def _with_kind(kind: Kind) -> bytes:
    return messages.encode(msgspec.structs.replace(offer(), kinds=(kind,)))


def _read_topic(data: bytes) -> Any:
    try:
        address = topics.parse(data.decode())
    except UnicodeDecodeError as error:
        raise topics.TopicError(str(error)) from None
    return [address.device, address.leaf, address.sha.hex(), address.index]


def pairs() -> list[Pair]:
    of = {target.name: target.sound for target in targets()}
    folder = shipped_folder("digits-wrn-10-1")
    whole = Bundle.open(folder)
    written = (folder / "manifest.json").read_bytes()
    unsealed = json.dumps(json.loads(written) | {"seal": ""}).encode()
    log = steps.encode([_step(1), _step(2), _step(3, 3)], 77)
    named = steps.encode([msgspec.structs.replace(_step(4), share=0.5, seed=5)])
    after = small.encode_offer(small.CompactOffer(4, b"abcd", True, (0.5, -2.0)))
    led = small.encode_offer(small.CompactOffer(4, b"abcd", False, steps=steps.pack([_step(3)], 77)))
    short = small.compact_contribution(contribution(), contribution()) or b""
    kinds = tuple(
        _with_kind(registry.write(registry.make(name))) for name in (*registry.DEFAULT_KINDS, "peft")
    )
    graph = whole.graph("train.all")
    nodes = next(field.content for field in graph_check.fields(graph) if field.number == 7)
    some = b"".join(field.encoded for field in list(graph_check.fields(nodes))[:6])
    return [
        *message_pairs(),
        Pair("offer or signed", (messages.encode(offer()), messages.encode(_signed())),
             lambda data: _whole(messages.offer_in(data)), same_message(Offer), form="msgpack"),
        Pair("topic", of["topic"], _read_topic, as_json, (topics.TopicError,)),
        Pair("safetensors", of["safetensors"], tensors.decode,
             lambda ours, theirs: tensors.encode(ours) == theirs, (ModelError,), "safetensors"),
        Pair("manifest", (unsealed, written), _manifest, as_json, (ModelError,), "json", 0.3),
        Pair("bundle zip", of["bundle zip"][:1], lambda data: [[name, len(content)] for name, content in
             archive.read_zip(data).items()], as_json, (ModelError,), share=0.5),
        Pair("bundle", (whole.packed(),), share=0.005),
        Pair("protobuf", (some,), lambda data: [[tag.number, len(tag.content), len(tag.encoded)] for tag in
             graph_check.fields(data)], as_json, (ModelError,)),
        Pair("onnx graph", (graph,), share=0.1),
        Pair("steps", (log, named), lambda data: _plain_steps(steps.decode(data)), as_json, form="msgpack"),
        Pair("next round", (after, led), _next, same_message(Offer),
             before=("Offer", messages.encode(offer()))),
        Pair("short contribution", (short,), lambda data: small.full_contribution(data, contribution()),
             same_message(Contribution), before=("Contribution", messages.encode(contribution()))),
        Pair("settings", kinds, _settings, as_json, (messages.MessageError, KindError), "msgpack"),
        Pair("npz", (npz(np.savez), npz(np.savez_compressed)), share=0.3),
    ]  # fmt: skip


def npz(save: Callable[..., None]) -> bytes:
    out = io.BytesIO()
    save(out, x=np.zeros((3, 8, 8), np.uint8), y=np.arange(3), class_names=np.array(["a", "b", "c"]))
    return out.getvalue()
