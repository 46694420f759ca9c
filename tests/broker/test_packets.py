"""What a packet weighs (against a real socket: test_link), how long to wait."""

from broker.packets import backoff, packet_bytes


def test_qos_0_has_no_packet_id() -> None:
    assert packet_bytes("t", b"x", 1) - packet_bytes("t", b"x", 0) == 2
    assert packet_bytes("t", b"x", 0) == 2 + 2 + 1 + 1


def test_backoff_doubles_up_to_its_bound_and_is_spread_by_up_to_a_half() -> None:
    waits = [backoff(failures, (0.5, 30.0), 0.0) for failures in range(8)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff(2, (0.5, 30.0), 0.5) == 1.5
    assert backoff(10_000, (0.5, 30.0), 0.0) == 30
