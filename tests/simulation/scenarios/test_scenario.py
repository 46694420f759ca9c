from pathlib import Path

import msgspec
import pytest

from device_runtime.device.selection.choose import ChoicePolicy
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario

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
    loaded = scenario.load("uniform")
    assert loaded.fleet == fleets.load("uniform")
    assert loaded.task.bundle == "digits-wrn-10-1"
    assert loaded.data.source == "digits"


def test_every_preset_loads():
    assert [scenario.load(name).name for name in scenario.preset_names()] == list(scenario.preset_names())


def test_a_fleet_file_is_given_the_digits_task(tmp_path):
    loaded = scenario.load(write(tmp_path, FLEET))
    assert list(loaded.fleet.groups) == ["a"]
    assert loaded.name == "mine"


def test_a_scenario_names_a_fleet_beside_it(tmp_path):
    write(tmp_path, FLEET, "boards.toml")
    text = 'fleet = "boards.toml"\ndevices = 7\n[task]\nrounds = 3\n[data]\npartition = "iid"\n'
    loaded = scenario.load(write(tmp_path, text))
    assert (loaded.devices, loaded.task.rounds, loaded.data.partition) == (7, 3, "iid")
    assert list(loaded.fleet.groups) == ["a"]


def test_flags_go_over_the_file_and_leave_its_other_settings(tmp_path):
    text = 'fleet = "uniform"\n[task]\nrounds = 3\nround_deadline_s = 5.0\n'
    loaded = scenario.load(write(tmp_path, text), {"devices": 4, "task": {"rounds": 9}})
    assert (loaded.devices, loaded.task.rounds, loaded.task.round_deadline_s) == (4, 9, 5.0)


def test_several_kinds_have_the_usual_settings_that_the_file_does_not_set(tmp_path):
    text = 'fleet = "uniform"\n[[task.kinds]]\nname = "full"\nsettings = { graded = false }\n'
    loaded = scenario.load(write(tmp_path, f'{text}[[task.kinds]]\nname = "few-shot"\n'))
    full, few_shot = (kind.strategy for kind in loaded.task.kinds)
    assert (full.graded, few_shot.join_base, few_shot.least_samples) == (False, True, 40)
    [alone] = scenario.load(write(tmp_path, text.replace("settings = { graded = false }", ""))).task.kinds
    assert not alone.strategy.graded


def test_settings_of_groups_and_kinds_that_came_later_are_written_only_where_they_are_used():
    """So that runs finished before these existed still count as finished."""
    whole = scenario.load("uniform").json()
    for name in (b"first_epochs", b"redrawn", b"members", b"ask_all_rounds"):
        assert name not in whole, name
    fleet = {"name": "f", "groups": {"a": {"profile": "pi-5", "share": 1.0}}, "redrawn": True}
    kinds = [{"name": "full", "first_epochs": 3}]
    used = scenario.load("uniform", {"fleet": fleet, "task": {"ask_all_rounds": 1, "kinds": kinds}})
    assert scenario.decode(used.json()) == used
    for name in (b"first_epochs", b"redrawn", b"ask_all_rounds"):
        assert name in used.json(), name


def test_a_scenario_is_what_it_was_after_json(tmp_path):
    loaded = scenario.load("digits")
    assert scenario.decode(loaded.json()) == loaded
    assert scenario.decode(loaded.json()).json() == loaded.json()


@pytest.mark.parametrize("name", fleets.preset_names())
def test_a_run_s_devices_have_the_names_and_order_of_the_fleet_when_loaded(name):
    """A run is given its scenario as JSON."""
    loaded, read = fleets.load(name), scenario.decode(scenario.load(name).json()).fleet
    for seed in (0, 1):
        first, other = loaded.draw(30, seed), read.draw(30, seed)
        assert [first.name(i) for i in range(30)] == [other.name(i) for i in range(30)]
        assert [first.profile(i) for i in range(30)] == [other.profile(i) for i in range(30)]


