import argparse
import logging

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import systems as training
from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.operator.serve import add_arguments, task_of

KINDS = "full,few-shot,zeroth-order,class-means"


def served(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return task_of(parser.parse_args(["--bundle", "b", *words]))


def settings(task, name):
    return {kind.name: kind.strategy for kind in task.kinds if hasattr(kind.strategy, name)}


def test_learning_rate_epochs_and_batch_size_are_set_on_all_kinds_that_train_in_epochs():
    task = served("--kinds", KINDS, "--lr", "0.02", "--epochs", "3", "--batch", "8")
    for name in ("full", "few-shot"):
        kind = settings(task, "epochs")[name]
        assert (kind.lr, kind.epochs, kind.batch) == (0.02, 3, 8)
    assert settings(task, "join_base")["few-shot"].join_base


def test_kinds_that_train_otherwise_keep_their_learning_rate_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)
    task = served("--kinds", KINDS, "--lr", "0.02")
    usual = settings(served("--kinds", KINDS), "lr")
    rates = settings(task, "lr")
    assert [rates[name].lr for name in ("zeroth-order", "class-means")] == [
        usual[name].lr for name in ("zeroth-order", "class-means")
    ]
    assert "learning rate 0.02: full, few-shot; unchanged: zeroth-order, class-means" in caplog.text


def test_where_only_such_are_offered_the_learning_rate_is_theirs():
    assert settings(served("--kinds", "zeroth-order", "--lr", "0.02"), "lr")["zeroth-order"].lr == 0.02


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--kinds", "zeroth-order", "--epochs", "3"],
            "--epochs 3: no kind offered has local epochs; offered: zer",
        ),
        (["--kinds", "class-means", "--batch", "3"], "--batch 3: no kind offered has batch size"),
    ],
)
def test_what_no_kind_takes_is_refused(words, text):
    with pytest.raises(TaskError, match=text):
        served(*words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--lr", "-1"], "argument --lr: '-1': expected a number, more than 0"),
        (["--epochs", "0"], "argument --epochs: '0': expected a whole number, 1 to 1000000"),
    ],
)
def test_what_no_kind_may_have_is_refused(words, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        served(*words)
    assert text in capsys.readouterr().err


def test_flags_stand_over_the_kinds_of_a_file(tmp_path):
    file = tmp_path / "task.toml"
    file.write_text('bundle = "b"\n[[kinds]]\nname = "full"\nsettings = { epochs = 7, lr = 0.5 }\n')
    kind = settings(served(str(file), "--lr", "0.02"), "lr")["full"]
    assert (kind.lr, kind.epochs) == (0.02, 7)


def test_flags_stand_over_a_system_s_kinds():
    assert settings(served("--system", "fedprox", "--lr", "0.02"), "lr")["full"].lr == 0.02


def test_what_is_not_asked_for_changes_nothing():
    task = Task(bundle="b", kinds=kinds_named(["full"]))
    assert training.SharedSettings().applied(task) == task
