"""Which runs there are, and which are still to be done."""

import msgspec
import pytest

from device_runtime.aggregator.tasks.feasible import NO_GENERIC
from device_runtime.simulation.compare.plan import (
    Comparison,
    ComparisonPlan,
    check,
    comparison_in,
    counted_seeds,
    scenario_in,
    without_effect,
)
from device_runtime.simulation.compare.run_folder import RunInfo, RunName, fingerprint
from device_runtime.simulation.data.spec import BY_CLASS
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.rounds.run import prepare
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import of_policy

TWO = Comparison(policies=("choose", "drop"), seeds=2, target=0.8)


@pytest.fixture
def plan(tmp_path):
    return ComparisonPlan(scenario.load("digits"), TWO, tmp_path / "run")


def finish(plan, name, **changes):
    sha256 = fingerprint(of_policy(plan.scenario, name.policy), name.seed)
    info = RunInfo(policy=name.policy, seed=name.seed, sha256=sha256, finished=True)
    plan.of(name).mkdir(parents=True)
    (plan.of(name) / "run.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(info, **changes)))


def test_seeds_come_one_after_another_with_every_policy(plan):
    assert [str(name) for name in plan.names] == ["choose-0", "drop-0", "choose-1", "drop-1"]


def test_what_is_finished_is_not_missing(plan):
    plan.save()
    finish(plan, RunName("choose", 0))
    assert [str(name) for name in plan.missing()] == ["drop-0", "choose-1", "drop-1"]


@pytest.mark.parametrize("changes", [{"finished": False}, {"sha256": "of something else"}])
def test_what_was_stopped_or_is_of_another_scenario_is_missing(plan, changes):
    finish(plan, RunName("choose", 0), **changes)
    assert RunName("choose", 0) in plan.missing()


def test_a_damaged_run_file_is_a_missing_run(plan):
    finish(plan, RunName("drop", 0))
    (plan.of(RunName("drop", 0)) / "run.json").write_text('{"policy": "dr')
    assert RunName("drop", 0) in plan.missing()


def test_what_was_saved_is_found_again_and_may_be_extended(plan):
    plan.save()
    assert scenario_in(plan.folder) == plan.scenario
    assert comparison_in(plan.folder) == TWO
    more = Comparison(policies=("choose", "drop", "few-shot"), seeds=3)
    ComparisonPlan(plan.scenario, more, plan.folder).save()
    assert comparison_in(plan.folder) == more


def test_parts_of_a_comparison_add_to_what_the_folder_is_to_have(plan):
    for policies, seeds in ((("choose",), 2), (("drop",), (1,)), (("choose",), (4,))):
        part = Comparison(policies=policies, seeds=seeds)
        ComparisonPlan(plan.scenario, part, plan.folder, part=True).save()
    both = comparison_in(plan.folder)
    assert (both.policies, both.seeds, both.seed_numbers) == (("choose", "drop"), (0, 1, 4), (0, 1, 4))


@pytest.mark.parametrize("numbers, seeds", [((2, 0, 1, 1), 3), ((0,), 1), ((3, 1), (1, 3)), ((1,), (1,))])
def test_seeds_from_0_on_are_counted_and_others_listed(numbers, seeds):
    assert counted_seeds(numbers) == seeds
    assert Comparison(policies=("drop",), seeds=seeds).seed_numbers == tuple(sorted(set(numbers)))


def test_another_scenario_in_the_same_folder_is_refused_with_what_differs(plan):
    plan.save()
    other = scenario.load("digits", {"devices": 7})
    with pytest.raises(ScenarioError, match=r"another scenario \(devices is 40, not 7\)"):
        ComparisonPlan(other, TWO, plan.folder).save()


def test_a_folder_takes_more_rounds_and_refuses_fewer(plan):
    plan.save()
    ComparisonPlan(scenario.load("digits", {"task": {"rounds": 30}}), TWO, plan.folder).save()
    with pytest.raises(ScenarioError, match="30 rounds, which cannot become 15: give --rounds 30 or more"):
        plan.save()


def test_a_folder_of_something_else_is_refused(plan):
    plan.folder.mkdir()
    (plan.folder / "thesis.tex").write_text("")
    with pytest.raises(ScenarioError, match="is not the folder of a simulation"):
        plan.save()


def test_a_file_in_the_place_of_the_folder_is_refused(plan):
    plan.folder.write_text("")
    with pytest.raises(ScenarioError, match="is not a folder: give another --run-dir"):
        plan.save()


def test_another_bundle_of_the_same_name_is_refused_and_one_that_is_not_there_is_not(plan):
    def of(sha256):
        return ComparisonPlan(plan.scenario, msgspec.structs.replace(TWO, bundle=sha256), plan.folder)

    of("1" * 64).save()
    with pytest.raises(
        ScenarioError, match=r"made with another digits-wrn-10-1 \(sha256 11111111\.\., now 2222"
    ):
        of("2" * 64).check_folder()
    of("").check_folder()
    of("1" * 64).check_folder()


def test_policies_of_which_a_run_is_missing_are_left_out_with_the_reason(plan):
    for seed in (0, 1):
        finish(plan, RunName("choose", seed))
    finish(plan, RunName("drop", 0))
    rest = plan.finished({"drop": "nobody can"})
    assert rest.comparison.policies == ("choose",)
    assert rest.without == {"drop": "nobody can"}
    assert rest.missing() == ()


def test_where_nothing_is_nothing_is_found(tmp_path):
    assert scenario_in(tmp_path / "nowhere") is None
    assert comparison_in(tmp_path / "nowhere") is None


def test_a_damaged_comparison_is_named(plan):
    plan.save()
    (plan.folder / "comparison.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"comparison\.json is damaged"):
        comparison_in(plan.folder)


def test_the_mark_of_a_run_depends_on_scenario_and_seed(plan):
    other = scenario.load("digits", {"task": {"rounds": 3}})
    marks = {fingerprint(plan.scenario, 0), fingerprint(plan.scenario, 1), fingerprint(other, 0)}
    assert len(marks) == 3


def test_a_family_that_no_policy_trains_is_warned_of_once(caplog, monkeypatch):
    whole = scenario.load("digits")
    alone = prepare(whole, 0)  # opens no bundle of a family
    monkeypatch.setattr("device_runtime.simulation.compare.plan.prepare", lambda *_: alone)
    task = msgspec.structs.replace(whole.task, family=("digits-wrn-10-1",))
    whole = msgspec.structs.replace(whole, task=task)
    names = (RunName("full", 0), RunName("few-shot", 0))
    check(whole, names, ExecutorRequest())
    assert caplog.text.count("family has no effect") == 1


def test_settings_that_change_nothing_under_any_policy_are_said():
    data = {"partition": "iid", "alpha": 0.1, "size": 16, "label_column": "kind", "generic_samples": 20}
    task = {"statistics": {"samples": 9}, "ask_all_rounds": 1}
    setting = scenario.load("digits", {"data": data, "task": task})
    prepared = prepare(setting, 0)
    sentences = without_effect(setting, prepared, ["choose", "drop"])
    assert sentences == (
        "ask_all_rounds has no effect without devices_per_round",
        f"data.generic_samples are held out and not used: {NO_GENERIC}",
        f"data.alpha has no effect: it is of partition {' or '.join(BY_CLASS[:3])}, not iid",
        "data.size has no effect: it is of source images, not digits",
        "data.label_column has no effect: it is of source table or text or recordings or images, not digits",
    )
    assert "statistics has no effect" in " ".join(without_effect(setting, prepared, ["drop"]))
