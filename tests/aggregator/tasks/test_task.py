from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import KindSettings, kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg


def test_by_default_all_kinds_are_offered_in_the_registrys_order_and_join_one_base():
    kinds = Task(bundle="b").kinds
    assert [kind.name for kind in kinds] == list(registry.OFFERED_KINDS)
    own = {kind.name: {**kind.settings} for kind in kinds}
    assert [settings.pop("statistics") for settings in own.values()] == [
        msgspec.to_builtins(ClassStatistics())
    ] * len(own)
    assert {name: settings for name, settings in own.items() if settings} == {
        "full": {"graded": True, "weigh_epochs": True},
        "width-slice": {"graded": True, "weigh_epochs": True},
        "entropy-subset": {"least_samples": 10, "graded": True, "weigh_epochs": True},
        "few-shot": {"join_base": True, "least_samples": 40},
        "class-means": {"head": "trained"},
    }


def test_a_task_that_names_no_kinds_is_told_from_one_that_names_the_same_ones(tmp_path):
    none, same = Task(bundle="b"), Task(bundle="b", kinds=kinds_named(registry.OFFERED_KINDS))
    assert (none.kinds, none.order, same.order) == (same.kinds, "default", "listed")
    for task in (none, same):
        longer = msgspec.structs.replace(task, rounds=7)
        again = tasks.decode(longer.json())
        assert (again.order, again.json()) == (task.order, longer.json())
    file = tmp_path / "task.toml"
    file.write_text('bundle = "b"\n')
    assert tasks.load(file, {}).order == "default"
    assert tasks.load(file, {}, registry.OFFERED_KINDS).order == "listed"


def test_other_kinds_in_a_task_that_named_none_are_preferred_as_listed():
    none, two = Task(bundle="b"), kinds_named(["class-means", "full"])
    assert none.naming(two).order == msgspec.structs.replace(none, kinds=two).order == "listed"
    assert none.naming(none.kinds).order == "listed"
    assert Task(bundle="b", kinds=two, order="gain").naming(two).order == "gain"


def test_an_order_without_kinds_is_refused(tmp_path):
    with pytest.raises(TaskError, match="order has no effect without kinds: give both, or neither"):
        tasks.load(None, {"bundle": "b", "order": "gain"})


def test_a_kind_that_is_alone_keeps_its_papers_settings():
    for name in ("few-shot", "class-means"):
        assert kinds_named([name])[0].strategy == registry.make(name)


def test_every_hyperparameter_stands_in_the_offer():
    offered = Task(bundle="b", kinds=(KindSettings(name="full", settings={"epochs": 3}),)).offer_kinds(1)
    fields = msgspec.msgpack.decode(offered[0].settings)
    assert fields == {**registry.settings(FedAvg()), "epochs": 3}


def test_equal_tasks_are_equal_bytes_however_they_are_written():
    short = Task(bundle="b", kinds=(KindSettings(name="full"),))
    long = Task(bundle="b", kinds=(KindSettings(name="full", settings=msgspec.to_builtins(FedAvg())),))
    assert short.json() == long.json()
    assert tasks.decode(short.json()).json() == short.json()


def test_kinds_are_offered_from_their_round_on():
    late = Task(bundle="b", kinds=(KindSettings(name="full"), KindSettings(name="few-shot", from_round=3)))
    assert [len(late.offered(number)) for number in (1, 2, 3, 4)] == [1, 1, 2, 2]


