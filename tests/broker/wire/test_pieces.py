"""Messages in pieces: each packet within the limit, joined in any order, bounded in what they take."""

import random

import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import packet_bytes
from device_runtime.broker.wire.pieces import LEAVES, MOST_BYTES, MOST_OPEN, PieceJoiner, TooLarge, cut

SHA = bytes(range(32))
BLOCK = topics.up("pi", topics.block(SHA, 3))


@pytest.mark.parametrize("limit", [1024, 16_384, 65_536, 131_072])
@pytest.mark.parametrize("topic", [BLOCK, topics.down("x" * 64, "task"), topics.up("pi", "contribution")])
@pytest.mark.parametrize("mqtt5", [False, True])
def test_pieces_are_within_the_limit_and_join_to_the_message(topic: str, limit: int, mqtt5: bool) -> None:
    payload = random.Random(limit).randbytes(65_536)
    packets = cut(topic, payload, 1, limit, mqtt5)
    assert all(packet_bytes(*packet, 1, mqtt5) <= limit for packet in packets)
    if len(packets) == 1:
        assert packets == [(topic, payload)]
        return
    random.Random(1).shuffle(packets)
    joiner = PieceJoiner()
    joined = [joiner.take(*packet) for packet in packets]
    assert joined == [None] * (len(packets) - 1) + [(topic, payload)]


def test_a_message_that_fits_stays_as_it_is() -> None:
    assert cut(BLOCK, bytes(100), 1, packet_bytes(BLOCK, bytes(100), 1)) == [(BLOCK, bytes(100))]
    assert len(cut(BLOCK, bytes(2000), 1, packet_bytes(BLOCK, bytes(2000), 1) - 1)) == 2


@pytest.mark.parametrize(
    ("topic", "whole"),
    [(topics.offer("t"), False), (topics.up("pi", "state"), False), (BLOCK, True), ("t", False)],
)
def test_what_cannot_go_in_pieces_is_refused_with_its_size(topic: str, whole: bool) -> None:
    size = packet_bytes(topic, bytes(5000), 1)
    with pytest.raises(
        TooLarge, match=f"a packet of {size} bytes on {topic}; the broker takes 2048"
    ) as caught:
        cut(topic, bytes(5000), 1, 2048, whole=whole)
    assert caught.value.size == size


def test_a_limit_that_leaves_no_room_beside_the_topic_is_refused() -> None:
    with pytest.raises(TooLarge):
        cut(BLOCK, bytes(5000), 1, 110)


def test_pieces_pass_an_access_list_for_blocks() -> None:
    for topic in (BLOCK, topics.up("pi", "contribution")):
        for piece, _ in cut(topic, bytes(9000), 1, 4096):
            parts = piece.split("/")
            assert parts[:6] == ["fl", "v1", "d", "pi", "up", "block"]
            assert len(parts) == 8
            assert PieceJoiner.is_piece(piece)
    assert not PieceJoiner.is_piece(BLOCK)


def test_pieces_of_two_sendings_with_different_limits_do_not_mix() -> None:
    payload = random.Random(1).randbytes(9000)
    joiner, small, large = PieceJoiner(), cut(BLOCK, payload, 1, 2048), cut(BLOCK, payload, 1, 4096)
    assert [joiner.take(*packet) for packet in (small[0], small[1], *large)][-1] == (BLOCK, payload)


def test_a_piece_that_comes_twice_counts_once() -> None:
    payload = random.Random(1).randbytes(9000)
    first, *rest = cut(BLOCK, payload, 1, 4096)
    joiner = PieceJoiner()
    assert [joiner.take(*packet) for packet in (first, first, first, *rest)][-1] == (BLOCK, payload)


@pytest.mark.parametrize("label", ["hello.0.0", "hello.2.2", "hello.0.999", "state.0.2", "nothing.0.2"])
def test_pieces_that_cannot_be_are_dropped(label: str) -> None:
    assert PieceJoiner().take(f"fl/v1/d/pi/up/block/{SHA.hex()}/{label}", b"x") is None


def test_a_message_that_is_not_what_its_hash_says_is_dropped() -> None:
    packets = cut(topics.up("pi", "hello"), bytes(5000), 1, 2048)
    joiner = PieceJoiner()
    forged = [(topic, b"\x01" + payload[1:]) for topic, payload in packets]
    assert [joiner.take(*packet) for packet in forged] == [None] * len(packets)


def test_what_never_becomes_whole_takes_a_bounded_part_of_the_memory() -> None:
    joiner = PieceJoiner()
    for number in range(10 * MOST_OPEN):
        joiner.take(f"fl/v1/d/pi/up/block/{number:064x}/0.0.2", bytes(60_000))
    assert len(joiner._open) == MOST_OPEN
    for device in range(100):
        for number in range(MOST_OPEN):
            joiner.take(f"fl/v1/d/d{device}/up/block/{number:064x}/0.0.2", bytes(60_000))
    assert joiner._bytes == sum(message.size for message in joiner._open.values()) <= MOST_BYTES
    joiner.take(f"fl/v1/d/pi/up/block/{1:064x}/5.0.9", bytes(200_000))
    joiner.take(f"fl/v1/d/pi/up/block/{1:064x}/5.1.9", bytes(200_000))  # more than any message has
    assert not any(key[1].endswith("/5") for key in joiner._open)


def test_every_leaf_but_presence_may_be_cut() -> None:
    sent = {leaf for leaf in topics.UP if "/" not in leaf} - {"state", "trial"}
    assert sent | {"task", "n", "receipt"} == set(LEAVES)
