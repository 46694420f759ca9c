"""The message types of the protocol, encoded as MessagePack arrays, without field names.

Every message begins with the protocol version. Tensors are not part of a message's own encoding: `body` is
safetensors, and a body over `INLINE_LIMIT` is named by its `Blob` and pulled in blocks (see `transfer`).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from device_runtime.broker.errors import BrokerError
from device_runtime.tags import LONGEST_TAG, MOST_TAGS

VERSION = 4
RELEASE = "0.2.0"
"""The version of this package, which hellos and offers carry."""
INLINE_LIMIT = 64 * 1024
"""Bytes. A larger body is not sent inside a message but pulled in blocks."""
MESSAGE_LIMIT = 256 * 1024
"""Bytes. No control message is larger; a larger payload is refused before it is parsed."""
CHECK_BYTES, LINE_BYTES = 4, 8
"""Bytes of a sha256: the fewest that check a base, and those that name a line of steps."""
MOST_RARE = 16
"""The most labels of rare classes that an offer names."""
MOST_SHORTAGES = 1024
"""The most labels of a task whose offers say what is wanted."""
LONGEST_TITLE, LONGEST_SENTENCE = 64, 200
"""The most characters of a task's title, and of each of its sentences for people."""
MODELLED = "modelled"
"""The source of energy that no meter has measured; on the wire it is empty."""
RESTS = "rests: "
"""How the reason of a device begins that sends nothing because nothing of it is wanted."""
Label = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Tag = Annotated[str, Meta(max_length=LONGEST_TAG)]
Form = Literal["i1", "f2", "f4", "f8"]
"""The format of scalars: int8, binary16, binary32, binary64."""
Boot = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Names one process of a device, from its start to its end; a database's 64-bit integer holds it."""


class MessageError(BrokerError, ValueError):
    """A payload that is not the message it claims to be."""


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base class of messages, with the protocol version."""

    v: int = VERSION


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """The name of some bytes: `sha` is their sha256 in 32 raw bytes, `size` is in bytes."""

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
    """`up/state`, retained: whether the device is online.

    With `online=False` it is the last will or, with `leaving`, the device's own goodbye. `boot` is drawn anew
    whenever the device's process starts, so that the will of an earlier process is told apart. `paused`: the
    device is online, but its owner's rules allow no work; the next hello ends that.
    """

    boot: Boot
    online: bool
    leaving: bool = False
    paused: bool = False


class Hello(Message, frozen=True, array_like=True, kw_only=True):
    """`up/hello`: a device joins and describes itself. The aggregator answers with the offer on `dn/task`.

    `num_examples` is 0 until the device has the task and knows its data; until then no round waits for it.
    """

    boot: Boot
    num_examples: int
    profile: str
    """Name of the device profile, for people: "pi-zero-2w"."""
    memory_bytes: int
    engine: str
    battery_percent: int = -1
    """-1 if there is no battery, or its charge is unknown."""
    task: str = ""
    """The task to join; empty: any."""
    key: Annotated[bytes, Meta(max_length=32)] = b""
    """The public key of this process for MACs (see `security.signing`).

    Empty if the device does not know the aggregator's key.
    """
    tags: Annotated[tuple[Tag, ...], Meta(max_length=MOST_TAGS)] = ()
    """What its owner says of it, by which tasks select: "kitchen", "floor=2"."""
    version: Annotated[str, Meta(max_length=32)] = ""
    """The version of its program; empty of one that says none."""


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """A kind of update that the round accepts: its name, and its hyperparameters as MessagePack."""

    name: str
    settings: msgspec.Raw


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One zeroth-order step of the log: `w <- w - lr * share * mean_p(scalars[p] * z_p)`.

    `seed` and p, from 0, name the direction `z_p` over the tensors of `tunable`; `generator` is the name and
    version of its random generator (see device_runtime.strategies.directions.directions). Scalars are float32
    values.
    """

    round: int
    generator: str
    seed: int
    tunable: str
    lr: float
    share: float
    scalars: tuple[float, ...]


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Steps of consecutive rounds that differ in numbers only (see `step_log`).

    The first is of round `round`; each has `width` scalars in the format `form`, little-endian. `seeds`: the
    task's seed, from which those of its rounds are derived, or 8 bytes for each step. `shares` has a float64
    for each step, or is empty: all are 1.
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

    The checkpoint comes in parts, each of tensors that are trained together (`Manifest.parts`): a part that
    has not changed is not fetched again. `sha` is the hash of the resulting weights, or at least CHECK_BYTES
    of it.

    Consecutive steps form a line. `line` names it: the first LINE_BYTES of the hash of the weights that it
    began with. This base is `at` steps from there; the last `steps` of them were taken since the checkpoint,
    and `tail` has the last few. `log` names blobs with the last steps: each holds the positions from one
    multiple of SEGMENT (see `step_log`) to the next, the last one as many as there are.
    """

    checkpoint: tuple[Blob, ...]
    sha: bytes
    line: bytes = b""
    """If it is given empty, the line begins at this base."""
    steps: int = 0
    at: int = 0
    tail: tuple[Stretch, ...] = ()
    log: tuple[Blob, ...] = ()

    def __post_init__(self) -> None:
        if not self.line:
            msgspec.structs.force_setattr(self, "line", self.sha[:LINE_BYTES])

    @property
    def whole(self) -> bool:
        """Whether all that leads to this base is named; not after compact offers (see `compact_round`)."""
        return len(self.sha) == 32


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A smaller model of the task's family, which some kinds of update train: its name, bundle and base."""

    name: str
    bundle: Blob
    base: Base


