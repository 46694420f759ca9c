from math import nan

import pytest

from benchmarks.papers import catalogue, resolving
from benchmarks.papers.places import DataFolder, shared
from benchmarks.papers.tuning import best_rates, rows_by_rate
from device_runtime.simulation.errors import ScenarioError

RATES = (0.01, 0.1)


def by_rate():
    return rows_by_rate(catalogue.load("paper:000-t3.2"), "smoke", RATES)


def test_each_row_is_run_at_each_rate_for_a_quarter_of_its_rounds_on_validation_samples():
    table = by_rate()
    assert [column.id for column in table.columns] == ["accuracy"]
    assert [row.name for row in table.rows][:4] == ["random@0.01", "random@0.1", "ft@0.01", "ft@0.1"]
    entry = shared().entry(table.columns[0].data, "smoke")
    layer = resolving.layer(table, "smoke", entry, (table.columns[0], table.rows[1]))
    assert layer.settings["full"]["lr"] == 0.1  # the row itself has another
    assert layer.times == 0.25
    assert layer.data["validation_share"] == 0.2


def test_a_row_s_scenario_trains_at_the_rate():
    table = by_rate()
    where = resolving.Resources(DataFolder(None), shared())
    setting = resolving.scenario(table, "smoke", (table.columns[0], table.rows[2]), where)
    [full] = [kind.settings for kind in setting.task.kinds if kind.name == "full"]
    assert full["lr"] == 0.01
    assert setting.task.rounds == 1  # 0.75 of 3


def test_the_pass_before_fedft_keeps_its_rate():
    part = catalogue.load("paper:002-t6.8").only("smoke", (), ("fedavg", "fedft-eds"))
    full, eds = rows_by_rate(part, "smoke", (0.7,)).rows
    assert {row.columns["acc-0.1"].settings["entropy-subset"]["lr"] for row in (full, eds)} == {0.7}
    assert full.columns["acc-0.1"].settings["full"]["lr"] == 0.7
    assert "full" not in eds.columns["acc-0.1"].settings


def test_the_best_rate_of_a_row_has_the_highest_mean_over_seeds():
    values = {(row.name, "accuracy"): (nan, 0.5) for row in by_rate().rows}
    values["ft@0.01", "accuracy"] = (0.4, 0.7)  # mean 0.55
    values["lp@0.01", "accuracy"] = values["lp@0.1", "accuracy"] = (nan, nan)
    assert best_rates(values)["ft"] == 0.01
    assert "lp" not in best_rates(values)


def test_only_some_rows_are_compared_where_they_are_named():
    part = catalogue.load("paper:000-t3.2").only("smoke", ("accuracy",), ("ft", "lp"))
    assert [row.name for row in rows_by_rate(part, "smoke", RATES).rows] == [
        "ft@0.01", "ft@0.1", "lp@0.01", "lp@0.1",
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="has no row 'nobody'"):
        catalogue.load("paper:000-t3.2").only("smoke", (), ("nobody",))
