"""What crosses the wire, as types. MessagePack arrays, so that a message costs bytes, not names.

Every message begins with the protocol version. Tensors never stand in a message's own encoding: `body` is
safetensors, and anything over `INLINE_LIMIT` is named by its `Blob` and pulled in blocks (see `transfer`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from device_runtime.broker.errors import BrokerError

VERSION = 4
INLINE_LIMIT = 64 * 1024
"""Bytes. A larger body is not sent inside a message but pulled in blocks."""
MESSAGE_LIMIT = 256 * 1024
"""Bytes. No control message is larger; a larger payload is refused before it is parsed."""
CHECK_BYTES, LINE_BYTES = 4, 8
"""Of a sha256: what a base is checked by at least, and what a line of steps is named by."""
MOST_RARE = 16
"""Labels of rare classes that an offer names, at most."""
Label = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Form = Literal["i1", "f2", "f4", "f8"]
"""How scalars are written: int8, binary16, binary32, binary64."""
Boot = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""One life of a device's process; no more than a database holds in a whole number."""


class MessageError(BrokerError, ValueError):
    """A payload that is not the message it claims to be."""


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Common part of every message: the protocol version."""

    v: int = VERSION


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Content by its hash. `sha` is the sha256 in 32 raw bytes, `size` is in bytes."""

    sha: bytes
    size: int

    def __post_init__(self) -> None:
        if len(self.sha) != 32:
            raise ValueError(f"a sha256 has 32 bytes, not {len(self.sha)}")
        if not 0 <= self.size < 2**40:
            raise ValueError(f"a blob of {self.size} bytes is not possible")

    @property
    def hex(self) -> str:
        return self.sha.hex()


class State(Message, frozen=True, array_like=True, kw_only=True):
    """`up/state`, retained; with `online=False` it is also the last will or, with `leaving`, what a device
    says itself as it goes.

    `boot` is drawn anew whenever the device's process starts, so that the will of an earlier life is known.
    `paused`: it is there, but its owner's rules let it do no work; the next hello ends that.
    """

    boot: Boot
    online: bool
    leaving: bool = False
    paused: bool = False


class Hello(Message, frozen=True, array_like=True, kw_only=True):
    """`up/hello`: who joins, and with what. The aggregator answers with the offer on `dn/task`.

    `num_examples` is 0 until the device has the task and knows its data: rounds do not wait for it yet.
    """

    boot: Boot
    num_examples: int
    profile: str
    """Name of the device profile, for people: "pi-zero-2w"."""
    memory_bytes: int
    engine: str
    battery_percent: int = -1
    """-1 where there is none, or it does not say."""
    task: str = ""
    """Which it is here for; empty: whichever there is."""
    key: Annotated[bytes, Meta(max_length=32)] = b""
    """By which the aggregator and this life of the device agree (see `pact`); empty: it knows no aggregator's
    key."""


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """A kind of update that the round accepts: its name, and its hyperparameters as MessagePack."""

    name: str
    settings: msgspec.Raw


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One zeroth-order step of the log: `w <- w - lr * share * mean_p(scalars[p] * z_p)`.

    `seed` and p, from 0, name the direction `z_p` over the tensors of `tunable`; `generator` names and
    versions how (see device_runtime.strategies.directions.directions). Scalars are float32 values.
    """

    round: int
    generator: str
    seed: int
    tunable: str
    lr: float
    share: float
    scalars: tuple[float, ...]


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Steps of rounds that follow on each other, which have all but numbers in common (see `steps`).

    The first is of round `round`; each has `width` scalars, written as `form` says, little-endian. `seeds`:
    that of the task, from which those of its rounds are made, or 8 bytes for each step. `shares` has float64
    for each, or is empty: all are 1.
    """

    round: int
    generator: str
    tunable: str
    lr: float
    width: int
    form: Form
    scalars: bytes
    seeds: int | bytes
    shares: bytes = b""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The base model of a round: a checkpoint, and the zeroth-order steps taken since.

    The checkpoint comes in parts, tensors that are trained together (`Manifest.parts`): what has not changed
    is not fetched again. `sha` is the hash of the resulting weights, or at least CHECK_BYTES of it.

    Steps that follow on each other are a line, named by `line`: the first LINE_BYTES of the hash of the
    weights that it began with. This base is `at` steps from there, the last `steps` of which were taken since
    the checkpoint; `tail` has the last few. `log` names blobs with the last of them: the positions from one
    multiple of SEGMENT (see `steps`) to the next in each, but in the last as many as there are.
    """

    checkpoint: tuple[Blob, ...]
    sha: bytes
    line: bytes = b""
    """Where it is left empty, it begins here."""
    steps: int = 0
    at: int = 0
    tail: tuple[Stretch, ...] = ()
    log: tuple[Blob, ...] = ()

    def __post_init__(self) -> None:
        if not self.line:
            msgspec.structs.force_setattr(self, "line", self.sha[:LINE_BYTES])

    @property
    def whole(self) -> bool:
        """Whether all that leads there is named; not where it was followed in few bytes (see `small`)."""
        return len(self.sha) == 32


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A smaller model of the task's family, which some kinds of update train: its name, bundle and base."""

    name: str
    bundle: Blob
    base: Base