def test_a_kind_can_train_more_epochs_in_its_first_round():
    """As the models of Shi 2025 that train alone before the rounds (5.6), or in one pass (6.4.1)."""
    kind = KindSettings(name="full", settings={"epochs": 5}, from_round=2, first_epochs=40)
    task = Task(bundle="b", kinds=(KindSettings(name="few-shot"), kind))
    epochs = [[strategy.strategy.epochs for strategy in task.offered(number)] for number in (1, 2, 3)]
    assert epochs == [[10], [10, 40], [10, 5]]
    assert registry.read(task.offer_kinds(2)[1]).epochs == 40
    assert task.kinds[1].strategy.epochs == 5
    graded = msgspec.structs.replace(kind, settings={"epochs": 5, "graded": True})
    assert [form.epochs for form in graded.of_round(2).strategy.variants()] == [40]
    assert [form.epochs for form in graded.of_round(3).strategy.variants()] == [5, 2, 1]


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("class-means", {}, "first_epochs of class-means: this kind does not train in epochs"),
        ("full", {"reduced_epochs": 4}, "reduced_epochs is 4, expected 1 to 3, the epochs"),
    ],
)
def test_epochs_of_a_first_round_that_cannot_be_meant_are_refused(name, settings, text):
    with pytest.raises(TaskError, match=text):
        KindSettings(name=name, settings=settings, first_epochs=3)


