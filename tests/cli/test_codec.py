import json
from argparse import ArgumentParser

import pytest

from device_runtime.cli import main
from device_runtime.cli.research import simulate
from device_runtime.cli.research.simulate_options import plan_of
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.interface.capabilities import codec_of


def plan_for(*arguments):
    parser = ArgumentParser()
    simulate.add_arguments(parser)
    return plan_of(parser.parse_args(arguments))


def test_all_kinds_that_can_send_by_the_codec_and_it_is_another_run():
    plain, coded = plan_for("digits"), plan_for("digits", "--codec", "delta+int8")
    sends = {
        kind.name: codec_of(kind.strategy).word
        for kind in scenario.of_policy(coded.scenario, "mixed").task.kinds
    }
    assert sends["full"] == sends["few-shot"] == "delta+int8"
    assert sends["zeroth-order"] == sends["class-means"] == ""
    assert plain.folder != coded.folder


@pytest.mark.parametrize("policy", ["drop", "reduced", "moon+", "heterofl"])
def test_policies_send_by_it_too(policy):
    task = scenario.of_policy(plan_for("digits", "--codec", "delta+half").scenario, policy).task
    assert {codec_of(kind.strategy).word for kind in task.kinds} == {"delta+half"}


def test_a_word_that_names_no_codec_is_one_line():
    with pytest.raises(ScenarioError, match="no codec is called 'gzip'"):
        plan_for("digits", "--codec", "gzip")


@pytest.mark.slow
def test_explain_sees_smaller_uploads(capsys):
    up = {}
    for word in ("", "delta+half", "delta+int8"):
        assert main(["explain", "--as", "pi-5", "--codec", word, "--format", "json"]) == 0
        up[word] = {row["kind"]: row["cost"]["bytes_up"] for row in json.loads(capsys.readouterr().out)}
    for word, share in (("delta+half", 0.5), ("delta+int8", 0.27)):
        assert up[word]["full"] == pytest.approx(share * up[""]["full"], rel=0.05)
        assert up[word]["zeroth-order"] == up[""]["zeroth-order"]
