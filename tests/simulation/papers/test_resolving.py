"""From a table to scenarios."""

import pytest

from benchmarks.papers import resolving
from benchmarks.papers.places import BundleEntry, DataEntry, DataFolder, Form, SharedTables, shared
from benchmarks.papers.resolving import Resources
from device_runtime.profiles import shipped
from device_runtime.simulation.errors import ScenarioError

WHERE = Resources(DataFolder(None), shared())


@pytest.fixture
def scenario_of(changed):
    """The scenario of a row (by its place) in the first column."""

    def make(row=0, scale="cpu", where=WHERE, **changes):
        table = changed(**changes)
        return resolving.scenario(table, scale, (table.columns[0], table.rows[row]), where)

    return make


def test_a_scenario_is_what_the_layers_say(scenario_of):
    first, long = scenario_of(0), scenario_of(2)
    assert (first.name, first.devices, first.data.alpha) == ("002-t9.9", 6, 0.5)
    assert (first.task.rounds, long.task.rounds) == (2, 9)
    assert first.task.bundle == "digits-wrn-10-1"
    assert scenario_of(0, scale="smoke").devices == 4


def test_a_cell_has_so_many_times_the_rounds(scenario_of):
    rows = [{"system": "full", "at": {"cpu": {"times": 2}}}, {"system": "drop"}]
    column = {"id": "even", "title": "", "data": "digits", "cells": {"cpu": {"drop": {"times": 2.6}}}}
    small = {"rows": rows, "claims": [], "columns": [column], "scales": {"cpu": {}, "smoke": {}}}
    assert [scenario_of(row, **small).task.rounds for row in (0, 1)] == [4, 5]
    assert [scenario_of(row, scale="smoke", **small).task.rounds for row in (0, 1)] == [2, 2]


def test_settings_of_kinds_become_those_of_the_task(scenario_of):
    row = {"system": "full", "setting": {"settings": {"full": {"epochs": 3}, "width-slice": {"epochs": 2}}}}
    kinds = {kind.name: kind.settings for kind in scenario_of(rows=[row], claims=[]).task.kinds}
    assert kinds["full"]["epochs"] == 3
    assert kinds["width-slice"]["epochs"] == 2


def test_gradients_are_bounded_in_tables_of_ours_and_not_in_those_of_papers(scenario_of):
    for paper, norm in (("002", 0.0), ("", None)):
        full = next(kind for kind in scenario_of(paper=paper).task.kinds if kind.name == "full")
        assert full.strategy.clip_norm == norm
    row = {"system": "full", "setting": {"settings": {"full": {"clip_norm": 3.0}}}}
    full = next(kind for kind in scenario_of(rows=[row], claims=[]).task.kinds if kind.name == "full")
    assert full.strategy.clip_norm == 3.0


def test_mixed_rounds_offer_what_is_listed_and_no_more(scenario_of):
    setting = {"kinds": ["full", "few-shot"], "settings": {"entropy-subset": {"epochs": 2}}}
    row = {"system": "choose", "setting": setting}
    kinds = scenario_of(rows=[row], claims=[]).task.kinds
    assert [kind.name for kind in kinds] == ["full", "few-shot"]
    assert kinds[1].strategy.join_base


def test_without_a_deadline_in_full_updates_a_round_has_a_day(scenario_of):
    row = {"system": "full", "setting": {"deadline": {}}}
    assert scenario_of(rows=[row], claims=[]).task.round_deadline_s == 86400


def test_a_deadline_is_so_many_full_updates_of_the_median_device(scenario_of):
    def deadline(**setting):
        row = {
            "system": "full",
            "setting": {"fleet": "boards", "deadline": {"full": 3, "group": "pi-5"}, **setting},
        }
        return scenario_of(rows=[row], claims=[]).task.round_deadline_s

    once = deadline()
    assert float(f"{once:.1e}") == once  # two digits
    # 1437 digits by 6 devices, 10 epochs of 4.7 MFLOP a sample: more than half of it is computing
    rate = shipped("pi-5").speed.flops_per_s
    assert once > 3 * 240 * 10 * 3e6 / rate
    assert deadline(slow=10.0) > 5 * once
    assert deadline(settings={"full": {"epochs": 1}}) < once


def test_a_group_that_the_fleet_has_not_is_named(scenario_of):
    row = {"system": "full", "setting": {"deadline": {"full": 2.0}}}
    with pytest.raises(ScenarioError, match="fleet uniform has no group fast; it has pi-5"):
        scenario_of(rows=[row], claims=[])


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"data": {"alpha": -1}}, "drop in even: .*alpha"),
        ({"task": {"rounds": 0}}, "drop in even: rounds is 0"),
        ({"settings": {"full": {"colour": 1}}}, "drop in even: full has no setting 'colour'"),
        ({"fleet": "titanic"}, "drop in even: no fleet named 'titanic'"),
    ],
)
def test_what_cannot_be_meant_is_named_with_its_cell(scenario_of, setting, message):
    with pytest.raises(ScenarioError, match=f"paper:002-t9.9, {message}"):
        scenario_of(rows=[{"system": "drop", "setting": setting}], claims=[])


def test_a_table_without_a_bundle_or_devices_is_refused(scenario_of):
    with pytest.raises(ScenarioError, match="no layer says which bundle"):
        scenario_of(setting={})


def test_notes_say_what_stands_for_data_and_networks_and_what_they_are_not(changed):
    form = Form(file="images", source="images", difference="They are small.")
    letters = DataEntry(title="letters", classes=2, export="", smoke="digits", forms=(form,))
    both = SharedTables(data={"digits": shared().data["digits"], "letters": letters})
    table = changed(
        columns=[{"id": "even", "title": "", "data": "letters"}], rows=[{"system": "drop"}], claims=[]
    )
    stand_in = ("Handwritten digits stand for letters.",)
    assert resolving.notes(table, "smoke", both, {"even": None}) == stand_in
    assert resolving.notes(table, "cpu", both, {"even": form}) == ("They are small.",)
    dots = BundleEntry(export="", differences=("It is of dots.",))
    other = SharedTables(data=both.data, bundles={table.setting.bundle: dots})
    assert resolving.notes(table, "cpu", other, {"even": form}) == ("They are small.", "It is of dots.")
