"""What people and files are told."""

import csv
import io
from dataclasses import replace
from math import nan

import msgspec
import pytest

from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRecord,
    ContributionRefused,
    DeviceSeen,
    Finished,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RoundRecord,
    Started,
    SumsAwaited,
)
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.console_log import ConsoleLog, energy_from, judged, size, summary
from device_runtime.aggregator.views.terminal import TerminalState, sparkline

TASK = Task(bundle="b", name="digits", rounds=2)


def closed(number, accuracy=0.5):
    record = RoundRecord(number, accuracy, 1.25, accuracy, nan, 1, 2.0, 1.5, 12_345, 950, 3.0)
    contribution = ContributionRecord(
        number, "pi-01", "full", 10, nan, 1.5, 2.0, 1024, 100, 50, 'fits, "well"'
    )
    return RoundClosed(record, (contribution,))


def test_records_are_the_same_after_a_restart_that_lost_a_line(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder in (whole, resumed):
        folder.mkdir()
    records = Records(whole)
    for event in (Started(TASK, "r", False, ()), closed(1), closed(2)):
        records(event)
    Records(resumed)(Started(TASK, "r", False, ()))
    again = Records(resumed)
    again(Started(TASK, "r", True, (closed(1),)))
    again(closed(2))
    for name in ("rounds.jsonl", "rounds.csv", "contributions.jsonl", "contributions.csv"):
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()
    rows = list(csv.DictReader((whole / "contributions.csv").open(newline="")))
    assert [row["why"] for row in rows] == ['fits, "well"'] * 2
    assert rows[0]["train_loss"] == ""
    line = msgspec.json.decode((whole / "rounds.jsonl").read_bytes().splitlines()[1])
    assert (line["round"], line["train_loss"]) == (2, None)


def test_a_round_s_energy_says_of_how_many_updates_it_was_measured():
    both = closed(1).contributions[0], replace(closed(1).contributions[0], energy_source="rapl")
    rounds = [RoundClosed(closed(1).record, some) for some in (both[:1], both, both[1:], ())]
    assert [energy_from(record) for record in rounds] == [" modelled", " (1 of 2 measured)", " measured", ""]


def test_without_a_terminal_there_is_one_line_a_round_and_a_table_at_the_end():
    out = io.StringIO()
    view = ConsoleLog(out)
    for event in (
        Started(TASK, "r1", False, ()),
        RoundOpened(1, ("full",), 3.0),
        RoundExtended(1, 3.0, 0, 2),
        closed(1),
        Finished("r1", 2),
    ):
        view(event)
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        "task 'digits', run r1: 2 rounds of 60 s",
        "round 1 extended by 3 s: 0 of 2 contributions",
        "round 1 of 2: accuracy 50.0%, loss 1.250, 1 full, 12.3 kB up, 950 B down, 2 J modelled, 3.0 s",
    ]
    assert lines[3].split()[:3] == ["round", "accuracy", "loss"]


def test_without_evaluation_data_the_line_has_what_devices_held_out_and_says_so():
    record = replace(
        closed(4, nan).record, held_out_acc=0.9125, held_out_samples=240, held_out_head="trained"
    )
    line = summary(replace(closed(4), record=record))
    assert line.startswith("accuracy 91.2% of 240 held out by devices (the model of round 3), loss 1.250")
    other = replace(record, held_out_head="closed-form")
    assert other.held_out_of == "the closed-form head of round 3 on the base of round 4"
    both = replace(closed(4), record=replace(other, held_out_other_acc=1.0))
    words = "(the closed-form head of round 3 on the base of round 4; 100.0% with the trained head), loss"
    assert words in summary(both)
    assert judged(record) == "91.2% of 240 held out"
    assert judged(replace(record, eval_acc=0.5)) == "50.0%"
    assert judged(closed(4, nan).record) == "-"


def test_a_private_round_says_the_most_that_any_device_has_spent():
    some = [replace(closed(1).contributions[0], epsilon=epsilon) for epsilon in (nan, 1.25, 2.616)]
    assert summary(replace(closed(1), contributions=tuple(some))).endswith("3.0 s, epsilon at most 2.62")


