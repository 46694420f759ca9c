"""What devices can cause to be logged has an end."""

import logging

from device_runtime.aggregator.serving import logs
from device_runtime.aggregator.serving.config import LogSection
from device_runtime.aggregator.serving.logs import WARNINGS, WITHIN_S, WarningLimit


def line(text, at, number=1, level=logging.WARNING):
    record = logging.LogRecord("aggregator.x", level, "x.py", number, "%s dropped", (text,), None)
    record.created = at
    return record


def test_warnings_of_one_place_are_limited_and_what_was_left_out_is_counted():
    limited = WarningLimit()
    let = [one for one in range(100) if limited.filter(line(f"message {one}", one / 10))]
    assert let == list(range(WARNINGS))
    assert limited.filter(line("another", 5.0, number=2))
    later = line("the next", WITHIN_S)
    assert limited.filter(later)
    assert later.getMessage() == f"the next dropped ({100 - WARNINGS} such lines before it were suppressed)"
    after = line("one more", WITHIN_S + 1.0)
    assert limited.filter(after)
    assert after.getMessage() == "one more dropped"


def test_where_the_clock_was_set_back_warnings_are_not_left_out_until_it_is_there_again():
    limited = WarningLimit()
    assert [limited.filter(line("it", 1e9)) for _ in range(WARNINGS + 1)] == [True] * WARNINGS + [False]
    assert limited.filter(line("it", 10.0))
    assert [limited.filter(line("it", 11.0)) for _ in range(WARNINGS)] == [True] * (WARNINGS - 1) + [False]


def test_errors_and_what_is_no_warning_are_never_left_out():
    limited = WarningLimit()
    for level in (logging.ERROR, logging.INFO):
        assert all(limited.filter(line("it", 0.0, level=level)) for _ in range(100))


def test_the_service_limits_what_it_logs(monkeypatch, capsys):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.root, "handlers", [handler])
    logs.configure(LogSection())
    logs.configure(LogSection())
    for number in range(1000):
        logging.getLogger("device_runtime.aggregator.rounds.service").warning("message on %d dropped", number)
    assert capsys.readouterr().err.count("dropped") == WARNINGS
    assert len(handler.filters) == 1
