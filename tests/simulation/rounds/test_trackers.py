"""Trackers log rounds, settings and final figures of a run, in the form that their libraries read."""

import json
import struct
import subprocess
import sys
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from device_runtime.cli import main
from device_runtime.simulation.compare import run_folder
from device_runtime.simulation.compare.completing import RunOptions, perform
from device_runtime.simulation.compare.run_folder import RunName, rounds_of
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.callbacks import Callback, CallbackError, ClosedRound, EndedRun
from device_runtime.simulation.rounds.trackers import (
    MLflow,
    TensorBoard,
    TrackerError,
    WandB,
    final_figures,
    flat,
    round_figures,
    tracker_named,
)
from tests.simulation.conftest import ROUND, SMALL

NAME = RunName("choose", 0)


COMMAND = Path(sys.executable).with_name("device-runtime")


class FailsInRound3(Callback):
    def on_round(self, round):  # noqa: A002
        if round.number == 3:
            raise ValueError("stop")


def run(folder, *callbacks):
    perform(SMALL, NAME, folder, RunOptions(ExecutorRequest("plain"), callbacks), NullObserver())
    return rounds_of(folder)


def stopped_and_resumed(folder, monkeypatch, tracker):
    """A run that fails in round 3, and then goes on from round 2."""
    monkeypatch.setattr(run_folder, "EVERY_S", 0.0)
    with pytest.raises(CallbackError):
        run(folder, FailsInRound3(), tracker)
    return run(folder, tracker)


def test_figures_of_a_round_leave_out_what_was_not_evaluated_and_count_every_kind():
    closed = ClosedRound.of(replace(ROUND, eval_acc=nan, eval_loss=nan), {"full": 2})
    assert round_figures(closed, ("full", "few-shot")) == {
        "train_loss": 1.2,
        "seconds": 10.0,
        "energy_j": 30.0,
        "bytes_up": 1000.0,
        "bytes_down": 3000.0,
        "devices": 2.0,
        "asked": 4.0,
        "contributions/full": 2.0,
        "contributions/few-shot": 0.0,
    }


def test_final_figures_are_the_last_accuracy_the_best_one_and_sums():
    better = replace(ROUND, round=2, closed_s=20.0, eval_acc=0.75)
    last = replace(ROUND, round=3, closed_s=30.0, eval_acc=0.5, eval_loss=nan)
    figures = final_figures(EndedRun("choose", 0, (ROUND, better, last)))
    assert figures == {
        "final/accuracy": 0.5,
        "final/best_accuracy": 0.75,
        "final/loss": 1.0,
        "final/seconds": 30.0,
        "final/energy_j": 90.0,
        "final/bytes_up": 3000.0,
        "final/bytes_down": 9000.0,
    }


def test_settings_have_joined_names_and_lists_are_json():
    nested = {
        "devices": 3,
        "task": {"server": {"lr": 0.1, "tau": None}, "kinds": ({"name": "full"},)},
        "fleet": {"groups": {"pi-5": {"share": 1.0}}},
    }
    assert flat(nested) == {
        "devices": 3,
        "task.server.lr": 0.1,
        "task.kinds": '[{"name": "full"}]',
        "fleet.groups": '{"pi-5": {"share": 1.0}}',
    }


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard:", "comet:project", ""])
def test_an_unknown_tracker_is_refused_with_what_is_expected(name):
    with pytest.raises(TrackerError, match=f"tracker '{name}': expected tensorboard:FOLDER, wandb:PROJECT"):
        tracker_named(name)


