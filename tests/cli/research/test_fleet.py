"""`device-runtime fleet`, and deadlines by a share of stragglers on the command line."""

import json
import re

import pytest

from device_runtime.cli import main

SMALL = ["digits", "--devices", "10"]


def test_it_says_who_is_a_straggler_and_draws_a_picture(tmp_path, capsys):
    picture = tmp_path / "fleet.png"
    assert main(["fleet", *SMALL, "--out", str(picture)]) == 0
    output = capsys.readouterr().out
    assert re.match(
        r"10 devices of fleet mixed, bundle digits-wrn-10-1, deadline 3 s: \d \(\d0%\) are", output
    )
    assert re.search(r"^group +kind +seconds +MB +joules +fits +sends$", output, re.M)
    assert f"picture {picture}" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_deadline_is_found_for_a_share_of_stragglers_and_told(tmp_path, capsys, caplog):
    out = ["--out", str(tmp_path / "fleet.png")]
    assert main(["fleet", *SMALL, "--deadline", "30% stragglers", "--format", "json", *out]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert sum(group["stragglers"] for group in whole["groups"].values()) == 3
    assert re.search(
        rf"deadline {whole['deadline_s']:g} s: 3 of 10 devices \(30%\) are stragglers \(", caplog.text
    )


def test_a_task_that_is_served_has_no_deadline_by_stragglers_and_says_what_to_type(tmp_path, capsys):
    served = ["serve", "--bundle", "digits-wrn-10-1", "--run-dir", str(tmp_path / "run")]
    assert main([*served, "--deadline", "30% stragglers"]) == 2
    message = capsys.readouterr().err
    assert (
        "only a simulation knows its devices before they join: give seconds, or deadline_quantile = 0.7"
        in message
    )
    file = tmp_path / "task.toml"
    file.write_text('bundle = "digits-wrn-10-1"\ndeadline = "30% stragglers"\n')
    assert main(["serve", str(file), "--run-dir", str(tmp_path / "run")]) == 2
    assert "(--deadline-quantile 0.7)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "fleet.svg"], "the picture is a PNG"),
        (["--out", "nowhere/fleet.png"], "there is no folder nowhere"),
        (["--devices-with", "tag=lab"], "no device of fleet mixed meets tag=lab: its groups are"),
        (["--deadline", "100% stragglers"], "expected 0 to less than 100% of the devices"),
        (
            ["--draw", "best", "--devices-per-round", "2"],
            "no drawing policy is called 'best'; there are uniform",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", *SMALL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_argument_that_is_no_deadline_says_what_one_is(capsys):
    with pytest.raises(SystemExit):
        main(["fleet", "--deadline", "30 stragglers"])
    assert (
        "'30 stragglers': expected a number, more than 0, or such as \"30% stragglers\""
        in capsys.readouterr().err
    )
