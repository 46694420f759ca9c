"""The topic tree: what is built is parsed, and nothing else is."""

import paho.mqtt.client as paho
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire.topics import (
    ALL_BUT_CONTRIBUTIONS,
    CONTRIBUTIONS,
    FROM_DEVICES,
    Address,
    TopicError,
    block,
    check_device,
    down,
    filter_of,
    parse,
    shared,
    up,
)

SHA = bytes(range(32))


@pytest.mark.parametrize("make", [up, down])
def test_what_is_built_is_parsed(make: object) -> None:
    assert callable(make)
    assert parse(make("pi-07", "hello")) == Address("pi-07", "hello")
    assert parse(make("pi-07", block(SHA, 12))) == Address("pi-07", "block", SHA, 12)
    assert parse(make("pi-07", block(SHA, -1))) == Address("pi-07", "block", SHA, -1)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "fl/v1/all/round",
        "fl/v2/d/pi/up/hello",
        "fl/v1/d/pi/up",
        "fl/v1/d/pi/sideways/hello",
        "fl/v1/d/p i/up/hello",
        "fl/v1/d//up/hello",
        "fl/v1/d/pi/up/hello/more",
        "fl/v1/d/pi/up/block/1",
        f"fl/v1/d/pi/up/block/{SHA.hex()}/",
        f"fl/v1/d/pi/up/block/{SHA.hex()}/-2",
        f"fl/v1/d/pi/up/block/{SHA.hex()}/1_0",
        f"fl/v1/d/pi/up/block/{SHA.hex()}/٣",
        f"fl/v1/d/pi/up/block/{SHA.hex()}/{10**9}",
        f"fl/v1/d/pi/up/block/{SHA.hex()[:-2]}/1",
        f"fl/v1/d/pi/up/block/{SHA.hex()[:-2]} 1/1",
        f"fl/v1/d/pi/up/block/{SHA.hex().upper()}/1",
    ],
)
def test_anything_else_is_refused(topic: str) -> None:
    with pytest.raises(TopicError, match=r"is not a device topic|device name"):
        parse(topic)


@given(text=st.text(), prefix=st.sampled_from(["", "fl/v1/d/", "fl/v1/d/pi/up/", "fl/v1/d/pi/up/block/"]))
def test_no_text_breaks_the_parser(text: str, prefix: str) -> None:
    try:
        assert isinstance(parse(prefix + text), Address)
    except TopicError as error:
        assert isinstance(error, BrokerError)


@pytest.mark.parametrize("name", ["", "-pi", ".", "a/b", "a+b", "#", "a" * 65, "pi\n", "pí"])
def test_a_device_name_that_cannot_stand_in_a_topic_is_refused(name: str) -> None:
    with pytest.raises(TopicError, match="use 1 to 64"):
        check_device(name)


@pytest.mark.parametrize("leaf", ["state", "hello", "plan", "contribution", "get", block(SHA, 3), "trial"])
def test_all_that_devices_send_is_heard_once_by_who_has_others_take_contributions(leaf: str) -> None:
    topic = up("pi-07", leaf)
    assert paho.topic_matches_sub(FROM_DEVICES, topic)
    assert (
        sum(paho.topic_matches_sub(pattern, topic) for pattern in (*ALL_BUT_CONTRIBUTIONS, CONTRIBUTIONS))
        == 1
    )


def test_what_is_shared_is_for_the_same_topics() -> None:
    assert shared("g-1", CONTRIBUTIONS) == "$share/g-1/fl/v1/d/+/up/contribution"
    assert filter_of(shared("g-1", CONTRIBUTIONS)) == CONTRIBUTIONS == filter_of(CONTRIBUTIONS)
