"""Runs that are made up, read back and rendered."""

import os
from math import isnan

import msgspec
import pytest

from benchmarks.papers import rendering
from benchmarks.papers.outcome import read
from benchmarks.papers.places import DataFolder, shared
from benchmarks.papers.resolving import Resources
from benchmarks.papers.runs import WantedTable, cells, plans
from device_runtime.simulation.compare.run_folder import RecordWriter, RunInfo, RunName, fingerprint
from device_runtime.simulation.scenarios.scenario import of_policy

NOON = 1_790_000_000  # in September 2026
ACCURACY = {"drop": (0.5, 0.6), "few-shot": (0.7, 0.6)}


@pytest.fixture
def finish(round_line, ask):
    """A run of two rounds: half of the accuracy, then all of it."""

    def write(plan, name, accuracy, scale=1.0, **changes):
        folder = plan.of(name)
        folder.mkdir(parents=True)
        with RecordWriter(folder / "rounds.jsonl") as lines:
            for number, share in ((1, 0.5), (2, 1.0)):
                closed = 10.0 * number * scale
                lines.add(round_line(round=number, eval_acc=share * accuracy, closed_s=closed, **changes))
        with RecordWriter(folder / "asks.jsonl") as asks:
            asks.add(ask())
        sha256 = fingerprint(of_policy(plan.scenario, name.policy), name.seed)
        versions = {"device-runtime": "0.1.0", "torch": "2"}
        info = RunInfo(policy=name.policy, seed=name.seed, sha256=sha256, finished=True, versions=versions)
        (folder / "run.json").write_bytes(msgspec.json.encode(info))
        os.utime(folder / "run.json", (NOON, NOON))

    return write


@pytest.fixture
def wanted_table(table, tmp_path):
    return WantedTable(table, "cpu", 2, tmp_path)


@pytest.fixture
def every(table, wanted_table):
    where = Resources(DataFolder(None), shared())
    return cells(wanted_table, where)


@pytest.fixture
def outcome(wanted_table, every, finish):
    """The long row was not run."""
    for plan in plans(every):
        if plan.scenario.task.rounds == 2:
            for system in ACCURACY:
                for seed in (0, 1):
                    finish(plan, RunName(system, seed), ACCURACY[system][seed])
    return read(wanted_table, every)


def test_cells_are_means_over_seeds_and_what_was_not_run_is_unknown(outcome):
    assert outcome.spread("drop", "even").mean == pytest.approx(0.55)
    assert outcome.spread("few-shot", "uneven").n == 2
    assert (outcome.spread("long", "even").n, outcome.spread("long", "even").of) == (0, 2)
    efficiency = outcome.spread("drop", "efficiency")
    assert efficiency.mean == pytest.approx(0.55 / 20)  # 20 s of training in round 2; round 1 does not count
    assert outcome.stragglers["even"] == 0.25
    assert outcome.date == "2026-09-21"


@pytest.mark.parametrize("stragglers", [0, 4])
def test_where_none_or_all_are_stragglers_their_share_is_not_said(wanted_table, every, finish, stragglers):
    finish(plans(every)[0], RunName("drop", 0), 0.5, asked=4, stragglers=stragglers)
    assert isnan(read(wanted_table, every).stragglers["even"])


def test_a_terminal_shows_the_paper_beside_ours_the_claims_and_what_differs(outcome):
    text = rendering.text(outcome)
    assert text.startswith("Table 9.9 of Shi 2025 (PhD thesis, Sheffield): Few shots (scale cpu)")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "Dirichlet(0.5): best test accuracy; 25% of asks go to stragglers" in lines
    assert "FedAvg 80.00±1.00 55.0 ± 7.1%" in lines  # 50 and 60
    assert "few-shot 82.00±1.00 65.0 ± 7.1%" in lines
    assert "not run: rows: long" in lines and not any(line.startswith("long ") for line in lines)
    assert "system ours" in lines  # of the column without numbers of the paper
    claimed = "few-shot over FedAvg Dirichlet(0.5) +2.00 +10.00 ± 14.14 -117.06 to +137.06 1 of 2"
    assert f"{claimed} not shown: 2 of 3 seeds" in lines  # 20 and 0
    alike = [line for line in lines if line.startswith("few-shot over FedAvg Dirichlet(0.1)")]
    assert [line.split(" +")[0] for line in alike] == [
        "few-shot over FedAvg Dirichlet(0.1): best test accuracy"  # another column has that title
    ]
    assert "- Fewer rounds." in lines


