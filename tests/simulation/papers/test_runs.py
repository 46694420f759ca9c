"""Which runs a table has."""

import msgspec
import pytest

from benchmarks.papers.places import DataFolder, shared
from benchmarks.papers.resolving import Resources
from benchmarks.papers.runs import WantedTable, cells, jobs, plans
from device_runtime.simulation.compare.run_folder import RunInfo, RunName, fingerprint
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios.scenario import of_policy

WHERE = Resources(DataFolder(None), shared())


@pytest.fixture
def all_cells(table, tmp_path):
    request = WantedTable(table, "cpu", 2, tmp_path)
    return cells(request, WHERE)


def finish(plan, name):
    sha256 = fingerprint(of_policy(plan.scenario, name.policy), name.seed)
    plan.of(name).mkdir(parents=True)
    info = RunInfo(policy=name.policy, seed=name.seed, sha256=sha256, finished=True)
    (plan.of(name) / "run.json").write_bytes(msgspec.json.encode(info))


def test_columns_of_one_setting_share_their_runs(all_cells):
    assert len(all_cells) == 7  # three rows in one column, two in each of the others
    folders = [plan.folder.name.rsplit("-", 1)[0] for plan in plans(all_cells)]
    assert folders == ["even", "even", "uneven"]  # the long row has rounds of its own
    uneven = plans(all_cells)[2]
    assert uneven.comparison.policies == ("drop", "few-shot")
    assert [cell.plan for cell in all_cells[3:]] == [uneven] * 4


def test_runs_come_seed_by_seed_under_the_names_of_their_cells(all_cells):
    assert [str(name) for name in jobs(all_cells, 2)] == [
        "drop in even-0", "few-shot in even-0", "long in even-0", "drop in uneven-0", "few-shot in uneven-0",
        "drop in even-1", "few-shot in even-1", "long in even-1", "drop in uneven-1", "few-shot in uneven-1",
    ]  # fmt: skip


def test_what_is_finished_is_not_run_again(all_cells):
    uneven = plans(all_cells)[2]
    finish(uneven, RunName("few-shot", 0))
    left = [str(name) for name in jobs(all_cells, 2)]
    assert len(left) == 9
    assert "few-shot in uneven-0" not in left


def test_a_system_that_there_is_not_is_refused(changed, tmp_path):
    table = changed(rows=[{"system": "telepathy"}], claims=[])
    with pytest.raises(ScenarioError, match="telepathy"):
        cells(WantedTable(table, "cpu", 1, tmp_path), WHERE)
