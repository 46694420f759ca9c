"""What a link makes of connections that end."""

import pytest

from device_runtime.broker.wire.link_events import (
    STEADY_S,
    KeepAlive,
    Outage,
    ReconnectDelay,
    StepTime,
    duration,
)


def test_the_wait_grows_until_a_connection_was_steady() -> None:
    patience = ReconnectDelay((1.0, 64.0), seed=3)

    def waits() -> list[float]:
        waits_s = []
        for _ in range(4):
            patience.failed()
            waits_s.append(patience.wait_s())
        return waits_s

    # each in (half, whole] of 2, 4, 8, 16
    assert [2 ** (i + 1) / 2 < wait <= 2 ** (i + 1) for i, wait in enumerate(waits())] == [True] * 4
    patience.note_end(STEADY_S - 0.1)
    assert patience.wait_s() > 8.0 * 0.999
    patience.note_end(STEADY_S)
    assert patience.wait_s() <= 1.0


def test_short_connections_in_a_row_are_suspicious_and_a_steady_one_clears_it() -> None:
    patience = ReconnectDelay((1.0, 64.0))
    patience.note_end(0.1)
    assert not patience.crowded
    patience.note_end(0.1)
    assert patience.crowded
    patience.note_end(STEADY_S)
    assert not patience.crowded


def test_attempts_that_nobody_answers_are_not_suspicious() -> None:
    patience = ReconnectDelay((1.0, 64.0))
    for _ in range(10):
        patience.failed()
    assert not patience.crowded


def test_the_time_of_a_step_doubles_with_each_attempt_that_ran_out_of_it() -> None:
    time = StepTime((5.0, 60.0))
    limits = []
    for _ in range(6):
        limits.append(time.limit_s)
        time.timed_out()
    assert limits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_after_a_connection_each_step_has_three_times_what_the_slowest_took() -> None:
    time = StepTime((5.0, 60.0))
    time.timed_out()
    time.succeeded(0.1)
    assert time.limit_s == 5.0
    time.succeeded(12.0)
    assert time.limit_s == 36.0
    time.timed_out()
    assert time.limit_s == 60.0


def test_a_reason_is_worth_a_line_once_in_an_outage_and_again_when_it_changes() -> None:
    outage = Outage()
    answers = [
        outage.worth_saying(reason, now)
        for now, reason in enumerate(["refused", "refused", "no name", "no name"])
    ]
    assert answers == [True, False, True, False]
    assert outage.over(90.0) == 90.0
    assert outage.over(91.0) is None
    assert outage.worth_saying("refused", 100.0)


def test_two_reasons_that_alternate_do_not_fill_the_log() -> None:
    outage = Outage()
    answers = [outage.worth_saying(("a", "b")[now % 2], float(now)) for now in range(1200)]
    assert sum(answers) == 4  # each at first, and again after ten minutes


def test_connections_that_end_again_and_again_are_said_three_times_in_ten_minutes() -> None:
    outage, answers, ends = Outage(), [], []
    for now in range(0, 1200, 30):  # one that is cut every 30 s
        answers.append(outage.worth_saying("lost", float(now)))
        ends.append(outage.over(now + 1.0))
    assert answers[:4] == [True, True, True, False]
    assert sum(answers) == 6
    assert [end is not None for end in ends] == answers
    assert outage.is_frequent("lost")
    assert outage.worth_saying("refused", 1200.0)


def test_pings_come_more_often_where_silent_connections_are_cut() -> None:
    keep = KeepAlive(30)
    assert [keep.ended(30.0, 45.0), keep.ended(30.5, 900.0)] == [False, True]
    assert keep.seconds == 15
    keep.ended(0.1, 3000.0)
    assert keep.seconds == 15


def test_connections_that_are_cut_while_busy_or_at_any_time_change_no_pings() -> None:
    keep = KeepAlive(30)
    for silent_s in (0.1, 0.1, 8.0, 20.0, 12.0, 1.0, 1.0):
        assert not keep.ended(silent_s, 40.0)
    assert keep.seconds == 30


def test_connections_that_may_last_only_so_long_keep_their_pings() -> None:
    """Cut after 29 s whatever passes: the pings were not the reason."""
    keep = KeepAlive(30)
    keep.ended(28.0, 29.0)
    keep.ended(28.0, 29.0)
    assert keep.seconds == 14
    for _ in range(4):
        keep.ended(14.0, 29.0)
    assert keep.seconds == 30


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.44, "0.4 s"), (12.4, "12 s"), (185, "3 min 5 s"), (7440, "2 h 4 min"), (59.6, "1 min 0 s")],
)
def test_durations_are_said_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
