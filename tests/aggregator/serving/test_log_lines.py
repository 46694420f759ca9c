"""The log of `serve` with --log-format."""

import json
import logging

import pytest

from device_runtime.aggregator.serving.logs import LogFormatter


def line(form, **fields):
    record = logging.LogRecord("aggregator", logging.INFO, "", 0, "round closed", None, None)
    record.fields = fields
    return LogFormatter(form).format(record)


@pytest.mark.parametrize(
    "value, said",
    [
        (0.9629629629629629, "0.962963"),
        (1_700_000_000.1234567, "1700000000.123457"),
        (0.00012345678901234567, "0.000123"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (0.0, "0.0"),
        (12, "12"),
        (True, "True"),
        ((0.1 + 0.2, "a"), "\"(0.3, 'a')\""),
        ({"full": 0.1 + 0.2}, "\"{'full': 0.3}\""),
    ],
)
def test_numbers_in_the_log_as_text_have_the_digits_that_people_read(value, said):
    assert line("text", x=value).endswith(f"info aggregator: round closed x={said}")


def test_numbers_in_the_log_as_json_are_exact():
    assert json.loads(line("json", x=0.1 + 0.2))["x"] == 0.1 + 0.2
