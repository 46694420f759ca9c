"""The demo without its processes: report, picture, and what ends it early. Numbers by hand."""

import argparse
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.machine.run_events import ContributionRecord, RoundRecord
from device_runtime.aggregator.tasks.feasible import trained_parts, with_members
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli import main
from device_runtime.cli.research import demo as command
from device_runtime.device.policy.rules import AllowList
from device_runtime.device.selection.choose import choose
from device_runtime.device.training.local_task import allowed_statistics
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.profiles.device import Emulation, Time
from device_runtime.simulation import digits
from device_runtime.simulation.demo import calibration, plot, processes
from device_runtime.simulation.demo.fleet import (
    DEADLINE_S,
    DROPPED,
    FLEET,
    MIXED,
    SLOW,
    DemoDevice,
    divide_digits,
    with_javascript,
)
from device_runtime.simulation.demo.processes import FleetProcesses, PlacedMember
from device_runtime.simulation.demo.runs import (
    BUNDLE,
    ClosedRounds,
    DemoRun,
    DemoSetting,
    _abandoned_if,
    _late,
    save,
)
from device_runtime.simulation.digits import Labelled
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

NAN = float("nan")


def closed(number, accuracy, **changes):
    record = RoundRecord(number, accuracy, 1.0, accuracy, 0.5, 4, 10.0, 2.0, 1000, 2000, 3.0)
    return replace(record, **changes)


def sent(number, device, kind, **changes):
    record = ContributionRecord(number, device, kind, 9, NAN, 1.0, 4.0, 10**7, 300, 500, "")
    return replace(record, **changes)


def run(policy, seed, *accuracies, contributions=()):
    """A run in which each digit is recognised as often as all are; dropped rounds recognise no 5 to 9."""
    rounds = tuple(closed(n, accuracy) for n, accuracy in enumerate(accuracies, 1))
    recalls = tuple(
        tuple(0.0 if policy == "dropped" and digit > 4 else accuracy for digit in range(10))
        for accuracy in accuracies
    )
    return DemoRun(policy, seed, rounds, tuple(contributions), recalls=recalls)


MIXED_RUN = run(
    "mixed",
    0,
    0.5,
    0.95,
    contributions=[
        sent(1, "buoy", "zeroth-order", why="full needs 9 s of 2 s (link); entropy-subset 50% needs 8 s"),
        sent(2, "buoy", "zeroth-order", bytes_up=100, energy_j=2.0),
        sent(2, "phone-a", "full"),
    ],
)


def recalls_of(output):
    """The lines below the head of the table of recalls."""
    lines = output.splitlines()
    return lines[next(n for n, line in enumerate(lines) if line.startswith("How many test samples")) + 3 :]


