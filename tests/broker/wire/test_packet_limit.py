"""What a link learns of a broker's packet limit."""

from device_runtime.broker.wire.pieces import SMALLEST, DroppedBlocks, PacketLimit


def test_two_closings_in_the_same_packet_teach_a_smaller_size() -> None:
    limit = PacketLimit()
    assert not limit.closed(65_630)
    assert limit.closed(65_630)
    assert (limit.most, limit.too_large) == (32_768, 65_630)
    assert not limit.closed(21_944)
    assert limit.closed(21_944)
    assert limit.most == 16_384


def test_one_closing_or_two_in_different_packets_teach_nothing() -> None:
    limit = PacketLimit()
    assert [limit.closed(size) for size in (65_630, 40_000, 65_630, 700)] == [False] * 4
    assert limit.most is None


def test_a_packet_that_was_acknowledged_is_not_suspected() -> None:
    limit = PacketLimit()
    limit.closed(65_630)
    limit.acknowledged(65_630)
    assert [limit.closed(65_630) for _ in range(5)] == [False] * 5
    assert limit.most is None


def test_what_the_broker_states_counts_and_may_change() -> None:
    limit = PacketLimit()
    limit.stated(16_384)
    assert limit.most == 16_384
    limit.stated(131_072)
    assert limit.most == 131_072
    limit.stated(None)
    assert limit.most is None


def test_what_was_learnt_stays_at_a_broker_that_states_nothing() -> None:
    limit = PacketLimit()
    limit.refused(65_630)
    limit.stated(None)
    assert limit.most == 32_768


def test_below_the_smallest_size_there_is_none_to_try() -> None:
    limit = PacketLimit()
    sizes = []
    while limit.refused((limit.most or 2 * 65_536) - 1):
        sizes.append(limit.most)
    assert sizes == sorted(sizes, reverse=True)  # type: ignore[type-var]
    assert sizes[-1] == SMALLEST
    assert limit.hopeless == SMALLEST - 1


def test_a_block_that_is_asked_for_a_third_time_within_two_minutes_may_have_been_dropped() -> None:
    drops, topic, block = DroppedBlocks(), "fl/v1/d/pi/up/block/ab/0", bytes(65_536)
    assert [drops.suspicious(topic, block, now) for now in (0.0, 5.0, 15.0)] == [False, False, True]
    assert [drops.suspicious(topic, block, now) for now in (100.0, 221.0, 300.0)] == [False, False, False]


def test_a_block_is_not_suspicious_where_one_before_it_has_arrived() -> None:
    """A queue that overflows drops blocks too; smaller pieces would only be more of them."""
    drops = DroppedBlocks()
    topic, block = "fl/v1/d/pi/up/block/ab", bytes(65_536)
    gaps = [(0, 1, 2, 3, 4), (2, 3, 4), (2, 3), (2,), (2,)]
    assert not any(
        drops.suspicious(f"{topic}/{i}", block, 5.0 * k) for k, gap in enumerate(gaps) for i in gap
    )


def test_of_blocks_that_never_arrive_the_first_is_suspicious_however_few_are_asked_for() -> None:
    drops = DroppedBlocks()
    topic, block = "fl/v1/d/pi/up/block/ab", bytes(65_536)
    suspects = [
        i
        for k, most in enumerate((8, 4, 2, 1, 1, 1))
        for i in range(most)
        if drops.suspicious(f"{topic}/{i}", block, 9.0 * k)
    ]
    assert suspects == [0, 0]


def test_other_content_short_messages_and_other_topics_are_not_suspicious() -> None:
    drops = DroppedBlocks()
    for round_ in range(9):
        content = bytes([round_]) * 65_536
        assert not drops.suspicious("fl/v1/d/pi/up/contribution", content, float(round_))
        assert not drops.suspicious("fl/v1/d/pi/up/block/ab/0", bytes(8000), float(round_))
        assert not drops.suspicious("fl/v1/d/pi/up/sum", bytes(65_536), float(round_))
