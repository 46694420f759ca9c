"""A table's file, and what does not fit in it."""

import pytest

from benchmarks.papers.claims import verdicts
from device_runtime.simulation.errors import ScenarioError


def names(rows):
    return [row.name for row in rows]


def test_a_scale_may_have_some_columns_and_a_row_some_columns(table):
    assert [column.id for column in table.columns_at("smoke")] == ["even"]
    even, uneven, _ = table.columns_at("cpu")
    assert names(table.rows_at("cpu", even)) == ["drop", "few-shot", "long"]
    assert names(table.rows_at("cpu", uneven)) == ["drop", "few-shot"]


def test_a_column_may_have_some_rows_at_a_scale(changed):
    column = {"id": "even", "title": "", "data": "digits", "rows": {"cpu": ["few-shot"]}}
    rows = [{"system": "drop"}, {"system": "few-shot"}, {"system": "full"}]
    scales = {"cpu": {"rows": ["drop", "few-shot"]}, "full": {}}
    claims = [{"text": "few-shot over FedAvg", "better": "few-shot", "than": "drop", "columns": ["even"]}]
    table = changed(columns=[column], rows=rows, scales=scales, claims=claims)
    assert names(table.rows_at("cpu", table.columns[0])) == ["few-shot"]
    assert names(table.rows_at("full", table.columns[0])) == ["drop", "few-shot", "full"]
    assert verdicts(table, "cpu", {}) == ()  # one of the two is not run
    assert [verdict.column for verdict in verdicts(table, "full", {})] == ["even"]
    with pytest.raises(ScenarioError, match="has no row 'moon'"):
        changed(columns=[{**column, "rows": {"cpu": ["moon"]}}], rows=rows, scales=scales, claims=claims)


def test_a_column_measures_what_the_table_does_unless_it_says_otherwise(table):
    assert [table.measure_of(column) for column in table.columns] == [
        "best_acc", "best_acc", "learning_efficiency",
    ]  # fmt: skip


def test_what_is_not_of_single_classes_cannot_be_measured_over_those_of_a_group(changed):
    columns = [{"id": "even", "title": "", "data": "digits", "group": "slow"}]
    rows, scales = [{"system": "drop"}], {"cpu": {}}
    assert changed(columns=columns, rows=rows, scales=scales, claims=[], measure="late_acc").columns
    with pytest.raises(ScenarioError, match="best_acc of column even is not of single classes"):
        changed(columns=columns, rows=rows, scales=scales, claims=[])


def test_a_scale_that_it_does_not_have_is_refused(table):
    with pytest.raises(ScenarioError, match=r"paper:002-t9.9 has no scale full; it has smoke, cpu"):
        table.scaled("full")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"claims": [{"text": "?", "better": "moon", "than": "drop"}]}, "has no row 'moon'; it has drop"),
        ({"scales": {"cpu": {"columns": ["odd"]}}}, "has no column 'odd'; it has even"),
        ({"rows": [{"system": "drop"}, {"system": "drop"}]}, "has row drop twice"),
        ({"measure": "beauty"}, "no measure 'beauty'; there are best_acc"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"rows": [{"system": "drop", "setting": {"epochs": 2}}]}, "unknown field `epochs`"),
    ],
)
def test_parts_that_do_not_fit_are_named(changed, changes, message):
    with pytest.raises(ScenarioError, match=message):
        changed(**changes)


def test_a_column_may_be_like_one_before_it(changed):
    first = {"id": "even", "title": "Even", "data": "digits", "setting": {"data": {"alpha": 0.5}}}
    like = {"id": "cost", "like": "even", "measure": "bytes"}
    rows = [{"system": "drop"}]
    scales = {"cpu": {}}
    _, cost = changed(columns=[first, like], rows=rows, claims=[], scales=scales).columns
    assert (cost.id, cost.title, cost.measure, cost.setting.data) == ("cost", "Even", "bytes", {"alpha": 0.5})
    with pytest.raises(ScenarioError, match="column cost is like 'even', which is not an earlier column"):
        changed(columns=[like, first], rows=rows, claims=[], scales=scales)
