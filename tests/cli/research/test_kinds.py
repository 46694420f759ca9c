import json
import re

import pytest

from device_runtime.cli import main
from device_runtime.content import tomllib
from device_runtime.strategies.kinds import registry


@pytest.mark.parametrize("name", registry.KINDS)
def test_one_kind_is_shown_with_its_settings_and_an_example_that_makes_it(name, capsys):
    assert main(["kinds", name]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{name}: a device trains {registry.KINDS[name].about.trains}")
    [table] = tomllib.loads(output[output.index("[[kinds]]") :])["kinds"]
    assert registry.make(table["name"], table["settings"]) != registry.make(name)


def test_settings_have_default_range_unit_and_meaning(capsys):
    assert main(["kinds", "full"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^epochs +10 +1 to 1000000 +epochs +Passes over the local samples", output, re.M)
    assert re.search(r"^terms\.dp-sgd\.epsilon +5\.0 +more than 0 +- +Privacy budget", output, re.M)


def test_all_kinds_are_listed_with_whose_method_they_are(capsys):
    assert main(["kinds"]) == 0
    output = capsys.readouterr().out
    assert all(re.search(rf"^{re.escape(name)} ", output, re.M) for name in registry.KINDS)
    assert "HeteroFL: Diao et al. 2021" in output
    assert not re.search(r"(thesis|paper) 00\d", output)


def test_both_lists_are_told_as_json(capsys):
    assert main(["kinds", "--format", "json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(registry.KINDS)
    assert main(["kinds", "peft", "--format", "json"]) == 0
    description = json.loads(capsys.readouterr().out)
    [rate] = [row for row in description["settings"] if row["name"] == "lr"]
    assert (rate["default"], rate["range"], rate["example"]) == ("0.0", "0 or more", "lr = 0.005")


@pytest.mark.parametrize(("typed", "near"), [("ful", "full"), ("zeroth_order", "zeroth-order")])
def test_of_a_mistyped_kind_the_nearest_is_named(typed, near, capsys):
    assert main(["kinds", typed]) == 2
    assert f"no kind of update is called {typed!r}; did you mean {near}?" in capsys.readouterr().err
