"""The members of a family that kinds train: all of it where they name none; by name, path or file."""

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.merging.merge_round import open_family
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.feasible import trained_parts, unused_reason, with_members
from device_runtime.aggregator.tasks.kind_settings import KindSettings, kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.kinds import registry

PATHS = ("bundles/narrow.zip", "bundles/narrower.zip")
NAMES = ("wrn-half", "wrn-quarter")


def kind(name, *members):
    return KindSettings(name=name, settings={"members": list(members)} if members else {})


def filled(make_task, *kinds, paths=PATHS):
    task = with_members(make_task("full", *kinds, family=paths), NAMES)
    return {each.name: tuple(each.settings.get("members", ())) for each in task.kinds}


@pytest.mark.parametrize("name", ["width-slice", "attention-transfer", "prototypes"])
def test_a_kind_that_names_none_trains_all_of_the_family(make_task, name):
    assert filled(make_task, kind(name)) == {"full": (), name: NAMES}
    assert filled(make_task, kind(name, "wrn-quarter"))[name] == ("wrn-quarter",)


@pytest.mark.parametrize("called", ["narrow.zip", "narrow", "bundles/narrow.zip", "wrn-half"])
def test_a_member_is_called_by_its_name_its_path_or_its_file(make_task, called):
    assert filled(make_task, kind("width-slice", "", called))["width-slice"] == ("", "wrn-half")


def test_what_is_no_member_is_refused_by_name(make_task):
    with pytest.raises(TaskError, match="members of width-slice: no 'large.zip' in the task's family, which"):
        filled(make_task, kind("width-slice", "large.zip"))
    same = ("a/narrow.zip", "b/narrow.zip")
    with pytest.raises(
        TaskError, match="no 'narrow.zip' in the task's family, which has wrn-half, wrn-quarter"
    ):
        filled(make_task, kind("width-slice", "narrow.zip"), paths=same)
    assert filled(make_task, kind("width-slice", "b/narrow.zip"), paths=same)["width-slice"] == (
        "wrn-quarter",
    )


def test_a_family_that_no_kind_trains_is_said(make_task):
    assert "width-slice" in unused_reason(make_task("full", "few-shot", family=PATHS))
    assert not unused_reason(make_task("full", kind("width-slice"), family=PATHS))
    assert not unused_reason(make_task("full", "few-shot"))


def test_the_example_of_the_page_works_in_a_task_file(tmp_path, exported):
    file = tmp_path / "task.toml"
    (tmp_path / "smaller.zip").symlink_to(exported.half)
    file.write_text(
        f'bundle = "{exported.tuned}"\nfamily = ["smaller.zip"]\n'
        '[[kinds]]\nname = "full"\n[[kinds]]\nname = "width-slice"\n'
        'settings = { members = ["smaller.zip"] }\n'
    )
    task = with_members(tasks.load(file, {}), ("half",))
    assert task.kinds[1].strategy.members == ("half",)


def test_the_default_kinds_train_the_parts_of_the_bundle_and_none_where_there_are_none():
    task = Task(bundle="b")
    narrower = {kind.name: kind.settings.get("members") for kind in with_members(task, ("width-0.5",)).kinds}
    assert narrower["width-slice"] == ("width-0.5",)
    plain = with_members(task, ())
    assert [kind.name for kind in plain.kinds] == list(registry.DEFAULT_KINDS)
    assert (task.order, plain.order, with_members(task, ("width-0.5",)).order) == (
        "default",
        "gain",
        "listed",
    )
    offered = [registry.read(kind) for kind in plain.offer_kinds(1)]
    assert [form.variant for form in offered if form.name == "full"] == [
        "",
        "epochs=5",
        "epochs=2",
        "epochs=1",
    ]


def test_a_task_that_names_the_default_kinds_has_all_of_them_as_listed():
    task = Task(bundle="b", kinds=kinds_named(registry.OFFERED_KINDS))
    assert with_members(task, ()) == task
    main = Bundle.open(shipped_folder("digits-wrn-10-1"))
    assert list(trained_parts(task, main)) == ["width-0.5"]
    assert [kind.name for kind in with_members(task, ("width-0.5",)).kinds] == list(registry.OFFERED_KINDS)


def test_parts_are_for_kinds_that_train_parts(make_task):
    task = make_task(kind("prototypes"), kind("width-slice"))
    assert [each.strategy.members for each in with_members(task, ("width-0.5",)).kinds] == [
        (),
        ("width-0.5",),
    ]


def test_a_task_that_trains_no_parts_has_none_of_the_bundle(make_task):
    main = Bundle.open(shipped_folder("digits-wrn-10-1"))
    assert open_family(make_task("full", "few-shot"), main) == {}
    assert list(open_family(make_task("full", "width-slice"), main)) == ["width-0.5"]
    assert (
        open_family(Task(bundle="b"), main) == {}
    )  # by default parts are for losses that are not of classes