class HelperKey(msgspec.Struct, frozen=True, array_like=True):
    """A mask helper: its name at the broker, and its public key (X25519)."""

    name: str
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]

    def __str__(self) -> str:
        return f"{self.name}={self.key.hex()}"


class Masks(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How devices mask their updates in a round (see `strategies.masking`).

    capacity: the most devices in one sum, which the fixed point has room for. most_weight: an update's weight
    is sent in parts of it, at most 1. noise_milli, clip_milli: noise multiplier and clipping norm of central
    differential privacy, in thousandths; 0: none. alone: kinds that too few devices chose in the last round.
    """

    helpers: Annotated[tuple[HelperKey, ...], Meta(min_length=1, max_length=3)]
    min_group: Annotated[int, Meta(ge=1, le=2**20)]
    capacity: Annotated[int, Meta(ge=1, le=2**20)]
    most_weight: Annotated[int, Meta(ge=1, le=2**40)]
    noise_milli: Annotated[int, Meta(ge=0, le=2**40)] = 0
    clip_milli: Annotated[int, Meta(ge=0, le=2**40)] = 0
    alone: Annotated[tuple[str, ...], Meta(max_length=16)] = ()


class Mask(msgspec.Struct, frozen=True, array_like=True):
    """The seeds of a masked update: the device's public key for it, and a tag for each helper, in order."""

    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    tags: Annotated[tuple[Annotated[bytes, Meta(min_length=16, max_length=16)], ...], Meta(max_length=3)]


class Shortages(msgspec.Struct, frozen=True, array_like=True):
    """How much the aggregator lacks of each class, in percent, a byte for each label: 0 for nothing.

    `statistics` of class statistics, `training` of what the extractor was trained on.
    """

    statistics: Annotated[bytes, Meta(max_length=MOST_SHORTAGES)]
    training: Annotated[bytes, Meta(max_length=MOST_SHORTAGES)]


class Offer(Message, frozen=True, array_like=True, kw_only=True):
    """`all/round`, retained, and `dn/task` in answer to a hello: a round that is open.

    In round 0, before the first round, devices fetch the bundle and the base, measure, and say hello again.
    `run` names the run of the task. `remaining_s` is counted from the moment of sending, so that clocks need
    not agree. A retained copy therefore only shows that there is a task: the device says hello to learn what
    remains. `kinds` are in order of preference. `aside` is a blob of safetensors with tensors that some kinds
    use beside the base. `rare`: labels of the classes of which the aggregator knows few samples, fewest
    first; a device that sends class statistics of only some of its classes begins with these.
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
    masks: Masks | None = None
    """How updates are masked; None: they are sent in the clear."""
    shortages: Shortages | None = None
    """What devices bring that is worth sending (`device.selection.resting`); None: all take part."""
    version: Annotated[str, Meta(max_length=32)] = ""
    """The version of the aggregator's program; empty of one that says none."""
    title: Annotated[str, Meta(max_length=LONGEST_TITLE)] = ""
    """The task's name for people; empty of one that has none."""
    about: Annotated[str, Meta(max_length=LONGEST_SENTENCE)] = ""
    """A sentence that says what the task is for."""
    ask: Annotated[str, Meta(max_length=LONGEST_SENTENCE)] = ""
    """A sentence that says what people give."""

    def __post_init__(self) -> None:
        if len(set(self.rare)) < len(self.rare):
            raise ValueError(f"rare classes are {list(self.rare)}: each is named once")


class Succession(msgspec.Struct, frozen=True, array_like=True):
    """An aggregator's change of key, signed by the old key (see `signing`).

    `old` and `new` are public keys; `made` is in seconds since 1970.
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

    `issued` is in seconds since 1970, by the aggregator's clock. `successions` lead from earlier keys to the
    one that signed this, the oldest first.
    """

    issued: int
    signature: bytes
    offer: bytes
    successions: Annotated[tuple[Succession, ...], Meta(max_length=16)] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.issued < 2**40:
            raise ValueError(f"an offer is not issued at {self.issued} s")


class FromDevice(Message, frozen=True, array_like=True, kw_only=True):
    """A message of a device that has a key of its own, with its Ed25519 signature (see `signing`).

    It comes on `up/hello`, `up/plan` or `up/contribution`; `message` is the encoded message.
    """

    signature: bytes
    message: bytes


class Plan(Message, frozen=True, array_like=True, kw_only=True):
    """`up/plan`: the device's plan and why; sent when it changes, or when the device sits out (`kind=""`)."""

    task: str
    round: int
    kind: str
    seconds: float
    memory_bytes: int
    energy_j: float
    reasons: tuple[str, ...]


class Metrics(msgspec.Struct, frozen=True, array_like=True):
    """The loss and the cost of one update; whole numbers, because they are short on the wire.

    `epsilon_milli` is the privacy that the device has spent so far, in thousandths of epsilon; 0 for an
    update that is not private. `energy_source` names the meter of the energy, "" if it is modelled;
    `energy_off_percent` is its error at most, 0 if unknown.
    """

    train_loss: float
    train_time_ms: int
    energy_mj: int
    peak_memory_kib: int
    epsilon_milli: int = 0
    energy_source: Annotated[str, Meta(max_length=32)] = ""
    energy_off_percent: Annotated[int, Meta(ge=0, le=100)] = 0


class Contribution(Message, frozen=True, array_like=True, kw_only=True):
    """`up/contribution`: what a device sends for a round.

    It counts once for each (task, round, device, kind), however often it is sent. `boot` and `seq` name this
    sending in the receipt; `form` names the form of the kind, if it has several. Exactly one of `body`
    (safetensors, at most INLINE_LIMIT) and `blob` (the aggregator then pulls it) is given.
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
    mask: Mask | None = None
    """Of a masked update: its content is a `MaskedVector`, and its loss is part of that."""


Status = Literal["accepted", "duplicate", "late", "refused"]


class Receipt(Message, frozen=True, array_like=True, kw_only=True):
    """`dn/receipt`: answers a contribution, after the commit to disk. Only a receipt ends a transfer.

    One with `retry_after_s` does not end it: the aggregator has no room now, and the device must send the
    contribution again after that many seconds.
    """

    boot: int
    seq: int
    round: int
    status: Status
    reason: str = ""
    retry_after_s: Annotated[int, Meta(ge=0, le=86_400)] = 0


class Get(Message, frozen=True, array_like=True, kw_only=True):
    """`up/get`, `dn/get`: asks for blocks of a blob. The answer "it is not here" is an empty block -1."""

    blob: Blob
    blocks: tuple[int, ...]


M = TypeVar("M", bound=Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {}
_one_at_a_time = threading.Lock()


def _decoder_of(kind: type[M]) -> msgspec.msgpack.Decoder[M]:
    """The decoder of a type of message, made by one thread at a time.

    A process crashed in msgspec where four threads decoded their first offers at once.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _one_at_a_time:
            decoder = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder


def decode(payload: bytes, kind: type[M]) -> M:
    """Read a payload as a message of this type. Raises MessageError with what is wrong and where."""
    if len(payload) > MESSAGE_LIMIT:
        raise MessageError(f"{kind.__name__} of {len(payload)} bytes; at most {MESSAGE_LIMIT} are read")
    try:
        message: M = _decoder_of(kind).decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MessageError(f"not a {kind.__name__}: {error}") from None
    if message.v != VERSION:
        raise MessageError(f"{kind.__name__} of protocol version {message.v}; this side speaks {VERSION}")
    return message


def offer_in(payload: bytes) -> Offer:
    """The offer in a payload, signed or not; a signature is not checked. Raises MessageError."""
    with suppress(MessageError):  # it is unsigned or invalid: the next line raises for the latter
        payload = decode(payload, Signed).offer
    return decode(payload, Offer)


def is_from_device(payload: bytes) -> bool:
    """Whether a payload is a FromDevice: an array of its length, which no message inside one has."""
    return payload[:1] == bytes([0x90 + len(FromDevice.__struct_fields__)])


def device_message_in(payload: bytes) -> bytes:
    """A device's encoded message in a payload, signed or not; a signature is not checked.

    Raises MessageError.
    """
    return decode(payload, FromDevice).message if is_from_device(payload) else payload


def encode_settings(settings: object) -> msgspec.Raw:
    """Any msgspec-encodable value, as the `settings` of a Kind."""
    return msgspec.Raw(_encoder.encode(settings))
