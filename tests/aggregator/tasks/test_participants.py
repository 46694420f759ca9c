"""Which devices a task asks, by their tags and capabilities, and which it holds out."""

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.machine.state import EVERY, Rules
from device_runtime.aggregator.tasks.participants import Condition, DeviceTraits, Participants
from device_runtime.aggregator.tasks.task import Task
from device_runtime.tags import check_tags

PI = DeviceTraits(
    "kitchen-pi",
    tags=("kitchen", "floor=2"),
    profile="pi-5",
    engine="onnx",
    version="0.10.0",
    memory_bytes=512_000_000,
    samples=40,
)
UNKNOWN = DeviceTraits("new")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("tag=kitchen", True),
        ("tag=hall", False),
        ("tag=hall|kitchen", True),
        ("tag!=hall", True),
        ("tag=floor", True),
        ("tag=floor=2", True),
        ("tag = floor=3", False),
        ("profile=pi-4|pi-5", True),
        ("engine!=onnx", False),
        ("name=kitchen-pi", True),
        ("memory>=512MB", True),
        ("memory>0.512GB", False),
        ("memory<1GB", True),
        ("samples<=39", False),
        ("version>=0.9", True),  # by its numbers: 10 is more than 9
        ("version=0.10", True),
        ("version<0.10.0", False),
    ],
)
def test_a_condition_is_met_as_it_says(condition, holds):
    assert Condition.read(condition).holds(PI) is holds


@pytest.mark.parametrize("condition", ["memory>=1kB", "memory<9GB", "samples!=3", "version<9", "version>=0"])
def test_a_device_of_which_a_number_is_unknown_does_not_meet_a_condition_on_it(condition):
    assert not Condition.read(condition).holds(UNKNOWN)


def test_a_group_is_that_of_the_fleet_or_of_the_tag():
    condition = Condition.read("group=phones")
    assert condition.holds(DeviceTraits("a", group="phones"))
    assert condition.holds(DeviceTraits("a", tags=("group=phones",)))
    assert not condition.holds(DeviceTraits("a", tags=("phones",)))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            "kitchen",
            "condition 'kitchen' is not understood, expected NAME=VALUE with one of tag, group, profile",
        ),
        ("colour=red", "condition 'colour=red' is not understood"),
        ("tag=", "condition 'tag=' is not understood"),
        ("tag>kitchen", "condition 'tag>kitchen': tag is a text, expected = or !="),
        ("tag=a b", "condition 'tag=a b': tag 'a b': use letters, digits"),
        ("group=a|", "condition 'group=a|' is not understood, expected group=VALUE or group=A|B"),
        ("memory>=512", "condition 'memory>=512': '512' is no size, expected such as 512MB or 2GB"),
        ("samples>many", "condition 'samples>many': 'many' is no whole number"),
        ("version>=next", "condition 'version>=next': 'next' is no version, expected such as 0.2.0"),
    ],
)
def test_a_condition_that_is_not_understood_is_refused(condition, message):
    with pytest.raises(TaskError) as caught:
        Task(bundle="b", devices_with=(condition,))
    assert message in str(caught.value)


def test_who_is_left_out_is_told_by_the_first_condition_that_it_does_not_meet():
    participants = Participants.read(["tag=kitchen", "memory>=1GB"], [], 0)
    assert participants.reason_left_out(PI) == (
        "the task asks devices with memory>=1GB, and it has memory 512 MB"
    )
    assert (
        participants.reason_left_out(UNKNOWN) == "the task asks devices with tag=kitchen, and it has no tags"
    )
    assert Participants.read(["tag=kitchen"], [], 0).reason_left_out(PI) == ""


def test_devices_are_held_out_by_name_by_condition_and_by_a_share_of_the_seed():
    participants = Participants.read([], ["kitchen-pi", "tag=lab"], 0)
    assert participants.holds_out(PI)
    assert participants.holds_out(DeviceTraits("x", tags=("lab",)))
    assert not participants.holds_out(UNKNOWN)
    assert participants.reason_left_out(PI) == "it is held out: it is evaluated, and never trained on"
    names = [DeviceTraits(f"device-{number}") for number in range(1000)]
    shares = [[Participants.read([], ["20%"], seed).holds_out(each) for each in names] for seed in (0, 0, 1)]
    assert shares[0] == shares[1] != shares[2]
    assert 150 < sum(shares[0]) < 250  # 200 expected, standard deviation 12.6
    with pytest.raises(TaskError, match="hold_out_devices has 100%, expected less than 100%"):
        Task(bundle="b", hold_out_devices=("60%", "40%"))


def test_rounds_that_leave_out_devices_ask_each_of_the_others_by_name():
    assert Rules.of(Task(bundle="b")).cohort(1) is None
    assert Rules.of(Task(bundle="b", devices_with=("tag=kitchen",))).cohort(1) == EVERY
    drawn = Rules.of(Task(bundle="b", hold_out_devices=("10%",), devices_per_round=3, ask_all_rounds=1))
    assert (drawn.cohort(1), drawn.cohort(2)) == (EVERY, 3)


def test_tags_are_short_words_with_one_value_at_most():
    assert check_tags(["kitchen", "floor=2", "kitchen"]) == ("kitchen", "floor=2")
    for tag in ("", "=2", "a=b=c", "ä", "x" * 65, "a,b"):
        with pytest.raises(ValueError, match="use letters, digits"):
            check_tags([tag])
    with pytest.raises(ValueError, match="17 tags, expected 16 or fewer"):
        check_tags(map(str, range(17)))
