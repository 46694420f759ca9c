"""What a packet weighs (against a real socket: test_link), how long to wait."""

import pytest

from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import CompactOffer
from device_runtime.broker.wire.link_events import backoff, packet_bytes, qos_of

NEXT = small.encode_offer(CompactOffer(3, b"abcd", False, (1.0,)))


def test_qos_0_has_no_packet_id() -> None:
    assert packet_bytes("t", b"x", 1) - packet_bytes("t", b"x", 0) == 2
    assert packet_bytes("t", b"x", 0) == 2 + 2 + 1 + 1


@pytest.mark.parametrize(
    ("topic", "payload", "qos"),
    [
        (topics.offer("t"), NEXT, 0),
        (topics.offer("t"), b"\x9c\x04", 1),
        (topics.down("a", "n"), small.with_mac(NEXT, bytes(8)), 0),
        (topics.down("a", "task"), b"\x94\x04", 1),
        (topics.up("a", "c"), b"\x04\x01\x01", 0),
        (topics.up("a", "contribution"), b"\x04", 1),
        (topics.up("a", topics.block(bytes(32), 0)), b"\x04", 1),
        (topics.up("a", "state"), b"", 1),
    ],
)
def test_what_is_said_in_few_bytes_is_not_acknowledged_by_a_broker(topic, payload, qos):
    assert qos_of(topic, payload) == qos
    assert packet_bytes(topic, payload) == packet_bytes(topic, payload, qos)


def test_backoff_doubles_up_to_its_bound_and_is_spread_by_up_to_a_half() -> None:
    waits = [backoff(failures, (0.5, 30.0), 0.0) for failures in range(8)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff(2, (0.5, 30.0), 0.5) == 1.5
    assert backoff(10_000, (0.5, 30.0), 0.0) == 30
