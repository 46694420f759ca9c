"""The ready scenarios under examples/."""

from pathlib import Path

import pytest

from device_runtime.simulation.scenarios import scenario

FOLDER = Path(__file__).parents[2] / "examples"
DOCS = FOLDER.parent / "docs" / "simulation.md"
EXAMPLES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_draws_a_fleet_and_is_named_in_the_docs(path):
    example = scenario.load(path)
    assert example.name == path.stem
    assert len(example.fleet.draw(example.devices, seed=0)) == example.devices
    assert f"examples/{path.name}" in DOCS.read_text("utf-8")
    assert f"simulate examples/{path.name}" in path.read_text("utf-8")


def test_there_are_some():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("name", scenario.preset_names())
def test_a_preset_is_named_in_the_docs(name):
    assert f"`{name}`" in DOCS.read_text("utf-8")