def test_a_section_has_the_command_and_is_the_same_for_the_same_runs(outcome, wanted_table, every):
    section = rendering.markdown(outcome, "device-runtime compare it")
    assert "```\ndevice-runtime compare it\n```" in section
    assert "2 seeds, mean ± standard deviation; 2026-09-21; code of an unknown commit; " in section
    assert "device-runtime 0.1.0, torch 2." in section
    assert "| FedAvg   | 80.00±1.00 | 55.0 ± 7.1% |" in section
    assert "* Fewer rounds.\n" in section
    assert rendering.markdown(read(wanted_table, every), "device-runtime compare it") == section


def test_columns_of_the_same_runs_share_a_table_where_the_paper_has_no_numbers(changed, tmp_path, finish):
    rows = [{"system": "drop"}, {"system": "few-shot"}]
    late = {"id": "late", "title": "digits, at the end", "data": "digits", "measure": "late_acc"}
    columns = [
        {"id": "best", "title": "digits", "data": "digits"},
        {"id": "other", "title": "other digits", "data": "digits", "setting": {"devices": 5}},
        {**late, "rows": {"cpu": ["few-shot"]}},
        {"id": "passes", "title": "digits", "data": "digits", "measure": "forward_passes"},
    ]
    table = changed(columns=columns, rows=rows, claims=[], scales={"cpu": {}})
    request = WantedTable(table, "cpu", 1, tmp_path)
    every = cells(request, Resources(DataFolder(None), shared()))
    for system in ACCURACY:
        finish(every[0].plan, RunName(system, 0), 0.8)
    lines = [" ".join(line.split()) for line in rendering.text(read(request, every)).splitlines()]
    assert lines.count("digits; 25% of asks go to stragglers") == 1
    assert "system best test accuracy at the end compute in F" in lines
    [drop, few_shot] = [line for line in lines if line.startswith(("drop ", "few-shot "))]
    assert drop.startswith("drop 80.0% ") and few_shot.startswith("few-shot 80.0% 60.0% ")
    assert "not run: columns: other digits" in lines


def test_json_is_in_plain_units(outcome):
    whole = msgspec.json.decode(rendering.json(outcome))
    assert (whole["table"], whole["scale"], whole["seeds"]) == ("paper:002-t9.9", "cpu", 2)
    first = whole["columns"][0]["rows"][0]
    assert (first["row"], first["paper"], first["seeds"]) == ("drop", "80.00±1.00", [0.5, 0.6])
    assert whole["columns"][0]["rows"][2]["ours"]["mean"] is None
    assert [claim["verdict"] for claim in whole["claims"]] == ["not shown: 2 of 3 seeds"] * 2
    low, high = whole["claims"][0]["interval"]
    assert (low, high) == (pytest.approx(-117.06), pytest.approx(137.06))  # 12.706 * 10


def test_equal_time_is_when_a_named_row_ends(changed, tmp_path, finish):
    column = {"id": "even", "title": "", "data": "digits", "measure": "acc_at_time", "until": "few-shot"}
    rows = [{"system": "drop"}, {"system": "few-shot"}]
    scales = {"cpu": {}}
    table = changed(columns=[column], rows=rows, claims=[], scales=scales)
    where = Resources(DataFolder(None), shared())
    request = WantedTable(table, "cpu", 1, tmp_path)
    every = cells(request, where)
    finish(plans(every)[0], RunName("drop", 0), 0.8, scale=1.0)  # half of it at 10 s, all at 20 s
    finish(plans(every)[0], RunName("few-shot", 0), 0.6, scale=0.75)  # ends at 15 s
    outcome_ = read(request, every)
    assert outcome_.values["drop", "even"] == (0.4,)
    assert outcome_.values["few-shot", "even"] == (0.6,)