def test_settings_that_came_later_are_written_only_where_they_are_used():
    """Runs are known by their scenario's bytes: a version with more settings must not run them again."""
    whole = msgspec.json.decode(scenario.load("digits").json())
    assert set(whole["task"]) == scenario._ALWAYS
    assert len(whole["task"]) == 20
    assert "groups" not in whole["data"]
    statistics = [kind["settings"]["statistics"] for kind in whole["task"]["kinds"]]
    assert [each["hold_out"] for each in statistics] == [0.0] * len(statistics)


def test_tasks_that_name_no_kinds_are_written_as_before_and_told_from_those_that_name_the_same():
    none = scenario.load("digits")
    assert "order" not in msgspec.json.decode(none.json())["task"]
    assert scenario.decode(none.json()).task.order == "default"
    same = msgspec.structs.replace(none, task=none.task.naming(none.task.kinds))
    assert msgspec.json.decode(same.json())["task"]["order"] == "listed"
    assert scenario.decode(same.json()) == same
    alone = msgspec.structs.replace(none, task=none.task.naming(none.task.kinds[:1]))
    assert "order" not in msgspec.json.decode(alone.json())["task"]
    assert scenario.decode(alone.json()) == alone


def test_what_groups_hold_is_in_a_scenario_s_json():
    loaded = scenario.load("straggler-classes")
    assert scenario.decode(loaded.json()) == loaded
    assert loaded.data.groups["weak"].classes == (7, 8, 9)


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
        (
            'fleet = "sensors"\n[data.groups.solr]\nclasses = [1]\n',
            "data.groups.solr: the fleet has no such group; there are mains, solar",
        ),
        (
            'fleet = "sensors"\n[data.groups.solar]\nclases = [1]\n',
            "data.groups.solar.clases: there is no such key; there are classes, speakers, share; did you",
        ),
        (
            'fleet = "sensors"\n[data.groups.solar]\n',
            "data.groups.solar: expected one of classes, speakers and share",
        ),
        (
            'fleet = "sensors"\n[data.groups.solar]\nclasses = [1]\nshare = 0.5\n',
            "data.groups.solar: expected one of classes, speakers and share",
        ),
        (
            'fleet = "sensors"\n[data.groups.solar]\nclasses = [1, 2, 1]\n',
            "data.groups.solar: [1, 2, 1] names one twice",
        ),
        ('fleet = "sensors"\n[data.groups.solar]\nshare = 1.5\n', "data.groups.solar.share: expected"),
        ('fleet = "sensors"\n[data]\ngroups = 3\n', "data.groups is 3, expected a table [data.groups]"),
        (
            'fleet = "sensors"\n[data.groups]\nsolar = { share = 0.7 }\nmains = { share = 0.6 }\n',
            "data: shares of groups are solar 0.7, mains 0.6: 1.3 in all, expected 1 at most",
        ),
        (
            'fleet = "sensors"\n[data.groups]\nsolar = { classes = [1] }\nmains = { speakers = [2] }\n',
            "data: groups name classes and speakers, expected one of the two",
        ),
        ("fleet = [\n", "is not TOML"),
        ('fleet = "uniform"\nengine = "jax"\n', "engine is 'jax', expected one of auto, onnxruntime"),
        ('fleet = "uniform"\n[task]\nseed = 3\n', "task has seed: a simulation is given its seed"),
        ('fleet = "uniform"\n[task]\nmin_devices = 3\n', "task has min_devices: the whole fleet"),
        ('fleet = "uniform"\n[task]\nrobust_trim = 0.3\n', "robust_trim has no effect without robust"),
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


@pytest.mark.parametrize("name", ["mixed", "drop", "heterofl"])
def test_an_own_policy_with_the_name_of_another_one_is_refused(name, monkeypatch):
    methods = {"name": name, "about": "", "pick": lambda self, fitting, profile: None}
    own = type("Mine", (ChoicePolicy,), methods)
    monkeypatch.setitem(ChoicePolicy.registry, name, own)
    with pytest.raises(ScenarioError, match=f"policy Mine is called '{name}', as another policy is"):
        scenario.of_policy(scenario.load("digits"), name)
