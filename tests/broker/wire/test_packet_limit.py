"""What a link learns of a broker's packet limit."""

from device_runtime.broker.wire.packet_limit import SMALLEST, PacketLimit


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