def test_the_report_says_what_each_device_sent_and_what_limits_it(capsys):
    mixed = run(
        "mixed",
        0,
        0.5,
        contributions=[sent(3, "station", "few-shot", why="full needs 3 s and has 2 s (mostly to compute)")],
    )
    command._report(
        [
            replace(MIXED_RUN, contributions=MIXED_RUN.contributions + mixed.contributions),
            run("dropped", 0, 0.4),
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "What each device chose of the same offer, and why no more"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[4:12]}
    assert rows["phone-a"] == "phone-high 1 full fits"
    assert rows["buoy"] == "jetson-nano 300 B/s up 2 zeroth-order needs 9 s of 2 s (link)"
    limits = "300 B/s up; owner: no class of fewer than 200 samples"
    assert rows["station"] == f"pi-5 {limits} 1 few-shot takes too long, mostly to compute"
    assert rows["tracker"] == "phone-mid 140 kB/s up, 140 kB/s down nothing"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_kind_of_the_offer_is_what_fits_some_device(seed):
    bundle, rng = Bundle.open(shipped_folder(BUNDLE)), np.random.default_rng
    task = Task(bundle=BUNDLE, kinds=MIXED)
    parts = {name: part.manifest for name, part in trained_parts(task, bundle).items()}
    y = digits.load(rng(seed)).train.y
    chosen = {}
    for device, own in zip(FLEET, divide_digits(y, FLEET, rng([seed, 1])), strict=True):
        counts = tuple(np.bincount(y[own], minlength=10).tolist())
        manifests = {"": bundle.manifest, **parts}
        profile = Emulation.of(device.profile, SLOW, device.uplink, device.downlink).profile
        allowed = AllowList(smallest_count=device.smallest_count)
        kinds = [allowed_statistics(kind, allowed) for kind in with_members(task, tuple(parts)).preferred(2)]
        loads = {name: workload(manifest, counts) for name, manifest in manifests.items()}
        chosen[device.name] = choose(profile, kinds, loads, DEADLINE_S, allowed.bars).chosen.label
    assert chosen == {
        "phone-a": "full", "phone-b": "full", "board": "full", "tracker": "width-slice width-0.5",
        "station": "zeroth-order", "jetson": "entropy-subset 50%", "buoy": "class-means",
        "pi-zero": "few-shot",
    }  # fmt: skip


def test_the_report_is_one_table_by_who_holds_the_digits_and_a_sentence(capsys):
    command._report([MIXED_RUN, run("dropped", 0, 0.4, 0.9)])
    output = capsys.readouterr().out
    assert output.endswith("worth +5.0 points of accuracy, at +0 J (modelled).\n")
    rows = [line.split() for line in recalls_of(output)[:-1]]
    assert rows[0] == ["0", "to", "4", "the", "5", "others", "95.0%", "90.0%", "+5.0"]
    assert rows[2] == ["5", "and", "7", "buoy", "alone", "95.0%", "0.0%", "+95.0"]
    assert [row[0] for row in rows] == ["0", "6", "5", "8", "all"]


def test_figures_of_several_seeds_are_means_and_accuracy_has_its_deviation(capsys):
    mixed = [run("mixed", 0, 0.1, 0.5), run("mixed", 1, 0.9, 0.7)]
    command._report([*mixed, run("dropped", 0, 0.4), run("dropped", 1, 0.4)])
    lines = recalls_of(capsys.readouterr().out)
    assert lines[1].split() == ["6", "jetson", "alone", "60.0%", "0.0%", "+60.0"]
    assert lines[4].split() == ["all", "all", "60.0%", "±", "14.1", "40.0%", "±", "0.0", "+20.0"]
    assert [each.recall((3, 7)) for each in mixed] == pytest.approx([0.5, 0.7])


def test_weak_devices_hold_every_sample_of_their_digits_and_the_others_share_the_rest_equally():
    y = np.repeat(np.arange(10), 20)
    indices = dict(
        zip([member.name for member in FLEET], divide_digits(y, FLEET, np.random.default_rng(3)), strict=True)
    )
    assert {name: np.unique(y[indices[name]]).tolist() for name in ("jetson", "buoy", "pi-zero")} == {
        "jetson": [6], "buoy": [5, 7], "pi-zero": [8, 9],
    }  # fmt: skip
    assert [len(part) for part in indices.values()] == [20] * 5 + [20, 40, 40]
    every = np.concatenate(list(indices.values()))
    assert len(np.unique(every)) == len(every) == 200


def test_the_first_lines_say_which_digits_only_weak_devices_hold(capsys):
    options = argparse.Namespace(rounds=10, javascript=0)
    command._say_what_is_run(options, FLEET, 3.0, 1.0)
    assert capsys.readouterr().out.startswith(
        "Weak devices hold handwritten digits that nobody else has: jetson every 6, buoy every 5 and 7, "
        "pi-zero every 8 and 9. The others share 0 to 4.\n"
    )


@pytest.mark.slow
def test_the_picture_is_a_png_for_one_seed_and_for_several(tmp_path):
    for number, seeds in enumerate(([0], [0, 1])):
        runs = [replace(MIXED_RUN, seed=s) for s in seeds] + [run("dropped", s, 0.4, 0.9) for s in seeds]
        plot.draw(runs, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_saved_one_line_each(tmp_path):
    save([MIXED_RUN, run("dropped", 0, 0.4)], tmp_path / "runs.jsonl")
    first, second = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert '"policy":"mixed"' in first
    assert '"policy":"dropped"' in second


def test_a_run_folder_that_exists_is_refused_in_one_line(tmp_path, capsys):
    assert main(["demo", "--run-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"device-runtime: {tmp_path} is there already: give another --run-dir, or remove it\n"
    )


@pytest.mark.parametrize(
    "wrong", [["--rounds", "0"], ["--seeds", "-1"], ["--deadline", "nan"], ["--deadline", "soon"]]
)
def test_a_demo_of_nothing_is_refused(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *wrong])
    assert f"argument {wrong[0]}: " in capsys.readouterr().err


def test_the_compared_policies_differ_in_the_kinds_offered_and_in_nothing_else():
    assert {kind.name for kind in MIXED} == set(registry.OFFERED_KINDS)
    assert MIXED[:1] == DROPPED


def test_a_device_that_fails_ends_the_demo_with_what_it_said_last(tmp_path, monkeypatch):
    script = tmp_path / "fails"
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such broker')\n")
    script.chmod(0o755)
    monkeypatch.setattr(processes, "command", lambda: str(script))
    empty = PlacedMember(
        DemoDevice("phone-a", "phone-high"), Labelled(np.zeros((0, 1, 8, 8), np.uint8), np.zeros(0, np.int64))
    )
    with (
        FleetProcesses([empty], "mqtt://127.0.0.1:1", tmp_path / "devices") as fleet,
        pytest.raises(AggregatorError, match="phone-a ended: no such broker"),
        _abandoned_if(fleet.failed) as stop,
    ):
        assert stop.wait(600)


@pytest.mark.slow
def test_devices_in_javascript_stand_behind_the_eight_and_in_the_picture(tmp_path):
    fleet = with_javascript(2)
    assert fleet[:8] == FLEET
    assert [(member.name, member.label) for member in fleet[8:]] == [
        ("javascript-1", "JavaScript"),
        ("javascript-2", "JavaScript"),
    ]
    sends = [sent(1, "javascript-2", "full"), sent(2, "javascript-2", "full")]
    runs = [
        replace(each, fleet=fleet)
        for each in (run("mixed", 0, 0.5, 0.9, contributions=sends), run("dropped", 0, 0.4))
    ]
    plot.draw(runs, tmp_path / "demo.png")


def test_a_device_in_javascript_is_started_with_its_own_samples(tmp_path, monkeypatch):
    script = tmp_path / "node"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    script.chmod(0o755)
    monkeypatch.setattr(processes, "node_command", lambda: (str(script),))
    few = Labelled(np.zeros((2, 1, 8, 8), np.uint8), np.zeros(2, np.int64))
    with FleetProcesses(
        [PlacedMember(with_javascript(1)[-1], few)], "mqtt://127.0.0.1:1", tmp_path / "devices"
    ) as fleet:
        fleet.wait(600)
        assert fleet.failed() == ""
    home = tmp_path / "devices" / "javascript-1"
    log = (home / "device.log").read_text()
    assert (
        f"'--broker', 'mqtt://127.0.0.1:1', '--name', 'javascript-1', '--data', '{home}/samples.npz'" in log
    )
    assert "--as" not in log
    assert np.load(home / "samples.npz")["y"].shape == (2,)


@pytest.mark.parametrize(
    ("program", "missing", "message"),
    [
        (None, (), "need Node.js 20 or newer: node is not installed"),
        ("/usr/bin/node", ("node/run.js",), "need a checkout of the project"),
        ("/usr/bin/node", ("vendor/ort",), "vendor/ort is missing; run `make web`"),
    ],
)
def test_what_devices_in_javascript_lack_is_said_before_anything_is_run(
    program, missing, message, tmp_path, monkeypatch, capsys
):
    for name in ("node/run.js", "vendor/ort"):
        if name not in missing:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
    monkeypatch.setattr(processes.shutil, "which", lambda _: program)
    monkeypatch.setattr(processes, "RUNS", tmp_path / "node" / "run.js")
    monkeypatch.setattr(processes, "NEEDED", (tmp_path / "vendor" / "ort",))
    assert main(["demo", "--javascript", "3", "--run-dir", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class OnClock:
    """A step that takes so many seconds of a clock, and sleep that takes what it is asked for."""

    def __init__(self, takes):
        self.takes, self.now = takes, 0.0
        self.time = Time(lambda: self.now, self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def __call__(self):
        self.now += self.takes


@pytest.mark.parametrize(("takes", "step_s", "behind"), [(0.03, 0.01, 3.0), (0.005, 0.01, 1.0)])
def test_a_step_that_takes_longer_than_on_the_board_is_seen_to(takes, step_s, behind):
    step = OnClock(takes)
    assert calibration.PacedStep(step, step_s).stretch(1.0, step.time) == pytest.approx(behind, rel=0.01)


@pytest.mark.parametrize(("needed", "scale"), [(0.9, 1.0), (1.0, 1.0), (1.2, 2.0), (3.0, 4.0), (99.0, 8.0)])
def test_the_demo_is_so_much_slower_that_the_machine_keeps_up(needed, scale):
    assert calibration.first_kept_up(lambda scale_: scale_ >= needed) == scale


def test_a_fast_board_may_fall_back_as_long_as_its_full_update_is_in_time_and_a_slow_one_is_none_anyhow():
    seconds, room_s = [0.016, 0.064, 0.168], 0.08
    assert calibration.in_time(seconds, [5.0, 1.2, 9.0], room_s)
    assert not calibration.in_time(seconds, [5.1, 1.2, 1.0], room_s)
    assert not calibration.in_time(seconds, [1.0, 1.3, 1.0], room_s)


def test_the_machine_is_measured_with_all_boards_at_once():
    bundle, hours = Bundle.open(shipped_folder(BUNDLE)), calibration.DemoRound(deadline_s=3600.0, steps=1.0)
    assert calibration.scale(bundle, [("pi-zero-2w", 20.0)] * 2, hours) == 1.0


def test_on_a_slow_machine_devices_pretend_to_be_slower_and_their_links_too(tmp_path):
    device = DemoDevice("buoy", "jetson-nano", 300.0, 800.0, smallest_count=200)
    words = processes._arguments(device, "mqtt://b", tmp_path, 4.0)
    limits = ["--uplink", "75.0", "--downlink", "200.0", "--smallest-count", "200"]
    assert words[-8:] == ["--slow", "80.0", *limits]


def test_a_run_that_takes_far_too_long_is_ended_with_how_far_it_came():
    setting = DemoSetting(0, 15, 12.0, scale=4.0)
    assert setting.most_s == 4 * 120 + 3 * 15 * 12
    assert _late(setting, ClosedRounds(None), time.monotonic() + 60) == ""
    text = _late(setting, ClosedRounds(None), time.monotonic() - 1)
    assert text.startswith(
        "0 of 15 rounds of 12 s are done after 1020 s: this machine is too busy for 8 devices"
    )