def test_a_late_accuracy_is_the_mean_of_the_latest_evaluations(changed, tmp_path, finish):
    late = {"id": "late", "title": "", "data": "digits", "measure": "late_acc"}
    even = {"id": "even", "like": "late", "measure": "late_acc_at_time", "until": "few-shot"}
    rows = [{"system": "drop"}, {"system": "few-shot"}]
    table = changed(columns=[late, even], rows=rows, claims=[], scales={"cpu": {}})
    where = Resources(DataFolder(None), shared())
    request = WantedTable(table, "cpu", 1, tmp_path)
    every = cells(request, where)
    finish(plans(every)[0], RunName("drop", 0), 0.8, scale=1.0)  # half of it at 10 s, all at 20 s
    finish(plans(every)[0], RunName("few-shot", 0), 0.6, scale=0.75)  # ends at 15 s
    outcome_ = read(request, every)
    assert outcome_.values["drop", "late"] == pytest.approx((0.6,))
    assert outcome_.values["drop", "even"] == pytest.approx((0.4,))
    assert outcome_.values["few-shot", "even"] == pytest.approx((0.45,))


def test_scale_smoke_claims_nothing(table, tmp_path, finish):
    where = Resources(DataFolder(None), shared())
    request = WantedTable(table, "smoke", 1, tmp_path)
    every = cells(request, where)
    finish(plans(every)[0], RunName("drop", 0), 0.8)
    outcome_ = read(request, every)
    assert outcome_.verdicts == ()
    assert "Scale smoke shows that it works, and claims nothing." in rendering.text(outcome_)


@pytest.mark.parametrize(
    "measure, group, shares",
    [
        ("late_acc", "", (0.5, 0.6)),
        ("late_acc_trained", "", (0.4, 0.5)),
        ("late_acc_closed_form", "", (0.7, 0.8)),
        ("late_acc_trained", "slow", (0.2, 0.4)),
        ("late_acc_closed_form", "slow", (0.1, 0.3)),
    ],
)
def test_both_heads_of_a_run_are_measured_over_all_classes_or_those_of_a_group(
    changed, tmp_path, round_line, measure, group, shares
):
    setting = {"fleet": "stragglers-60", "data": {"groups": {"slow": {"classes": [1, 2]}}}}
    column = {
        "id": "even",
        "title": "",
        "data": "digits",
        "measure": measure,
        "group": group,
        "setting": setting,
    }
    table = changed(columns=[column], rows=[{"system": "drop"}], claims=[], scales={"cpu": {}})
    every = cells(
        WantedTable(table, "cpu", 1, tmp_path),
        Resources(DataFolder(None), shared()),
    )
    [plan] = plans(every)
    name = RunName("drop", 0)
    plan.of(name).mkdir(parents=True)
    with RecordWriter(plan.of(name) / "rounds.jsonl") as lines:
        for number, more in ((1, 0.0), (2, 0.1)):
            lines.add(
                round_line(
                    round=number,
                    eval_acc=0.5 + more,
                    base_eval_acc=0.4 + more,
                    closed_form_eval_acc=0.7 + more,
                    base_eval_acc_by_class=(1.0, 0.1 + more, 0.3 + 3 * more),
                    closed_form_eval_acc_by_class=(1.0, 0.2 + 4 * more, 0.0),
                )
            )
    with RecordWriter(plan.of(name) / "asks.jsonl"):
        pass
    sha256 = fingerprint(of_policy(plan.scenario, "drop"), 0)
    info = RunInfo(policy="drop", seed=0, sha256=sha256, finished=True, labels=("a", "b", "c"))
    (plan.of(name) / "run.json").write_bytes(msgspec.json.encode(info))
    outcome_ = read(WantedTable(table, "cpu", 1, tmp_path), every)
    assert outcome_.values["drop", "even"] == (pytest.approx(sum(shares) / 2),)
