from pathlib import Path

import msgspec
import pytest

from profiles import fleets
from simulation import scenario
from simulation.errors import ScenarioError

FLEET = """
[groups.a]
profile = "pi-5"
share = 1.0
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_fleet_preset_is_given_the_digits_task():
    made = scenario.load("uniform")
    assert made.fleet == fleets.load("uniform")
    assert made.task.bundle == "digits-wrn-10-1"
    assert made.data.source == "digits"


def test_every_preset_loads():
    assert [scenario.load(name).name for name in scenario.preset_names()] == list(scenario.preset_names())


def test_a_fleet_file_is_given_the_digits_task(tmp_path):
    made = scenario.load(write(tmp_path, FLEET))
    assert list(made.fleet.groups) == ["a"]
    assert made.name == "mine"


def test_a_scenario_names_a_fleet_beside_it(tmp_path):
    write(tmp_path, FLEET, "boards.toml")
    text = 'fleet = "boards.toml"\ndevices = 7\n[task]\nrounds = 3\n[data]\npartition = "iid"\n'
    made = scenario.load(write(tmp_path, text))
    assert (made.devices, made.task.rounds, made.data.partition) == (7, 3, "iid")
    assert list(made.fleet.groups) == ["a"]


def test_flags_go_over_the_file_and_leave_its_other_settings(tmp_path):
    text = 'fleet = "uniform"\n[task]\nrounds = 3\nround_deadline_s = 5.0\n'
    made = scenario.load(write(tmp_path, text), {"devices": 4, "task": {"rounds": 9}})
    assert (made.devices, made.task.rounds, made.task.round_deadline_s) == (4, 9, 5.0)


def test_a_scenario_is_what_it_was_after_json(tmp_path):
    made = scenario.load("digits")
    assert scenario.decode(made.json()) == made
    assert scenario.decode(made.json()).json() == made.json()


def test_settings_that_came_later_are_written_only_where_they_are_used():
    """Runs are known by their scenario's bytes: a version with more settings must not run them again."""
    task = msgspec.json.decode(scenario.load("digits").json())["task"]
    assert set(task) == scenario._ALWAYS
    assert len(task) == 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devices = 3\n", "which fleet"),
        ('fleet = "no-such"\n', "no fleet named 'no-such'"),
        ('fleet = "uniform"\nspeed = 3\n', "speed: there is no such key; there are fleet, task, name, "),
        ('fleet = "uniform"\ndevces = 3\n', "data; did you mean devices?"),
        ('fleet = "uniform"\nroundz = 3\n', "; did you mean task.rounds?"),
        (
            'fleet = "uniform"\n[task]\nroundz = 3\n',
            "task.roundz: there is no such key; there are bundle, name, ",
        ),
        ('fleet = "uniform"\n[task]\nroundz = 3\n', "; did you mean rounds?"),
        (
            'fleet = "uniform"\n[[task.kinds]]\nnam = "full"\n',
            "task.kinds[0].nam: there is no such key; there are name",
        ),
        ('fleet = "uniform"\ndevices = 0\n', "devices is 0, expected 1 or more"),
        ('fleet = "uniform"\nslow = 0.0\n', "slow is 0.0, expected more than 0"),
        ('fleet = "uniform"\nslow = 1e7\n', "slow is 10000000.0, expected more than 0 and less than"),
        ("fleet = 3\n", "which fleet"),
        ('fleet = "uniform"\ndata = "iid"\n', "data is 'iid', expected a table [data]"),
        ('fleet = "uniform"\ntask = 3\n', "task is 3, expected a table [task]"),
        ('fleet = "uniform"\n[task]\nbundle = 5\n', "task.bundle: expected `str`, got `int`"),
        ('fleet = "uniform"\n[data]\npath = 5\n', "data.path: expected `str`, got `int`"),
        (
            'fleet = "uniform"\ndevices = 2\n[task]\nmin_contributions = 3\n',
            "min_contributions is 3, expected at most 2",
        ),
        ('fleet = "uniform"\n[task]\nrounds = 0\n', "rounds is 0"),
        ('fleet = "uniform"\n[data]\nsource = "mnist3d"\n', "mnist3d"),
        ("fleet = [\n", "is not TOML"),
        ('fleet = "uniform"\nengine = "jax"\n', "engine is 'jax', expected one of auto, onnxruntime"),
        ('fleet = "uniform"\n[task]\nseed = 3\n', "task has seed: a simulation is given its seed"),
        ('fleet = "uniform"\n[task]\nmin_devices = 3\n', "task has min_devices: the whole fleet"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line_with_the_file(tmp_path, text, says):
    path = write(tmp_path, text)
    with pytest.raises(ScenarioError, match="mine.toml") as caught:
        scenario.load(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_lists_those_there_are():
    with pytest.raises(ScenarioError, match=r"no scenario named 'x'.*digits.*uniform"):
        scenario.load("x")