def test_an_extended_round_says_who_sits_out_and_why():
    out = io.StringIO()
    view = ConsoleLog(out)
    too_slow = "full needs 9.0 s of 2.7 s (compute)"
    for event in (
        RoundOpened(1, ("full",), 3.0),
        PlanReported("b", 1, "", 0.0, 0, 0.0, (too_slow,)),
        PlanReported("a", 1, "", 0.0, 0, 0.0, ("full needs 4.0 s of 2.7 s (compute)",)),
        PlanReported("a", 1, "full", 2.0, 0, 0.0, ()),
        RoundExtended(1, 3.0, 0, 1),
        RoundExtended(1, 3.0, 0, 1),
    ):
        view(event)
    assert out.getvalue().splitlines() == [
        f"round 1 extended by 3 s: 0 of 1 contributions; 1 sitting out, b as {too_slow}",
        "round 1 extended by 3 s: 0 of 1 contributions",
    ]


def test_an_extended_round_says_how_long_it_goes_on_and_once_that_it_waits_for_devices():
    out = io.StringIO()
    view = ConsoleLog(out)
    for event in (
        RoundOpened(2, ("full",), 3.0),
        RoundExtended(2, 3.0, 0, 1, devices=0),
        RoundExtended(2, 3.0, 0, 1, devices=0),
        RoundExtended(2, 6.0, 0, 1, devices=4, fruitless=1),
        RoundExtended(2, 9.0, 0, 1, devices=4, fruitless=2, left=3),
        RoundExtended(2, 9.0, 0, 1, devices=4, fruitless=4, left=1),
    ):
        view(event)
    assert out.getvalue().splitlines() == [
        "round 2 extended by 3 s: 0 of 1 contributions; no device is there, waiting for one",
        "round 2 extended by 6 s: 0 of 1 contributions; this deadline is a longer one",
        "round 2 extended by 9 s: 0 of 1 contributions; the run ends after 3 more deadlines without any",
        "round 2 extended by 9 s: 0 of 1 contributions; the run ends after 1 more deadline without any",
    ]


def test_a_round_says_for_which_mask_helpers_it_waits_once_a_deadline_has_passed():
    out = io.StringIO()
    view = ConsoleLog(out)
    view(SumsAwaited(2, ("site-a", "site-b"), 3))
    view(SumsAwaited(2, ("site-b",), 1, deadlines=1, left=4))
    view(SumsAwaited(2, ("site-a", "site-b"), 1, deadlines=2))
    assert out.getvalue().splitlines() == [
        "round 2 waits for mask helper site-b; the run ends after 4 more deadlines without an answer",
        "round 2 waits for mask helpers site-a, site-b",
    ]


@pytest.mark.parametrize(("count", "text"), [(999, "999 B"), (1000, "1.0 kB"), (4_500_000, "4.5 MB")])
def test_sizes_are_in_the_unit_that_fits(count, text):
    assert size(count) == text


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0.0, 7.0, nan, 3.0]) == "▁█ ▄"
    assert sparkline([]) == ""
    assert sparkline([2.0]) == "▁"


def test_the_board_counts_the_rounds_of_a_device_once_each():
    board = TerminalState()
    board.take(Started(TASK, "r", True, (closed(1),)), 0.0)
    board.take(RoundOpened(2, ("full",), 60.0), 5.0)
    board.take(DeviceSeen("pi-01", True, "pi-zero", 10, "onnx"), 5.0)
    board.take(PlanReported("pi-01", 2, "full", 1.0, 1, 1.0, ("it fits", "so")), 6.0)
    assert (board.devices["pi-01"].doing, board.devices["pi-01"].why) == ("full", "it fits")
    board.take(Contributed(closed(2).contributions[0]), 7.0)
    board.take(Contributed(closed(2).contributions[0]), 7.0)
    row = board.devices["pi-01"]
    assert (row.rounds, row.sent, row.profile, board.closes_at) == (2, True, "pi-zero", 65.0)
    board.take(ContributionRefused("pi-02", 2, "full", "refused", "nan"), 8.0)
    assert (board.devices["pi-02"].doing, board.devices["pi-02"].why) == ("refused", "nan")


def test_the_live_view_shows_devices_and_rounds_and_takes_their_texts_for_text():
    console = pytest.importorskip("rich.console")
    from device_runtime.aggregator.views.terminal import TerminalView

    out = io.StringIO()
    view = TerminalView("mqtt://x", console.Console(file=out, width=160, force_terminal=False))
    view(Started(TASK, "r1", False, ()))
    view(RoundOpened(1, ("full",), 60.0))
    view(DeviceSeen("pi-01", True, "[red]pi[/red]", 10, "onnx"))
    view(closed(1))
    screen = console.Console(file=io.StringIO(), width=160, record=True)
    screen.print(view.draw())
    text = screen.export_text()
    assert "digits (run r1) · round 1 of 2" in text
    assert "[red]pi[/red]" in text
    assert "50.0%" in text
    view(Finished("r1", 2))
    view.close()
    assert "1 full" in out.getvalue()
