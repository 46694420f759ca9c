"""The forecast of a fleet as text, JSON and picture."""

import io

import numpy as np
import pytest

from device_runtime.simulation.report import canvas
from device_runtime.simulation.report.fleet import by_group, other_deadlines, picture, stragglers, text
from device_runtime.simulation.rounds.forecast import FleetForecast, KindForecast


def made_up(deadline_s=4.0, **changes):
    """Two fast devices that need 1 and 3 s, and a slow one that needs 8 s and can do class means alone."""
    needs = np.array([1.0, 3.0, 8.0])
    yes, no = np.ones(3, bool), np.zeros(3, bool)
    late = needs > deadline_s
    full = KindForecast("full", 0.9 * needs, 1e6 * np.array([60.0, 60, 60]), needs * 10, ~late, ~late)
    means = KindForecast("class-means", needs / 10, 1e6 * np.array([30.0, 30, 30]), needs, yes, late)
    unknown = np.full(3, np.nan)
    peft = KindForecast("peft", unknown, unknown, unknown, no, no, "needs 900 MB of 350 MB")
    limits = np.array([7.6e9, 7.6e9, 3.5e8])
    groups = ("fast", "fast", "slow")
    fields = {"kinds": (full, means, peft), "devices": 3, **changes}
    return FleetForecast(
        "mine", "digits", deadline_s, fields["devices"], groups, fields["kinds"], late, limits, needs
    )


def test_stragglers_are_told_by_group_with_the_deadline():
    assert stragglers(made_up()) == (
        "3 devices of fleet mine, bundle digits, deadline 4 s: 1 (33%) are stragglers: slow 1 of 1."
    )
    assert stragglers(made_up(devices=3_000)).startswith("3 of 3,000 devices of fleet mine")


def test_a_kind_that_fits_no_device_has_a_reason():
    [line] = [line for line in text(made_up()).splitlines() if "fits no device" in line]
    assert line == "peft fits no device; most often it needs 900 MB of 350 MB."


def test_it_says_so_when_nobody_is_a_straggler():
    assert stragglers(made_up(10.0)).endswith(
        "nobody is a straggler, a full update fits every device; the slowest needs a deadline of 8 s."
    )


def test_the_table_has_a_row_for_each_group_and_kind():
    rows = [line.split() for line in text(made_up()).splitlines()]
    assert ["fast", "full", "1.80", "(0.990", "to", "2.61)", "60", "20", "(11", "to", "29)", "2", "2"] in rows
    assert ["1", "device", "class-means", "0.800", "30", "8", "1", "1"] in rows
    assert ["slow", "full", "7.20", "60", "80", "0", "–"] in rows
    assert sum("peft" in row for row in rows) == 3  # with the line that says why


def test_other_deadlines_are_told_with_the_stragglers_that_they_leave():
    assert list(other_deadlines(made_up())) == [
        "Deadlines and the stragglers they leave: 8 s (0%), 3 s (33%), 1 s (67%)."
    ]


def test_json_has_medians_in_plain_units():
    groups = by_group(made_up())["groups"]
    assert groups["slow"]["stragglers"] == 1
    assert groups["fast"]["kinds"]["full"] == {
        "seconds": pytest.approx(1.8), "memory_bytes": 6e7, "energy_j": 20.0, "fits": 2, "sends": 2,
    }  # fmt: skip
    assert groups["fast"]["kinds"]["peft"]["seconds"] is None


def test_the_picture_shows_each_kind_the_deadline_and_the_memory_limit():
    drawing, out = picture(made_up()), io.BytesIO()
    canvas.png(drawing, out)
    seconds, memory, _ = drawing.figure.axes
    assert [text.get_text() for text in seconds.get_yticklabels()] == [
        "fast (2)\nno stragglers",
        "slow (1)\n100% stragglers",
    ]
    names = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert names[:2] == ["full", "class-means"]  # nobody can do peft
    assert names[2:] == ["too late", "deadline", "limit of memory", "fits no device"]
    assert memory.get_xlim()[1] > 7600  # the limit is on the picture
    assert out.getvalue().startswith(b"\x89PNG")
    assert drawing.title == "What a round costs fleet mine: deadline 4 s, 33% stragglers"
