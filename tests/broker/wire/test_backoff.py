"""What a link makes of connections that end."""

from device_runtime.broker.wire.link_timing import STEADY_S, ReconnectDelay


def test_the_wait_grows_until_a_connection_was_steady() -> None:
    patience = ReconnectDelay((1.0, 64.0), seed=3)

    def waits() -> list[float]:
        found = []
        for _ in range(4):
            patience.failed()
            found.append(patience.wait_s())
        return found

    # each in (half, whole] of 2, 4, 8, 16
    assert [2 ** (i + 1) / 2 < wait <= 2 ** (i + 1) for i, wait in enumerate(waits())] == [True] * 4
    patience.lost(STEADY_S - 0.1)
    assert patience.wait_s() > 8.0 * 0.999
    patience.lost(STEADY_S)
    assert patience.wait_s() <= 1.0


def test_short_connections_in_a_row_are_suspicious_and_a_steady_one_clears_it() -> None:
    patience = ReconnectDelay((1.0, 64.0))
    patience.lost(0.1)
    assert not patience.crowded
    patience.lost(0.1)
    assert patience.crowded
    patience.lost(STEADY_S)
    assert not patience.crowded


def test_attempts_that_nobody_answers_are_not_suspicious() -> None:
    patience = ReconnectDelay((1.0, 64.0))
    for _ in range(10):
        patience.failed()
    assert not patience.crowded