def test_round_seeds_differ_are_repeatable_and_fit_a_double():
    task, other = Task(bundle="b", seed=1), Task(bundle="b", seed=2)
    seeds = [t.round_seed(n) for t in (task, other) for n in range(1, 100)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**53
    assert task.round_seed(5) == Task(bundle="c", seed=1).round_seed(5)


def test_a_task_file_is_read_and_flags_stand_over_it(tmp_path):
    (tmp_path / "test.npz").write_bytes(b"")
    file = tmp_path / "digits.toml"
    file.write_text(
        'bundle = "digits-wrn-10-1"\nrounds = 7\neval_data = "test.npz"\n'
        '[[kinds]]\nname = "full"\nsettings = { epochs = 2 }\nweight = 0.5\n'
    )
    task = tasks.load(file, {"rounds": 3})
    assert (task.name, task.rounds, task.eval_data) == ("digits", 3, str(tmp_path / "test.npz"))
    assert task.kinds == (KindSettings(name="full", settings={"epochs": 2}, weight=0.5),)


def test_paths_of_a_file_and_of_flags_are_full_wherever_the_file_is_read_from(tmp_path, monkeypatch):
    """What the run is begun with is compared at each start, which may be from another folder."""
    site = tmp_path / "site"
    (site / "own" / "small").mkdir(parents=True)
    for name in ("test.npz", "f1.py"):
        (site / "own" / name).write_bytes(b"")
    (site / "task.toml").write_text(
        'bundle = "digits-wrn-10-1"\neval_data = "own/test.npz"\nfamily = ["own/small"]\n'
        'metrics = ["top-2", "own/f1.py:f1"]\n'
    )
    (site / "server.toml").write_text('tasks = ["task.toml"]\nrun_dir = "run"\n')
    read = []
    for folder, file in (
        (tmp_path, "site/server.toml"),
        (site, "server.toml"),
        (site / "own", "../server.toml"),
    ):
        monkeypatch.chdir(folder)
        server = config.load(Path(file), {})
        assert server.run_dir == site / "run"
        read.append(tasks.load(server.tasks[0], {}))
    own = site / "own"
    assert read[0] == read[1] == read[2]
    assert read[0].eval_data == f"{own}/test.npz"
    assert (read[0].family, read[0].metrics) == ((f"{own}/small",), ("top-2", f"{own}/f1.py:f1"))
    monkeypatch.chdir(own)
    (own / "digits-wrn-10-1").mkdir()  # no bundle: the shipped one is meant
    flagged = tasks.load(None, {"bundle": "digits-wrn-10-1", "eval_data": "test.npz", "family": ("small",)})
    assert (flagged.bundle, flagged.eval_data) == ("digits-wrn-10-1", f"{own}/test.npz")
    assert flagged.family == (f"{own}/small",)


def test_kinds_that_are_named_are_those_of_the_file_where_it_has_them(tmp_path):
    file = tmp_path / "digits.toml"
    file.write_text('bundle = "b"\n[[kinds]]\nname = "full"\nmax_norm = 3.0\nsettings = { lr = 0.01 }\n')
    full, means = tasks.load(file, {}, ["full", "class-means"]).kinds
    assert (full.max_norm, full.strategy.lr, full.strategy.graded, means.max_norm) == (3.0, 0.01, True, None)
    for wrong in ("kinds = 5", "kinds = [5, { name = [] }]"):
        file.write_text(f'bundle = "b"\n{wrong}\n')
        assert [kind.name for kind in tasks.load(file, {}, ["full"]).kinds] == ["full"]
        with pytest.raises(TaskError, match=r"digits\.toml: kinds"):
            tasks.load(file, {})


def test_kinds_that_share_no_round_have_the_settings_of_their_papers(tmp_path):
    file = tmp_path / "digits.toml"
    file.write_text(
        'bundle = "b"\n[[kinds]]\nname = "class-means"\nuntil_round = 1\n'
        '[[kinds]]\nname = "full"\nfrom_round = 2\n'
    )
    means, full = (kind.strategy for kind in tasks.load(file, {}).kinds)
    assert (means.head, full.graded) == ("normalised-means", False)


def test_kinds_of_a_task_file_may_be_names(tmp_path):
    file = tmp_path / "digits.toml"
    few = '{ name = "few-shot", settings = { least_samples = 7 } }'
    file.write_text(f'bundle = "b"\nkinds = ["full", {few}]\n')
    full, few_shot = (kind.strategy for kind in tasks.load(file, {}).kinds)
    assert (full.graded, few_shot.join_base, few_shot.least_samples) == (True, True, 7)


def test_several_kinds_of_a_task_file_have_the_usual_settings_that_it_does_not_set(tmp_path):
    file = tmp_path / "digits.toml"
    file.write_text(
        'bundle = "b"\n[[kinds]]\nname = "full"\nsettings = { epochs = 2 }\n'
        '[[kinds]]\nname = "few-shot"\nsettings = { least_samples = 7 }\n'
    )
    full, few_shot = (kind.strategy for kind in tasks.load(file, {}).kinds)
    assert (full.epochs, full.graded, few_shot.join_base, few_shot.least_samples) == (2, True, True, 7)
    file.write_text(file.read_text().replace("epochs = 2", "reduced_epochs = 2"))
    assert not tasks.load(file, {}).kinds[0].strategy.graded  # it says how few epochs slow devices train
    written = tasks.decode(b'{"bundle": "b", "kinds": [{"name": "full"}, {"name": "few-shot"}]}')
    assert not written.kinds[0].strategy.graded  # a run that has begun keeps its settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "which model is to be learnt"),
        ({"bundle": "b", "rounds": 0}, "rounds is 0, expected 1 or more"),
        (
            {"bundle": "b", "round_deadline_s": 0.0},
            "round_deadline_s is 0.0, expected more than 0",
        ),
        ({"bundle": "b", "round_deadline_s": float("nan")}, "round_deadline_s is nan"),
        ({"bundle": "b", "kinds": []}, "round 1 offers no kind"),
        ({"bundle": "b", "kinds": [{"name": "ful"}]}, "no kind of update is called 'ful'"),
        ({"bundle": "b", "kinds": [{"name": "full", "settings": {"epochs": "x"}}]}, "settings of full"),
        (
            {"bundle": "b", "kinds": [{"name": "full", "settings": {"epoch": 3}}]},
            "no setting 'epoch'",
        ),
        ({"bundle": "b", "kinds": [{"name": "full", "weight": 0}]}, "weight of full is 0"),
        ({"bundle": "b", "kinds": [{"name": "full"}, {"name": "full"}]}, "each can be offered once"),
        (
            {"bundle": "b", "round": 3},
            "task: round: there is no such key; there are bundle, name, title, about, ask, ",
        ),
        ({"bundle": "b", "late": "never"}, "'never'"),
        ({"bundle": "b", "ask": "x" * 201}, "expected a line of at most 200 characters"),
        ({"bundle": "b", "title": "a\nb"}, r"title is 'a\nb', expected a line of at most 64 characters"),
        ({"bundle": "b", "name": "a/b"}, "task name 'a/b'"),
        (
            {"bundle": "b", "ask_all_rounds": 1, "buffer_size": 3},
            "ask_all_rounds and buffer_size: a buffered round does not wait for all devices",
        ),
        ({"bundle": "b", "devices_per_round": 0}, "devices_per_round is 0, expected 1 or more"),
        (
            {"bundle": "b", "devices_per_round": 2, "min_contributions": 3},
            "devices_per_round is 2, min_contributions 3: no round would have enough",
        ),
        ({"bundle": "b", "buffer_size": -1}, "buffer_size is -1, expected 0 or more"),
        ({"bundle": "b", "max_staleness": -1}, "max_staleness is -1, expected 0 or more"),
        ({"bundle": "b", "staleness_weight": -0.5}, "staleness_weight is -0.5, expected 0 or more"),
        ({"bundle": "b", "staleness_weight": float("inf")}, "staleness_weight is inf"),
        ({"bundle": "b", "robust": "mode"}, "'mode'"),
        ({"bundle": "b", "robust_trim": 0.5}, "robust_trim is 0.5, expected more than 0 and less than 0.5"),
        ({"bundle": "b", "robust_clip": 0.0}, "robust_clip is 0.0, expected more than 0"),
        ({"bundle": "b", "robust_byzantine": -1}, "robust_byzantine is -1, expected 0 or more"),
        ({"bundle": "b", "deadline_quantile": 0.0}, "deadline_quantile is 0.0, expected more than 0 to 1"),
        ({"bundle": "b", "deadline_margin": 0.5}, "deadline_margin is 0.5, expected 1 or more"),
        (
            {"bundle": "b", "deadline_quantile": 0.9, "buffer_size": 2},
            "buffer_size and deadline_quantile: a round closes in one way, give one of them",
        ),
        (
            {"bundle": "b", "deadline_quantile": 0.9, "deadline_least_s": 99.0},
            "deadline_least_s is 99, round_deadline_s, the longest, is 60",
        ),
        ({"bundle": "b", "stop_after": -1}, "stop_after is -1, expected 0 or more"),
        ({"bundle": "b", "stop_gain": -0.1}, "stop_gain is -0.1, expected 0 or more"),
        ({"bundle": "b", "keep_versions": -1}, "keep_versions is -1, expected 0 or more"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_in_one_line(settings, text):
    with pytest.raises(TaskError) as error:
        tasks.load(None, settings)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rounds": "5"}, "rounds is '5': expected `int`, got `str`"),
        ({"rounds": 2.5}, "rounds is 2.5: expected `int`, got `float`"),
        ({"family": "ab"}, "family is 'ab': expected `array`, got `str`"),
        ({"late": "never"}, "late is 'never': expected one of 'discard', 'count'"),
        ({"masks": {"helpers": ["a"]}}, "masks is {'helpers': ['a']}: mask helper 'a': expected NAME=KEY"),
    ],
)
def test_values_of_another_type_are_refused_in_python_as_in_a_file(settings, text):
    with pytest.raises(TaskError) as error:
        Task(bundle="b", **settings)
    assert text in str(error.value)


def test_values_that_a_file_would_have_otherwise_become_those_of_the_setting():
    settings = {"rounds": np.int64(3), "family": ["small"], "statistics": {"numbers": "int8"}}
    task = Task(bundle="b", **settings)
    assert (type(task.rounds), task.family, task.statistics.numbers) == (int, ("small",), "int8")


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("a = = b")
    with pytest.raises(TaskError, match=r"bad\.toml is not TOML"):
        tasks.load(tmp_path / "bad.toml", {})
    with pytest.raises(TaskError, match=r"cannot read .*none\.toml: no such file"):
        tasks.load(tmp_path / "none.toml", {})


def test_a_head_in_closed_form_needs_no_second_moments():
    task = Task(bundle="b", statistics=ClassStatistics(moments=False))
    assert task.closed_form
    assert not any(kind.strategy.statistics.moments for kind in task.kinds)
