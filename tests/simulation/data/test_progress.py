"""How far a comparison is, on a clock that stands still."""

import io
from math import isnan, nan

import msgspec
import pytest

from device_runtime.simulation.compare.progress import (
    Message,
    ProgressBars,
    ProgressLines,
    ProgressWriter,
    RemainingTime,
    RoundDone,
    UpdatesTrained,
)
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.strategies.kinds import registry

CHOOSE, DROP = RunName("choose", 0), RunName("drop", 0)


def tick(number, accuracy=0.5):
    return RoundDone(number, 10.0 * number, accuracy, 4)


def test_the_rest_takes_as_long_as_what_was_done(clock):
    pace = RemainingTime(10, clock)
    assert isnan(pace.left_s())
    clock.sleep(8)
    pace.step()
    pace.step()
    assert pace.left_s() == pytest.approx(32)  # 4 s each, 8 left


def test_what_was_done_before_costs_no_time(clock):
    pace = RemainingTime(10, clock)
    pace.spare(8)
    clock.sleep(3)
    pace.step()
    assert pace.left_s() == pytest.approx(3)


def test_a_line_comes_every_few_seconds_and_when_a_run_ends(clock):
    out = io.StringIO()
    view = ProgressLines([CHOOSE, DROP], 4, out, clock)
    clock.sleep(1)
    view.moved(CHOOSE, tick(1))
    clock.sleep(5)
    view.moved(DROP, tick(1, None))
    view.moved(CHOOSE, tick(2))
    view.moved(CHOOSE, tick(3))
    view.moved(CHOOSE, tick(4))
    view.ended(CHOOSE, "")
    view.ended(DROP, "no such data")
    assert out.getvalue().splitlines() == [
        "drop-0: round 1 of 4, 10 s of virtual time; about 18 s left",
        "choose-0: finished (1 of 2 runs); about 3.6 s left",
        "drop-0: failed: no such data (2 of 2 runs)",
    ]


def test_a_run_that_goes_on_in_round_3_has_less_left(clock):
    out = io.StringIO()
    view = ProgressLines([CHOOSE], 4, out, clock)
    clock.sleep(6)
    view.moved(CHOOSE, tick(3))
    assert out.getvalue().endswith("accuracy 50.0%, 30 s of virtual time; about 6 s left\n")


def test_runs_may_have_rounds_of_their_own(clock):
    out = io.StringIO()
    view = ProgressLines([CHOOSE, DROP], {CHOOSE: 4, DROP: 1}, out, clock)
    clock.sleep(6)
    view.moved(CHOOSE, tick(1))
    view.moved(DROP, tick(1))
    clock.sleep(6)
    view.ended(DROP, "")
    assert out.getvalue().splitlines() == [
        "choose-0: round 1 of 4, accuracy 50.0%, 10 s of virtual time; about 24 s left",  # 4 more of 6 s
        "drop-0: finished (1 of 2 runs); about 18 s left",  # 2 in 12 s, 3 more
    ]


def test_bars_are_drawn_and_taken_away(capsys):
    view = ProgressBars([CHOOSE, DROP], 4)
    view.working(CHOOSE, UpdatesTrained(3, 5))
    view.moved(CHOOSE, tick(3))
    view.moved(CHOOSE, tick(4))
    view.ended(CHOOSE, "")
    view.ended(DROP, "no such data")
    view.close()
    view.close()
    text = capsys.readouterr().out
    assert "all runs" in text
    assert "50%" in text
    assert "drop-0: failed: no such data" in text


def test_bars_fit_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    name = RunName("entropy-subset", 10)
    view = ProgressBars([name], 1000)
    view.working(name, UpdatesTrained(1000, 123))
    view.close()
    view = ProgressBars([name], 4)
    view.moved(name, RoundDone(3, 86400 * 3.2, 0.987, 9))
    view.close()
    text = capsys.readouterr().out
    assert "…" not in text
    assert "round 1000: 123 trained" in text
    assert "98.7% at 3.2 days" in text


def test_each_round_is_told_as_one_line_of_json(round_line):
    out = io.StringIO()
    teller = ProgressWriter(out)
    teller.closed(round_line(round=3, closed_s=9.5, eval_acc=nan, participants=7))
    [line] = out.getvalue().splitlines()
    assert msgspec.json.decode(line, type=Message) == RoundDone(3, 9.5, None, 7)


def test_a_long_round_gives_signs_of_life(clock, round_line):
    out = io.StringIO()
    teller = ProgressWriter(out, clock)
    job = TrainingJob(device=0, name="a", strategy=registry.make("full", {}), seed=0, base="3")
    for _ in range(5):
        clock.sleep(0.4)
        teller.trained(job, None)
    teller.closed(round_line(round=3))
    clock.sleep(2)
    teller.trained(job, None)
    messages = [msgspec.json.decode(line, type=Message) for line in out.getvalue().splitlines()]
    assert [messages[0], messages[2]] == [UpdatesTrained(3, 3), UpdatesTrained(4, 1)]


def test_signs_of_life_within_a_round_are_lines_too(clock):
    out = io.StringIO()
    view = ProgressLines([CHOOSE], 4, out, clock)
    view.working(CHOOSE, UpdatesTrained(1, 3))
    clock.sleep(6)
    view.working(CHOOSE, UpdatesTrained(1, 12))
    assert out.getvalue() == "choose-0: 12 updates trained for round 1 of 4\n"
