"""The log of a service: its lines, and a limit on what devices can cause to be logged."""

import errno
import io
import json
import logging
import os
import shlex
import subprocess
import sys

import pytest

from device_runtime import console
from device_runtime.console import OTHERS, WARNINGS, WITHIN_S, LogFormatter, LogLimit, log_as_service


def line(form, **fields):
    record = logging.LogRecord("aggregator", logging.INFO, "", 0, "round closed", None, None)
    record.fields = fields
    return LogFormatter(form).format(record)


@pytest.mark.parametrize(
    "value, text",
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
def test_numbers_in_the_log_as_text_have_the_digits_that_people_read(value, text):
    assert line("text", x=value).endswith(f"info aggregator: round closed x={text}")


def test_numbers_in_the_log_as_json_are_exact():
    assert json.loads(line("json", x=0.1 + 0.2))["x"] == 0.1 + 0.2


def warning(text, at, number=1, level=logging.WARNING):
    record = logging.LogRecord("aggregator.x", level, "x.py", number, "%s dropped", (text,), None)
    record.created = at
    return record


def test_warnings_of_one_place_are_limited_and_what_was_left_out_is_counted():
    limited = LogLimit()
    let = [number for number in range(100) if limited.filter(warning(f"message {number}", number / 10))]
    assert let == list(range(WARNINGS))
    assert limited.filter(warning("another", 5.0, number=2))
    later = warning("the next", WITHIN_S)
    assert limited.filter(later)
    assert later.getMessage() == f"the next dropped ({100 - WARNINGS} such lines before it were suppressed)"
    after = warning("one more", WITHIN_S + 1.0)
    assert limited.filter(after)
    assert after.getMessage() == "one more dropped"


def test_where_the_clock_was_set_back_warnings_are_not_left_out_until_it_is_there_again():
    limited = LogLimit()
    assert [limited.filter(warning("it", 1e9)) for _ in range(WARNINGS + 1)] == [True] * WARNINGS + [False]
    assert limited.filter(warning("it", 10.0))
    assert [limited.filter(warning("it", 11.0)) for _ in range(WARNINGS)] == [True] * (WARNINGS - 1) + [False]


@pytest.mark.parametrize(
    ("level", "most"),
    [
        (logging.CRITICAL, WARNINGS),
        (logging.ERROR, WARNINGS),
        (logging.INFO, OTHERS),
        (logging.DEBUG, OTHERS),
    ],
)
def test_lines_of_every_level_are_limited(level, most):
    limited = LogLimit()
    assert sum(limited.filter(warning("it", 0.0, level=level)) for _ in range(most + 50)) == most


def failure(error, name="aggregator.x"):
    record = logging.LogRecord(name, logging.ERROR, "x.py", 1, "it failed", None, None)
    record.created, record.exc_info = 0.0, (type(error), error, None)
    return record


def test_of_errors_of_one_type_the_first_has_a_traceback_and_the_others_are_lines():
    limited = LogLimit()
    records = [failure(ValueError("two\nlines")) for _ in range(3)] + [failure(KeyError("other"))]
    assert all(map(limited.filter, records))
    assert [bool(record.exc_info) for record in records] == [True, False, False, True]
    assert records[1].getMessage() == "it failed: ValueError: two lines"


def test_an_error_that_another_machine_causes_in_a_library_is_a_line():
    limited = LogLimit()
    theirs, ours = (
        failure(ConnectionResetError(104, "reset"), name) for name in ("asyncio", "device_runtime.broker.x")
    )
    assert limited.filter(theirs) and theirs.exc_info is None
    assert theirs.getMessage() == "it failed: ConnectionResetError: [Errno 104] reset"
    assert LogLimit().filter(ours) and ours.exc_info


def test_the_service_limits_what_it_logs(monkeypatch, capsys):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.root, "handlers", [handler])
    log_as_service(None)
    log_as_service(None)
    for number in range(1000):
        logging.getLogger("device_runtime.aggregator.rounds.service").warning("message on %d dropped", number)
    assert capsys.readouterr().err.count("dropped") == WARNINGS
    assert len(handler.filters) == 1


class Full(io.StringIO):
    """A log file on a full disk."""

    def write(self, _text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_on_a_full_disk_ends_nothing_and_says_nothing_more(capsys):
    handler = console._StandardErrorHandler(Full())
    logger = logging.Logger("full")
    logger.addHandler(handler)
    logger.warning("a line")
    assert capsys.readouterr().err == ""


def run(program, script="", **more):
    """Runs a program in a shell of its own, with what the shell does to its streams."""
    code = f"import sys; from device_runtime.cli import main; {program}"
    words = shlex.join([sys.executable, "-c", code])
    return subprocess.run(["sh", "-c", f"{words} {script}"], capture_output=True, text=True, **more)


def test_an_output_that_cannot_be_written_is_said_with_a_code(tmp_path):
    done = run("sys.exit(main(['--help']))", ">/dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no space left on device" in done.stderr


def test_a_reader_that_has_gone_ends_it_without_a_word():
    done = run("sys.exit(main(['--help']))", "| head -c 1")
    assert done.stderr == ""


def test_streams_that_are_closed_lead_to_no_file_of_ours(tmp_path):
    opened = "f = open('kept', 'w'); print('printed'); f.close(); main(['--version'])"
    done = run(f"main(['--version']); {opened}", "<&- >&- 2>&-", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "kept").read_text() == ""


def test_letters_that_the_encoding_lacks_are_escaped():
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"}
    done = run("main(['policy']); print('Küche')", env=env)
    assert done.stdout.endswith("K\\xfcche\n")
