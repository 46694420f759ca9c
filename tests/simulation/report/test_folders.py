"""Folders side by side, and parts of one comparison that are joined, from made-up runs."""

import json
import shutil

import msgspec
import pytest

from device_runtime.simulation.compare.plan import whole_plan_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.report.folders import side_by_side


@pytest.fixture(scope="module")
def whole(comparison):
    """Two policies with three seeds, in one folder."""
    return comparison(seeds=3)


def test_parts_by_seed_are_one_table_as_of_one_folder(comparison, whole):
    parts = [comparison(seeds=seeds) for seeds in ((0, 2), (1,))]
    joined = side_by_side([part.folder for part in parts])
    assert joined.text(whole=True) == side_by_side([whole.folder]).text(whole=True)
    assert joined.unfinished == ()


def test_parts_by_policy_are_one_table_with_differences_by_seed(comparison, whole):
    parts = [comparison(policies=(policy,), seeds=3) for policy in ("choose", "drop")]
    joined = side_by_side([part.folder for part in parts])
    assert list(joined.summary) == ["choose", "drop"]
    assert "choose − drop" in joined.text(whole=True)
    assert joined.summary["drop"] == side_by_side([whole.folder]).summary["drop"]


def test_a_run_that_two_parts_have_is_counted_once_if_it_is_equal(comparison, whole):
    again = comparison(policies=("choose",), seeds=2)
    joined = side_by_side([whole.folder, again.folder])
    assert joined.text() == side_by_side([whole.folder]).text()


def test_a_run_that_differs_between_parts_is_refused_with_where_and_why(comparison, whole):
    other = comparison(policies=("choose",), seeds=(1, 2))
    path = other.of(RunName("choose", 1)) / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["eval_acc"] = 0.001
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    info = other.of(RunName("choose", 1)) / "run.json"
    info.write_text(info.read_text().replace('"python":"3.11"', '"python":"3.12"'))
    with pytest.raises(ScenarioError) as error:
        side_by_side([whole.folder, other.folder])
    assert str(error.value) == (
        f"choose with seed 1 is in {whole.folder} and in {other.folder}, and they differ from round 4 on "
        "(python 3.11; python 3.12): remove one of the two, or show the folders apart (--apart)"
    )
    apart = side_by_side([whole.folder, other.folder], apart=True)
    assert list(apart.summary)[2] == f"{other.folder.name}/choose"


def test_runs_that_no_part_has_are_named_and_the_others_are_shown(comparison):
    parts = [comparison(seeds=1), comparison(policies=("choose",), seeds=(1,))]
    joined = side_by_side([part.folder for part in parts])
    assert joined.unfinished == ("drop with seed 1",)
    assert joined.summary["choose"]["final_acc"].n == 2
    assert joined.text().splitlines()[-1] == "not finished: drop with seed 1"


def test_folders_of_other_scenarios_or_bundles_stay_apart(comparison):
    one_seed, longer = comparison(seeds=1), comparison(seeds=1, slow=3.0)
    beside = side_by_side([one_seed.folder, longer.folder])
    names = [f"{plan.folder.name}/{policy}" for plan in (one_seed, longer) for policy in ("choose", "drop")]
    assert list(beside.summary) == names
    other = comparison(seeds=1)
    changed = msgspec.structs.replace(whole_plan_in(other.folder).comparison, bundle="1" * 64)
    (other.folder / "comparison.json").write_bytes(msgspec.json.encode(changed))
    assert len(side_by_side([one_seed.folder, other.folder]).summary) == 4


def test_of_a_folder_by_itself_policies_with_a_missing_run_are_left_out(comparison):
    plan = comparison(seeds=2)
    shutil.rmtree(plan.of(RunName("drop", 1)))
    alone = side_by_side([plan.folder])
    assert (list(alone.summary), alone.unfinished) == (["choose"], ("drop",))
