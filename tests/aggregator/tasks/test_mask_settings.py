import argparse

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.mask_settings import MaskSettings, helper_key, most_weight_of
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.messages import HelperKey
from device_runtime.cli.operator import serve

A, B = "site-a=" + "5b" * 32, "site-b=" + "7c" * 32
NOISE = {"epsilon": 4.0, "delta": 1e-6, "clip_norm": 1.0}


def test_a_helper_is_its_name_and_its_key():
    assert MaskSettings((A, B)).keys == (HelperKey("site-a", b"\x5b" * 32), HelperKey("site-b", b"\x7c" * 32))


@pytest.mark.parametrize(
    "text", ["site-a", "site-a=", "site-a=5b5b", "site-a=" + "xy" * 32, "a b=" + "5b" * 32]
)
def test_a_helper_without_a_name_or_a_whole_key_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME=KEY, with a key of 64 hex digits|device name 'a b'"):
        helper_key(text)


def test_room_for_more_devices_costs_precision_and_ends_where_sums_can_be_divided():
    rooms = [MaskSettings((A,)).offered(devices, 200).capacity for devices in (0, 100, 100_000)]
    assert rooms == [64, 256, 1024]
    assert MaskSettings((A,), min_group=2000).offered(100_000, 200).capacity == 4096
    assert MaskSettings((A,), **NOISE).offered(100_000, 200).capacity == 2**18


def test_one_huge_number_of_samples_does_not_take_the_precision_of_all():
    assert most_weight_of([20, 30, 199]) == 199
    assert most_weight_of([20, 30, 10**6]) == 3000
    assert (most_weight_of([]), most_weight_of([7])) == (0, 7)


@pytest.mark.parametrize(
    ("masks", "text"),
    [
        ({"helpers": []}, "helpers are 0, expected 1 to 3"),
        ({"helpers": [A, A]}, "each name and key can be given once"),
        ({"helpers": [A, "site-b=" + "5b" * 32]}, "each name and key can be given once"),
        ({"helpers": [A], "min_group": 1}, "min_group is 1, expected 2 to"),
        ({"helpers": [A], "epsilon": 1.0}, "noise needs epsilon, delta and clip_norm; given: epsilon"),
        ({"min_group": 3}, "masks.helpers is missing"),
        ({"helpers": [A], "group": 3}, "group"),
    ],
)
def test_settings_of_masks_that_cannot_be_meant_are_refused_in_one_line(masks, text):
    with pytest.raises(TaskError) as error:
        tasks.load(None, {"bundle": "b", "masks": masks})
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"robust": "median"}, "masks and robust = median: robust rules compare single updates"),
        ({"devices_per_round": 2}, "devices_per_round is 2, masks.min_group 3: no sum would be opened"),
        ({"buffer_size": 2}, "buffer_size is 2, masks.min_group 3: no sum would be opened"),
        (
            {"kinds": [{"name": "prototypes"}]},
            "prototypes cannot be masked: its updates do not fold as a sum",
        ),
        (
            {"kinds": [{"name": "full", "settings": {"codec": "int8"}}]},
            "full cannot be masked: numbers that its codec int8 packs do not add up",
        ),
        (
            {"kinds": [{"name": "full", "max_norm": 2.0}]},
            "full cannot be masked: max_norm = 2 is checked on single updates, leave it out",
        ),
        (
            {"head": "closed-form", "masks": {"helpers": [A], **NOISE}},
            "class statistics are sent without noise",
        ),
        (
            {"kinds": [{"name": "class-means"}], "masks": {"helpers": [A], **NOISE}},
            "class-means cannot be masked: sums and counts are sent without noise",
        ),
    ],
)
def test_a_task_says_why_it_cannot_be_masked(settings, text):
    with pytest.raises(TaskError) as error:
        tasks.load(None, {"bundle": "b", "masks": {"helpers": [A]}, **settings})
    assert text in str(error.value)


def test_the_default_kinds_can_be_masked():
    assert Task(bundle="b", masks=MaskSettings((A,))).closed_form


def test_as_many_devices_as_a_sum_needs_must_contribute():
    assert Task(bundle="b", masks=MaskSettings((A,), 7), min_contributions=2).min_contributions == 7
    assert Task(bundle="b", masks=MaskSettings((A,), 2), min_contributions=5).min_contributions == 5


def test_late_updates_count_by_their_lateness_also_where_rounds_wait_for_the_fast():
    clear, masked = (
        Task(bundle="b", wait_for="fast"),
        Task(bundle="b", wait_for="fast", masks=MaskSettings((A,))),
    )
    assert (clear.late_share(3), clear.stands_for(3, 3.0)) == (1.0, 3.0)
    assert (masked.late_share(3), masked.stands_for(3, 3.0)) == (0.5, 1.0)


def test_noise_turns_class_statistics_off():
    kinds = (KindSettings(name="full"), KindSettings(name="entropy-subset"))
    assert Task(bundle="b", kinds=kinds, masks=MaskSettings((A,))).closed_form
    assert not Task(bundle="b", kinds=kinds, masks=MaskSettings((A,), **NOISE)).closed_form


def test_a_task_with_masks_is_read_from_its_json():
    task = Task(bundle="b", masks=MaskSettings((A, B), 4))
    assert tasks.decode(task.json()).masks == task.masks
    assert tasks.decode(task.json()).json() == task.json()


def served(*words):
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args([str(word) for word in words])
    return serve.task_of(args)


def test_flags_give_the_helpers_and_override_the_file(tmp_path):
    (tmp_path / "t.toml").write_text(f'bundle = "b"\n[masks]\nhelpers = ["{A}"]\nmin_group = 5\n')
    assert served("--bundle", "b").masks is None
    assert served("--bundle", "b", "--mask-helpers", f"{A},{B}").masks == MaskSettings((A, B))
    assert served(tmp_path / "t.toml").masks == MaskSettings((A,), 5)
    assert served(tmp_path / "t.toml", "--min-group", 8).masks == MaskSettings((A,), 8)
    assert served(tmp_path / "t.toml", "--mask-helpers", B).masks == MaskSettings((B,), 5)
