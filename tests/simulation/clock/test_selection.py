"""Which devices of a simulated fleet train, and which are held out."""

import numpy as np
import pytest

from device_runtime.aggregator.tasks.participants import Participants
from device_runtime.profiles import ProfileError
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.clock.selection import selection
from device_runtime.simulation.errors import ScenarioError

TABLE = {
    "name": "house",
    "groups": {
        "boards": {"profile": "pi-5", "share": 0.5, "tags": ["kitchen", "floor=1"]},
        "phones": {"profile": "phone-mid", "share": 0.5},
    },
}
FLEET = fleets.read(TABLE).draw(20, seed=0)


def select(devices_with=(), hold_out=(), seed=0, fleet=FLEET):
    chosen = selection(Participants.read(devices_with, hold_out, seed), fleet, lambda device: device)
    return chosen and (np.flatnonzero(chosen.trains).tolist(), chosen.held_out.tolist())


def of_group(name):
    return [device for device in range(20) if FLEET.group(device) == name]


def test_without_conditions_all_train():
    assert select() is None


@pytest.mark.parametrize(
    "condition", ["tag=kitchen", "group=boards", "profile=pi-5", "memory>4GB", "tag!=x|y"]
)
def test_devices_meet_conditions_by_the_tags_the_profile_and_the_memory_of_their_group(condition):
    trains, held_out = select([condition])
    assert trains == (list(range(20)) if condition == "tag!=x|y" else of_group("boards"))
    assert held_out == []


def test_conditions_on_samples_and_names_are_of_single_devices():
    assert select(["samples>=18"])[0] == [18, 19]
    assert select([f"name={FLEET.name(4)}|{FLEET.name(7)}"])[0] == [4, 7]


def test_a_share_is_held_out_of_those_that_meet_the_conditions_exactly_and_by_the_seed():
    trains, held_out = select(["group=boards"], ["20%"])
    assert len(held_out) == 2
    assert sorted(trains + held_out) == of_group("boards")
    assert select(["group=boards"], ["20%"]) == (trains, held_out)
    assert len({tuple(select(hold_out=["20%"], seed=seed)[1]) for seed in range(5)}) > 1


def test_named_devices_and_those_with_a_tag_are_held_out():
    phone = of_group("phones")[0]
    assert select(hold_out=[FLEET.name(phone)])[1] == [phone]
    assert select(hold_out=["tag=kitchen"])[1] == of_group("boards")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((["tag=lab"], []), "no device of fleet house meets tag=lab: its groups are boards (tags kitchen, "
         "floor=1), phones (no tags)"),
        ((["engine=onnx"], []), "condition 'engine=onnx': simulated devices have no engine"),
        (([], ["pi-99"]), "hold_out_devices: fleet house has no device pi-99 that trains"),
        (([], ["group=boards|phones"]), "hold_out_devices: all 20 devices are held out, nobody would train"),
        (([], ["1%"]), "hold_out_devices: 1.000% of 20 devices are none"),
    ],
)  # fmt: skip
def test_what_a_fleet_cannot_meet_is_refused(settings, message):
    with pytest.raises(ScenarioError) as caught:
        select(*settings)
    assert message in str(caught.value)


def test_groups_that_are_redrawn_cannot_be_selected():
    fleet = fleets.read({**TABLE, "redrawn": True}).draw(20, 0)
    with pytest.raises(ScenarioError, match="the groups of fleet house are redrawn every round"):
        select(["tag=kitchen"], fleet=fleet)


def test_a_tag_of_a_group_that_cannot_be_one_is_refused():
    groups = {"boards": {"profile": "pi-5", "share": 1.0, "tags": ["a b"]}}
    with pytest.raises(ProfileError, match=r"groups\.boards\.tags: tag 'a b': use letters"):
        fleets.read({"name": "x", "groups": groups})