@pytest.mark.parametrize(
    "name, module, message",
    [
        ("tensorboard:x", "tensorboardX", "TensorBoard needs tensorboardX: pip install tensorboardX"),
        ("wandb:x", "wandb", "WandB needs wandb: pip install wandb"),
        ("mlflow:x", "mlflow", "MLflow needs mlflow: pip install mlflow-skinny sqlalchemy alembic"),
        ("mlflow:http://x", "mlflow", "MLflow needs mlflow: pip install mlflow-skinny"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(name, module, message, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.summary", None)
    with pytest.raises(TrackerError) as caught:
        tracker_named(name)
    assert str(caught.value) == message


def test_the_command_refuses_an_unknown_tracker_before_anything_is_run(tmp_path, capsys):
    folder = tmp_path / "runs"
    assert main(["simulate", "uniform", "--run-dir", str(folder), "--track", "comet:x"]) == 2
    assert "tracker 'comet:x': expected tensorboard:FOLDER" in capsys.readouterr().err
    assert not folder.exists()


def events_of(folder):
    """The events of a folder's files, each a record of a length, a checksum, data and a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def scalars_of(events):
    """By name: pairs of step and value."""
    points = {}
    for event in events:
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                points.setdefault(value.tag, []).append((event.step, value.simple_value))
    return points


def test_tensorboard_gets_every_round_and_the_final_figures(tmp_path):
    pytest.importorskip("tensorboardX")
    lines = run(tmp_path / "run", tracker_named(f"tensorboard:{tmp_path / 'tb'}"))
    events = list(events_of(tmp_path / "tb" / "choose-0"))
    scalars = scalars_of(events)
    assert scalars["accuracy"] == [(line.round, pytest.approx(line.eval_acc)) for line in lines]
    assert scalars["bytes_up"] == [(line.round, line.bytes_up) for line in lines]
    assert scalars["final/accuracy"] == [(3, pytest.approx(lines[-1].eval_acc))]
    kinds = [name for name in scalars if name.startswith("contributions/")]
    assert sum(value for kind in kinds for _, value in scalars[kind]) == sum(x.participants for x in lines)
    times = [event.wall_time for event in events if event.step and event.summary.value[0].tag == "accuracy"]
    assert times == [line.closed_s for line in lines]


def test_tensorboard_gets_the_settings_as_hyper_parameters(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    run(tmp_path / "run", TensorBoard(tmp_path / "tb"))
    plugins = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events_of(tmp_path / "tb" / "choose-0")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    settings = plugins["_hparams_/session_start_info"].session_start_info.hparams
    assert settings["task.rounds"].number_value == 3
    assert settings["policy"].string_value == "choose"
    metrics = [info.name.tag for info in plugins["_hparams_/experiment"].experiment.metric_infos]
    assert "final/accuracy" in metrics
    assert "_hparams_/session_end_info" in plugins


def test_tensorboard_hides_what_a_resumed_run_does_again(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    stopped_and_resumed(tmp_path / "run", monkeypatch, TensorBoard(tmp_path / "tb"))
    events = list(events_of(tmp_path / "tb" / "choose-0"))
    (first, second) = [event.step for event in events if event.session_log.status]
    assert (first, second) == (0, 3)
    assert [step for step, _ in scalars_of(events)["accuracy"]] == [1, 2, 3]


def test_tensorboard_itself_reads_the_files(tmp_path):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    lines = run(tmp_path / "run", TensorBoard(tmp_path / "tb"))
    read = accumulator.EventAccumulator(str(tmp_path / "tb" / "choose-0")).Reload()
    assert [point.value for point in read.Scalars("accuracy")] == pytest.approx(
        [line.eval_acc for line in lines]
    )
    assert read.Scalars("final/accuracy")[0].step == 3
    assert "_hparams_/session_start_info" in read.summary_metadata


def test_the_command_gives_its_trackers_to_the_processes_of_its_runs(tmp_path):
    pytest.importorskip("tensorboardX")
    words = ["uniform", "--devices", "3", "--rounds", "2", "--compare", "kinds=choose,drop"]
    track = ["--track", "tensorboard:one", "--track", "tensorboard:two"]
    subprocess.run([COMMAND, "simulate", *words, *track, "--run-dir", "runs"], check=True, cwd=tmp_path)
    for folder in ("one/choose-0", "one/drop-0", "two/choose-0", "two/drop-0"):
        accuracy = scalars_of(events_of(tmp_path / folder))["accuracy"]
        assert [step for step, _ in accuracy] == [1, 2]


@pytest.mark.slow
def test_mlflow_keeps_rounds_settings_and_final_figures(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    lines = run(tmp_path / "run", tracker_named(f"mlflow:{tmp_path / 'ml'}"))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("device-runtime")
    (stored,) = client.search_runs([experiment.experiment_id])
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", "choose-0")
    assert (stored.data.params["task.rounds"], stored.data.params["policy"]) == ("3", "choose")
    points = [
        (point.step, point.value) for point in client.get_metric_history(stored.info.run_id, "accuracy")
    ]
    assert points == [(line.round, pytest.approx(line.eval_acc)) for line in lines]
    assert stored.data.metrics["final/bytes_up"] == sum(line.bytes_up for line in lines)


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    stopped_and_resumed(tmp_path / "run", monkeypatch, MLflow(tmp_path / "ml", "mine"))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}")
    (stored,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert stored.info.status == "FINISHED"
    points = client.get_metric_history(stored.info.run_id, "accuracy")
    assert [point.step for point in points] == [1, 2, 3]


@pytest.mark.slow
def test_wandb_keeps_rounds_settings_and_final_figures_offline(tmp_path):
    pytest.importorskip("wandb")
    lines = run(tmp_path / "run", WandB("mine", mode="offline", folder=tmp_path))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    records = list(wandb_records(next(folder.glob("*.wandb"))))
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        for item in (*record.run.config.update, *record.config.update)
    }
    assert (config["policy"], config["task"]["rounds"]) == ("choose", 3)
    history = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    rounds = [row for row in history if "accuracy" in row]
    assert [row["round"] for row in rounds] == [1, 2, 3]
    assert [row["accuracy"] for row in rounds] == [line.eval_acc for line in lines]
    assert history[-1]["final/energy_j"] == sum(line.energy_j for line in lines)
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]


def wandb_records(path):
    """The records of a log in LevelDB's format: blocks of 32 KiB after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        length, part = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # all of a record, or its last part
            yield Record.FromString(whole)
            whole = b""
        if (left := -at % 32768) < 7:  # no header fits: the block is filled up
            at += left
