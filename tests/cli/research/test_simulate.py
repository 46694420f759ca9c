"""`device-runtime simulate` as people use it; the runs themselves are small."""

import json
import re
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

import pytest

from device_runtime.cli import main
from device_runtime.cli.research import simulate
from device_runtime.cli.research.simulate_options import plan_of, resume_hint
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.compare.running import folder_lock

COMMAND = Path(sys.executable).with_name("device-runtime")
FLEET = """
[groups.zero]
profile = "pi-zero-2w"
share = 0.5
[groups.pi-5]
profile = "pi-5"
share = 0.5
"""
SCENARIO = """
fleet = "fleet.toml"
devices = 4
slow = 20.0
[data]
max_train = 120
max_test = 40
[task]
rounds = 2
round_deadline_s = 3.0
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "small.toml").write_text(SCENARIO)
    return tmp_path


def run(folder, *arguments, timeout=300):
    return subprocess.run(
        [COMMAND, "simulate", *arguments], capture_output=True, text=True, timeout=timeout, cwd=folder
    )


def plan_for(*arguments):
    parser = ArgumentParser()
    simulate.add_arguments(parser)
    return plan_of(parser.parse_args(arguments))


def test_a_comparison_ends_with_a_table_plots_and_a_page_and_is_not_run_again(small):
    ended = run(
        small, "small.toml", "--compare", "kinds=choose,drop", "--run-dir", "here", "--executor", "plain"
    )
    assert ended.returncode == 0, ended.stderr
    assert "small: 4 devices of fleet fleet" in ended.stdout
    assert "(2 of 2 runs)" in ended.stdout
    assert re.search(r"^(choose|drop)\b.* \d+\.\d%, .* at equal (time|rounds) \(.*\)$", ended.stdout, re.M)
    assert re.search(r"^choose( +\d+\.\d%){3} ", ended.stdout, re.M)
    assert len(ended.stdout.splitlines()) < 20
    assert (small / "here" / "accuracy.png").exists()
    assert (small / "here" / "report.html").exists()
    assert len((small / "here" / "runs" / "drop-0" / "rounds.jsonl").read_text().splitlines()) == 2
    first = (small / "here" / "runs" / "choose-0" / "run.json").stat().st_mtime_ns
    asks = (small / "here" / "runs" / "choose-0" / "asks.jsonl").read_text().splitlines()
    drawn = fleets.load(small / "fleet.toml").draw(4, seed=0)
    assert {json.loads(ask)["device"] for ask in asks} == {drawn.name(i) for i in range(4)}

    whole = run(small, "--run-dir", "here", "--all-tables")
    assert re.search(r"^devices that counted +\d+\.\d% +\d+\.\d%$", whole.stdout, re.M)
    again = run(small, "--run-dir", "here", "--format", "json")
    assert "2 of them finished before" in again.stderr
    assert json.loads(again.stdout)["policies"].keys() == {"choose", "drop"}
    assert (small / "here" / "runs" / "choose-0" / "run.json").stat().st_mtime_ns == first


@pytest.mark.slow
def test_an_interrupted_comparison_keeps_what_is_finished_and_says_how_to_go_on(small):
    process = subprocess.Popen(
        [COMMAND, "simulate", "small.toml", "--rounds", "2000", "--run-dir", "here", "--executor", "plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=small,
    )
    rounds = small / "here" / "runs" / "choose-0" / "rounds.jsonl"
    waited = 0.0
    while not (rounds.exists() and rounds.stat().st_size) and waited < 300:
        time.sleep(0.1)
        waited += 0.1
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped: 0 of 1 runs are finished; go on with: device-runtime simulate --run-dir here" in output


@pytest.mark.slow
def test_runs_end_with_a_command_that_is_killed_and_what_it_left_is_gone_on_with(small):
    words = ["small.toml", "--rounds", "3000", "--run-dir", "here", "--executor", "plain"]
    process = subprocess.Popen(
        [COMMAND, "simulate", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=small
    )
    rounds = small / "here" / "runs" / "choose-0" / "rounds.jsonl"
    for _ in range(3000):
        if rounds.exists() and rounds.stat().st_size:
            break
        time.sleep(0.1)
    second = run(small, *words)
    assert second.returncode == 2
    assert "another simulation is at work in here" in second.stderr
    process.kill()
    process.communicate(timeout=300)
    with folder_lock(small / "here", patience_s=120):  # no run holds it any more
        size = rounds.stat().st_size
        time.sleep(0.3)
        assert rounds.stat().st_size == size


@pytest.mark.slow
def test_a_policy_that_nobody_can_follow_has_no_figures_in_a_report_that_says_why(small):
    ended = run(
        small, "small.toml", "--compare", "kinds=drop,class-means", "--deadline", "0.25", "--run-dir", "here",
        "--executor", "plain",
    )  # fmt: skip
    assert ended.returncode == 2
    assert re.search(r"^device-runtime: drop-0: round 1 has 0 of 1 updates", ended.stderr, re.M)
    assert re.search(r"^class-means 1?\d\d?\.\d% after 2 rounds", ended.stdout, re.M)
    assert re.search(r"^drop( +–){5}$", ended.stdout, re.M)
    page = (small / "here" / "report.html").read_text("utf-8")
    assert "<dt>drop</dt><dd>failed: round 1 has 0 of 1 updates" in page


def test_without_matplotlib_nothing_is_run(small, monkeypatch, capsys):
    monkeypatch.chdir(small)
    monkeypatch.setattr(simulate.importlib.util, "find_spec", lambda name: None)
    assert main(["simulate", "small.toml"]) == 2
    assert "simulate needs the extra simulation: pip install" in capsys.readouterr().err
    assert not (small / "runs").exists()


def test_the_presets_and_policies_are_listed_one_line_each(capsys):
    assert main(["simulate", "--list"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^  digits +40 devices of mixed; digits by dirichlet; 15 rounds of 3 s", output, re.M)
    assert re.search(r"^  mixed +\d+% ", output, re.M)
    assert re.search(r"^  drop +full updates only", output, re.M)


def test_flags_stand_over_the_scenario(small):
    plan = plan_for(
        str(small / "small.toml"), "--devices", "9", "--rounds", "3", "--deadline", "7", "--alpha", "0.1",
        "--devices-per-round", "5", "--partition", "dirichlet", "--bundle", "digits-wrn-10-1",
    )  # fmt: skip
    scenario = plan.scenario
    assert (scenario.devices, scenario.task.rounds, scenario.task.round_deadline_s) == (9, 3, 7.0)
    assert (scenario.task.devices_per_round, scenario.data.alpha, scenario.data.max_train) == (5, 0.1, 120)


def test_nothing_at_all_compares_choosing_with_dropping_and_a_scenario_alone_is_as_it_is():
    assert plan_for().comparison.policies == ("choose", "drop")
    assert plan_for("digits").comparison.policies == ("choose",)


def test_machines_that_share_a_comparison_name_their_policies_and_seeds():
    plan = plan_for(
        "digits", "--policy", "mixed,fedavg", "--policy", "few-shot", "--seed", "4", "--seed", "1,4"
    )
    assert (plan.part, plan.comparison.policies) == (True, ("mixed", "fedavg", "few-shot"))
    assert plan.comparison.seed_numbers == (1, 4)
    assert str(plan.folder) == str(plan_for("digits").folder), "the same scenario"
    again = resume_hint(plan, [])
    assert again.endswith(f"--run-dir {plan.folder} --policy mixed,fedavg,few-shot --seed 1,4")
    assert not plan_for("digits", "--compare", "kinds=mixed,fedavg", "--seeds", "5").part


@pytest.mark.slow
def test_parts_in_one_folder_are_reported_as_a_whole_once_all_are_finished(small):
    words = ["small.toml", "--run-dir", "here", "--executor", "plain", "--format", "json", "--policy"]
    first = run(small, *words, "few-shot", "--seed", "0,1")
    assert json.loads(first.stdout)["policies"].keys() == {"few-shot"}
    second = run(small, *words, "class-means", "--seed", "0")
    assert json.loads(second.stdout)["policies"].keys() == {"class-means"}, "a seed is missing"
    last = json.loads(run(small, *words, "class-means", "--seed", "1").stdout)
    assert last["policies"].keys() == {"few-shot", "class-means"}
    assert last["policies"]["class-means"]["final_acc"]["n"] == 2


def test_scenarios_that_differ_are_kept_apart_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {
        plan_for("digits").folder,
        plan_for("digits", "--rounds", "3").folder,
        plan_for("digits").folder,
    }
    assert len(folders) == 2
    assert all(re.fullmatch(r"runs/digits-[0-9a-f]{6}", str(folder)) for folder in folders)


def test_a_folder_remembers_its_policies_seeds_and_target(tmp_path):
    folder = str(tmp_path / "run")
    plan_for(
        "digits", "--compare", "kinds=drop,full", "--seeds", "3", "--target", "80%", "--run-dir", folder
    ).save()
    again = plan_for("--run-dir", folder)
    assert again.scenario == plan_for("digits").scenario
    assert (again.comparison.policies, again.comparison.seeds) == (("drop", "full"), 3)
    assert again.comparison.target == pytest.approx(0.8)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "no scenario named 'nowhere': give a file *.toml or one of buffered, digits"),
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (
            ["digits", "--compare", "choose,drop"],
            "--compare choose,drop: expected kinds=A,B with choose, drop",
        ),
        (["digits", "--compare", "kinds="], "names no policy"),
        (
            ["digits", "--compare", "kinds=mixed+all,choose+all"],
            "mixed+all and choose+all are the same policy",
        ),
        (["digits", "--compare", "kinds=choose,drop,fedavg"], "drop and fedavg are the same policy"),
        (["digits", "--compare", "kinds=choose,telepathy"], "no system is called 'telepathy'"),
        (["digits", "--policy", "drop", "--compare", "kinds=drop"], "--policy and --compare both name"),
        (["digits", "--seed", "1", "--seeds", "3"], "--seed and --seeds both say the seeds"),
        (["digits", "--data", "dreams"], "source is 'dreams'"),
        (["digits", "--sweep", "lrr=0.1"], "no setting is called 'lrr'; near it are lr"),
        (["digits", "--sweep", "lr=fast"], "lr=fast: expected a number, more than 0"),
        (["digits", "--sweep", "lr=0.1,0"], "lr=0: expected a number, more than 0"),
        (["digits", "--sweep", "lr"], "--sweep lr: expected a setting and its values, such as lr=0.01,0.1"),
        (["digits", "--sweep", "policy=telepathy,drop"], "no system is called 'telepathy'"),
        (["digits", "--sweep", "partition=iid,wild"], "partition=wild: data: partition is 'wild', expected"),
        (["digits", "--sweep", "few-shot.shotz=1"], "few-shot has no setting 'shotz'; there are"),
        (["digits", "--sweep", "peft.lr=0.1"], "peft.lr: the task offers full, "),
        (["digits", "--sweep", "lr=1", "--point", "lr=1"], "--sweep tries every combination, --point single"),
        (["digits", "--point", "lr=1", "--point", "epochs=1"], "(lr=1; epochs=1): give all the same"),
        (["digits", "--sweep", "devices=10,5000"], "devices=5000: 5000 devices, but"),
        (["digits", "--data", "cifar10"], "source cifar10 needs a path"),
        (["digits", "--bundle", "nothing"], "nothing is neither a bundle"),
        (["digits", "--partition", "wild"], "partition is 'wild', expected one of iid, dirichlet"),
        (["digits", "--devices", "5000"], "5000 devices, but 1437 training samples"),
        (["digits", "--run-dir", "/proc/nowhere"], "/proc/nowhere: no such file or directory"),
        (["digits", "--executor", "plain", "--address", "ray://here"], "--address is for --executor ray"),
        (
            ["digits", "--executor", "plain", "--workers", "2"],
            "--workers is for --executor processes",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("device-runtime: ")
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        ["--target", "101"],
        ["--target", "0.9"],
        ["--seeds", "0"],
        ["--seed", "-1"],
        ["--seed", "few"],
        ["--validation-share", "1"],
        ["--devices", "few"],
        ["--buffer-size", "-1"],
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", *wrong])
    assert f"argument {wrong[0]}: " in capsys.readouterr().err


def test_the_scenario_of_the_docs_is_one(small):
    docs = Path(simulate.__file__).parents[3] / "docs" / "simulation.md"
    [text] = re.findall(r"```toml\n(# clinic\.toml.*?)```", docs.read_text("utf-8"), re.S)
    (small / "clinic.toml").write_text(text)
    scenario = plan_for(str(small / "clinic.toml")).scenario
    assert (scenario.name, scenario.devices, scenario.fleet.name) == ("clinic", 200, "fleet")
