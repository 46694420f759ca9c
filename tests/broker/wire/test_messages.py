"""Messages: what is written is read; what is not a message is refused with one kind of error."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import messages, sum_messages
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    FromDevice,
    Get,
    Hello,
    Kind,
    Message,
    MessageError,
    Metrics,
    Offer,
    Plan,
    Receipt,
    Signed,
    State,
    Step,
    decode,
    encode,
    encode_settings,
)
from device_runtime.broker.wire.sum_messages import (
    HelperState,
    SumAnswer,
    SumCheck,
    SumRequest,
    sum_question_in,
)

BLOB = Blob(bytes(range(32)), 310_000)
STEP = Step(round=3, generator="philox-1", seed=7, tunable="all", lr=1e-3, share=0.5, scalars=(0.5, -1.25))
TAIL = steps.pack([STEP])
EXAMPLES: tuple[Message, ...] = (
    State(boot=1, online=True),
    Hello(
        boot=1,
        num_examples=120,
        profile="pi-zero-2w",
        memory_bytes=512 * 2**20,
        engine="onnx",
        battery_percent=80,
    ),
    Offer(
        task="digits",
        run="r1",
        round=3,
        seed=9,
        deadline_s=60.0,
        remaining_s=41.5,
        bundle=BLOB,
        base=Base(checkpoint=(BLOB,), sha=bytes(32), line=bytes(8), steps=1, at=9, tail=TAIL, log=(BLOB,)),
        kinds=(Kind(name="full", settings=encode_settings({"epochs": 2})),),
    ),
    Signed(issued=1_800_000_000, signature=bytes(64), offer=b"an offer"),
    FromDevice(signature=bytes(64), message=b"a message"),
    Plan(
        task="digits", round=3, kind="full", seconds=1.5, memory_bytes=10, energy_j=0.1, reasons=("fits", "")
    ),
    Contribution(
        task="digits",
        run="r1",
        round=3,
        boot=1,
        seq=2,
        kind="full",
        num_examples=120,
        metrics=Metrics(train_loss=0.5, train_time_ms=1500, energy_mj=100, peak_memory_kib=1024),
        blob=BLOB,
    ),
    Receipt(boot=1, seq=2, round=3, status="accepted"),
    Get(blob=BLOB, blocks=(0, 1, 4)),
    SumRequest(
        id=bytes(32),
        task="digits",
        run="r1",
        round=3,
        kind="full",
        at=0,
        min_group=5,
        values=1004,
        sums=0,
        noise_milli=1100,
        clip_milli=1000,
        exponents=((600, 24), (400, -3)),
        blob=Blob(bytes(32), 88_003),
    ),
    SumCheck(
        request=SumRequest(
            id=bytes(32),
            task="digits",
            run="r1",
            round=3,
            kind="full",
            at=0,
            min_group=5,
            values=1004,
            sums=0,
            body=b"seeds",
        )
    ),
    HelperState(boot=1, online=True, checks=True),
    SumAnswer(id=bytes(32), refusal="the set has 2 devices, the round promises 5 or more"),
)
TYPES = [type(message) for message in EXAMPLES]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(encode(message), type(message)) == message


def test_a_question_to_a_mask_helper_says_whether_it_is_only_a_check() -> None:
    questions = [message for message in EXAMPLES if isinstance(message, SumRequest | SumCheck)]
    assert [sum_question_in(encode(message)) for message in questions] == questions
    with pytest.raises(MessageError):  # a helper of before checks were there ignores one
        decode(encode(questions[1]), SumRequest)


def test_a_helper_that_says_nothing_of_checks_answers_none() -> None:
    assert not decode(encode(State(boot=1, online=True)), HelperState).checks
    assert decode(encode(HelperState(boot=1, online=True, checks=True)), State).online


def test_a_signed_message_of_a_device_cannot_be_taken_for_one_that_is_unsigned() -> None:
    for message in EXAMPLES:
        signed = FromDevice(signature=bytes(64), message=encode(message))
        assert messages.is_from_device(encode(signed))
        assert messages.device_message_in(encode(signed)) == encode(message)
        if isinstance(message, Hello | Plan | Contribution):
            assert not messages.is_from_device(encode(message))
            assert messages.device_message_in(encode(message)) == encode(message)


def test_every_type_of_message_is_among_the_examples() -> None:
    types = {
        value
        for value in (*vars(messages).values(), *vars(sum_messages).values())
        if isinstance(value, type) and issubclass(value, Message)
    }
    assert types - {Message} == set(TYPES)


def test_a_hello_names_tags_and_one_without_is_read_as_before() -> None:
    hello = next(message for message in EXAMPLES if isinstance(message, Hello))
    tagged = msgspec.structs.replace(hello, tags=("kitchen", "floor=2"), version="0.1.0")
    assert decode(encode(tagged), Hello) == tagged
    fields = msgspec.msgpack.decode(encode(tagged))
    assert fields[-2:] == [["kitchen", "floor=2"], "0.1.0"]
    assert decode(msgspec.msgpack.encode(fields[:-2]), Hello) == hello  # of an older device
    for tags in (["x"] * 17, ["x" * 65], "kitchen"):
        with pytest.raises(MessageError, match=r"not a Hello: .* at `\$\[9\]"):
            decode(msgspec.msgpack.encode([*fields[:-2], tags, ""]), Hello)


def test_hellos_carry_the_version_of_the_package() -> None:
    assert f'version = "{messages.RELEASE}"' in (Path(__file__).parents[3] / "pyproject.toml").read_text(
        "utf-8"
    )


def test_an_offer_names_rare_classes_and_one_without_is_read_as_before() -> None:
    offer = next(message for message in EXAMPLES if isinstance(message, Offer))
    named = msgspec.structs.replace(offer, rare=(7, 0, 65_535))
    assert decode(encode(named), Offer) == named
    assert len(encode(named)) == len(encode(offer)) + 1 + 1 + 3
    fields = msgspec.msgpack.decode(encode(offer))
    for lacking in range(1, 8):  # ask, about, title, version, shortages, masks, rare
        assert decode(msgspec.msgpack.encode(fields[:-lacking]), Offer) == offer


def test_an_offer_says_what_is_wanted_and_fields_of_later_versions_are_ignored() -> None:
    offer = next(message for message in EXAMPLES if isinstance(message, Offer))
    wanting = msgspec.structs.replace(offer, shortages=messages.Shortages(bytes(10), bytes([100] * 10)))
    assert decode(encode(wanting), Offer) == wanting
    assert len(encode(wanting)) == len(encode(offer)) + 2 * (2 + 10)
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(wanting)), "a field to come"])
    assert decode(later, Offer) == wanting


@pytest.mark.parametrize(
    ("rare", "why"),
    [
        ([3, 1, 3], "rare classes are [3, 1, 3]: each is named once"),
        ([65_536], "Expected `int` <= 65535"),
        ([-1], "Expected `int` >= 0"),
        (list(range(17)), "Expected `array` of length <= 16"),
        ([1.5], "Expected `int`, got `float`"),
    ],
)
def test_rare_classes_that_none_can_be_are_refused(rare: list[int], why: str) -> None:
    offer = next(message for message in EXAMPLES if isinstance(message, Offer))
    fields = msgspec.msgpack.decode(encode(offer))
    fields[Offer.__struct_fields__.index("rare")] = rare
    with pytest.raises(MessageError, match=re.escape(why)):
        decode(msgspec.msgpack.encode(fields), Offer)


def test_a_receipt_costs_a_few_bytes() -> None:
    assert len(encode(Receipt(boot=1, seq=2, round=3, status="accepted"))) == 16


@given(payload=st.binary(max_size=200), kind=st.sampled_from(TYPES))
def test_random_bytes_are_refused_by_message_error_only(payload: bytes, kind: type[Message]) -> None:
    refused_or_read(payload, kind)


@given(data=st.data(), message=st.sampled_from(EXAMPLES))
@settings(max_examples=300)
def test_mutated_messages_are_refused_by_message_error_only(data: st.DataObject, message: Message) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    refused_or_read(bytes(payload), type(message))
    refused_or_read(bytes(payload[:cut]), type(message))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values=st.lists(_VALUES, max_size=12), kind=st.sampled_from(TYPES))
def test_other_messagepack_is_refused_by_message_error_only(values: list[Any], kind: type[Message]) -> None:
    refused_or_read(msgspec.msgpack.encode([messages.VERSION, *values]), kind)


def refused_or_read(payload: bytes, kind: type[Message]) -> None:
    try:
        assert isinstance(decode(payload, kind), kind)
    except MessageError as error:
        assert "\n" not in str(error)


def test_a_deeply_nested_payload_is_refused() -> None:
    with pytest.raises(MessageError):
        decode(b"\x91" * 100_000, Offer)


def test_an_oversized_payload_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MessageError, match="State of 262145 bytes; at most 262144 are read"):
        decode(bytes(messages.MESSAGE_LIMIT + 1), State)


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(MessageError, match="State of protocol version 2; this side speaks 4"):
        decode(encode(State(v=2, boot=1, online=True)), State)


@pytest.mark.parametrize(("sha", "size"), [(b"short", 1), (bytes(32), -1), (bytes(32), 2**40)])
def test_an_impossible_blob_is_refused(sha: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Blob(sha, size)
    with pytest.raises(MessageError):
        decode(msgspec.msgpack.encode([1, [sha, size], [0]]), Get)


def test_errors_of_the_wire_are_broker_errors() -> None:
    assert issubclass(MessageError, BrokerError)
    assert issubclass(MessageError, ValueError)


class OlderMetrics(msgspec.Struct, frozen=True, array_like=True):
    """As they were before a device told what its energy is from."""

    train_loss: float
    train_time_ms: int
    energy_mj: int
    peak_memory_kib: int
    epsilon_milli: int = 0


def test_metrics_without_the_source_of_their_energy_are_read_on_either_side() -> None:
    older = msgspec.msgpack.encode(OlderMetrics(0.5, 10, 20, 30))
    assert msgspec.msgpack.decode(older, type=Metrics) == Metrics(0.5, 10, 20, 30)
    newer = msgspec.msgpack.encode(Metrics(0.5, 10, 20, 30, 7, "battery", 12))
    assert msgspec.msgpack.decode(newer, type=OlderMetrics) == OlderMetrics(0.5, 10, 20, 30, 7)


@pytest.mark.parametrize("source, percent", [("x" * 33, 5), ("rapl", 101), ("rapl", -1)])
def test_a_source_of_energy_that_is_a_story_and_more_than_all_of_it_are_refused(
    source: str, percent: int
) -> None:
    payload = msgspec.msgpack.encode(Metrics(0.5, 10, 20, 30, 0, source, percent))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(payload, type=Metrics)