class Offer(Message, frozen=True, array_like=True, kw_only=True):
    """`all/round`, retained, and `dn/task` in answer to a hello: a round that is open.

    Round 0 is the lobby, before the first round: fetch the bundle and the base, measure, say hello again.
    `run` names one life of the task on the aggregator. `remaining_s` is counted from the moment of sending:
    clocks of devices need not agree with anyone's. A retained copy is therefore only a sign that there is
    a task; the device says hello and is told what remains. `kinds` stand in the order of preference.
    `aside` has tensors that some kinds take beside the base, a blob of safetensors. `rare`: labels of the
    classes of which the aggregator knows few samples, fewest first; a device that sends class statistics of
    only some of its classes begins with these.
    """

    task: str
    run: str
    round: int
    seed: int
    deadline_s: float
    remaining_s: float
    bundle: Blob
    base: Base
    kinds: tuple[Kind, ...]
    done: bool = False
    family: tuple[Member, ...] = ()
    aside: Blob | None = None
    rare: Annotated[tuple[Label, ...], Meta(max_length=MOST_RARE)] = ()

    def __post_init__(self) -> None:
        if len(set(self.rare)) < len(self.rare):
            raise ValueError(f"rare classes are {list(self.rare)}: each is named once")


class Succession(msgspec.Struct, frozen=True, array_like=True):
    """That an aggregator's key is followed by another: both public keys, when (seconds since 1970), and the
    signature of the old one (see `signing`).
    """

    old: bytes
    new: bytes
    made: int
    signature: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.made < 2**40:
            raise ValueError(f"a key does not change at {self.made} s")


class Signed(Message, frozen=True, array_like=True, kw_only=True):
    """`all/round` and `dn/task`: an encoded Offer with the aggregator's Ed25519 signature (see `signing`).

    `issued` is in seconds since 1970, by the aggregator's clock. `successions` lead from the keys of before
    to the one that signed this, the oldest first.
    """

    issued: int
    signature: bytes
    offer: bytes
    successions: Annotated[tuple[Succession, ...], Meta(max_length=16)] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.issued < 2**40:
            raise ValueError(f"an offer is not issued at {self.issued} s")


class FromDevice(Message, frozen=True, array_like=True, kw_only=True):
    """`up/hello`, `up/plan`, `up/contribution` of a device that has a key: an encoded message with the
    device's Ed25519 signature (see `signing`).
    """

    signature: bytes
    message: bytes


class Plan(Message, frozen=True, array_like=True, kw_only=True):
    """`up/plan`: what the device decided and why; sent when it changes, or it sits out (`kind=""`)."""

    task: str
    round: int
    kind: str
    seconds: float
    memory_bytes: int
    energy_j: float
    reasons: tuple[str, ...]


class Metrics(msgspec.Struct, frozen=True, array_like=True):
    """What one update cost and gave; whole numbers, because they are short on the wire.

    `epsilon_milli` is what the device has spent of its samples' privacy so far; 0 for an update not private.
    `energy_source` names the meter that told the energy, "" where it is modelled; `energy_off_percent` is how
    far it may be off, 0 where that is not told.
    """

    train_loss: float
    train_time_ms: int
    energy_mj: int
    peak_memory_kib: int
    epsilon_milli: int = 0
    energy_source: Annotated[str, Meta(max_length=32)] = ""
    energy_off_percent: Annotated[int, Meta(ge=0, le=100)] = 0


class Contribution(Message, frozen=True, array_like=True, kw_only=True):
    """`up/contribution`. (task, round, device, kind) counts once, however often it is sent.

    `boot` and `seq` name this sending in the receipt; `form` says which of the kind's forms it is, where
    there are several. Exactly one of `body` (safetensors, at most INLINE_LIMIT) and `blob` (the aggregator
    then pulls it) is given.
    """

    task: str
    run: str
    round: int
    boot: Boot
    seq: int
    kind: str
    num_examples: int
    metrics: Metrics
    body: bytes = b""
    blob: Blob | None = None
    form: str = ""


Status = Literal["accepted", "duplicate", "late", "refused"]


class Receipt(Message, frozen=True, array_like=True, kw_only=True):
    """`dn/receipt`: sent after the aggregator's commit to disk. Only this ends a transfer.

    With `retry_after_s` it does not: there is no room now, and it is to be sent again after so many seconds.
    """

    boot: int
    seq: int
    round: int
    status: Status
    reason: str = ""
    retry_after_s: Annotated[int, Meta(ge=0, le=86_400)] = 0


class Get(Message, frozen=True, array_like=True, kw_only=True):
    """`up/get`, `dn/get`: "send me these blocks of that blob". Block -1 (empty): it is not here."""

    blob: Blob
    blocks: tuple[int, ...]


M = TypeVar("M", bound=Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(payload: bytes, kind: type[M]) -> M:
    """Read a payload as a message of this type. Raises MessageError with what is wrong and where."""
    if len(payload) > MESSAGE_LIMIT:
        raise MessageError(f"{kind.__name__} of {len(payload)} bytes; at most {MESSAGE_LIMIT} are read")
    try:
        message = msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MessageError(f"not a {kind.__name__}: {error}") from None
    if message.v != VERSION:
        raise MessageError(f"{kind.__name__} of protocol version {message.v}; this side speaks {VERSION}")
    return message


def offer_in(payload: bytes) -> Offer:
    """The offer in a payload, whoever signed it, if anybody. Raises MessageError."""
    with suppress(MessageError):  # then it is a bare one, or rubbish: what is wrong with it is said below
        payload = decode(payload, Signed).offer
    return decode(payload, Offer)


def is_from_device(payload: bytes) -> bool:
    """Whether this can only be a FromDevice: an array of its length, which no message that it holds has."""
    return payload[:1] == bytes([0x90 + len(FromDevice.__struct_fields__)])


def said_in(payload: bytes) -> bytes:
    """What a device says in a payload, whoever signed it, if anybody. Raises MessageError."""
    return decode(payload, FromDevice).message if is_from_device(payload) else payload


def pack(settings: object) -> msgspec.Raw:
    """Any msgspec-encodable value, as the `settings` of a Kind."""
    return msgspec.Raw(_encoder.encode(settings))
