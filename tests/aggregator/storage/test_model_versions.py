"""Versions of the served model: kept, listed, gone back to; and a kill at any moment."""

import fcntl
import json
import os
import subprocess
import sys
import threading

import numpy as np
import onnxruntime
import pytest

from device_runtime import cli
from device_runtime.aggregator.errors import RollbackError, RunFolderError
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.aggregator.rounds import run as run_module
from device_runtime.aggregator.rounds.runner import RoundRunner
from device_runtime.aggregator.storage import bases, run_files
from device_runtime.aggregator.storage.model_versions import ModelVersions, versions_in
from device_runtime.broker.wire import step_log as log
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle

DATABASES = ("sqlite", "postgres")


def play(bench, task, update_of, rounds, kind="few-shot"):
    """A service after so many rounds of one device."""
    b = bench(task)
    b.join("a")
    for number in range(1, rounds + 1):
        send(b, update_of, number, kind)
    return b


def send(b, update_of, number, kind="few-shot"):
    return b.contribute("a", b.contribution(kind, update_of(kind, number), number))


def deployed(b):
    return (b.folder / "served.safetensors").read_bytes()


def of_round(b, number):
    return b.store.models.get(b.store.rounds.made(number).served)


def versions(b):
    return b.service.rounds.registry.versions()


def test_every_served_model_is_a_version_and_the_latest_is_served(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=5), update_of, 3)
    listing = versions(b)
    assert [version.round for version in listing] == [1, 2, 3]
    assert [version.served for version in listing] == [False, False, True]
    assert all(version.kept and version.published_s > 1.7e9 for version in listing)
    assert len({version.sha256 for version in listing}) == 3
    assert deployed(b) == of_round(b, 3)


def test_only_the_latest_are_kept_and_never_less_than_what_is_served(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=6, keep_versions=2), update_of, 5)
    assert [version.kept for version in versions(b)] == [False, False, False, True, True]
    with pytest.raises(
        RollbackError, match=r"round 2 is not kept any more, or damaged; those of rounds 4, 5 are"
    ):
        b.service._run.go_back(2)


def test_the_version_that_was_gone_back_to_outlives_the_retention(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=9, keep_versions=2), update_of, 3)
    b.service._run.go_back(2)
    for number in (4, 5, 6):
        send(b, update_of, number)
    assert deployed(b) == of_round(b, 6)
    assert [version.kept for version in versions(b)][-2:] == [True, True]


def test_going_back_serves_the_model_at_once_and_is_the_next_base(bench, make_task, update_of):
    b = play(bench, make_task("full", rounds=6), update_of, 3, "full")
    weights = bases.made_weights(b.store, 1, b.service.rounds.manifest)
    b.service._run.go_back(1)
    assert deployed(b) == of_round(b, 1)
    assert [version.served for version in versions(b)] == [True, False, False]
    receipt = send(b, update_of, 4, "full")[0]  # of the round that was open: it is given up
    assert receipt.status == "accepted"
    for name, value in b.weights(b.offer.base).items():
        np.testing.assert_array_equal(value, weights[name])
    assert b.offer.round == 5
    assert deployed(b) == of_round(b, 1) == of_round(b, 4)
    assert b.store.rounds.closed(4)[0].note == (
        "went back to the model of round 1; what came for this round does not count"
    )
    send(b, update_of, 5, "full")
    assert deployed(b) == of_round(b, 5) != of_round(b, 1)


def test_what_comes_late_from_before_does_not_count_in_what_was_gone_back_to(bench, make_task, update_of):
    """Round 2 was made of round 1's model, which is gone back to; rounds 3 and 4 of what is given up."""
    b = play(bench, make_task("full", rounds=9, late="count"), update_of, 3, "full")
    b.service._run.go_back(1)
    send(b, update_of, 4, "full")
    b.join("b")
    for number, restarts in [(2, False), (3, False), (4, False), (4, True)]:
        if restarts:
            b.restart()
            b.join("a", "b")
        receipt = b.contribute("b", b.contribution("full", update_of("full", 50 + number), number))[0]
        assert receipt.status == "late"
        assert "was discarded: the run was rolled back to an earlier model" in receipt.reason
    assert b.service.state.contributions == 0
    late = b.contribute("b", b.contribution("full", update_of("full", 60), 1))[0]
    assert late.status == "accepted"


def test_zeroth_order_steps_since_then_are_not_taken(bench, make_task, update_of):
    b = play(bench, make_task("zeroth-order", rounds=6), update_of, 3, "zeroth-order")
    weights = bases.made_weights(b.store, 2, b.service.rounds.manifest)
    b.service._run.go_back(2)
    send(b, update_of, 4, "zeroth-order")
    assert b.offer.base.steps == 0
    for name, value in b.weights(b.offer.base).items():
        np.testing.assert_array_equal(value, weights[name])
    send(b, update_of, 5, "zeroth-order")
    assert b.offer.base.steps == 1
    b.restart()
    assert b.service.rounds.weights(6).keys() == weights.keys()  # its hash is looked at


def test_a_kill_between_the_word_and_the_file_serves_what_was_asked_for(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 3)
    b.service.rounds.registry.go_back(1)  # and then the process is gone
    assert deployed(b) == of_round(b, 3)
    b.restart()
    assert deployed(b) == of_round(b, 1)


@pytest.mark.parametrize("dies_in", ["merged", "evaluated", "publish", "close"])
def test_a_kill_in_any_phase_of_the_round_that_is_given_up_ends_the_same(
    bench, make_task, update_of, dies_in, monkeypatch
):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 2)
    b.service._run.go_back(1)
    with monkeypatch.context() as patched:
        owner = b.store.history if dies_in == "publish" else b.store.rounds
        patched.setattr(owner, dies_in, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            send(b, update_of, 3)
    b.restart()
    assert deployed(b) == of_round(b, 1) == of_round(b, 3)
    assert b.service.state.round == 4
    assert b.store.rounds.start(4).base.sha == b.store.rounds.start(2).base.sha


@pytest.mark.parametrize(
    ("to", "text"),
    [(0, "round 0 has served no model; rounds 1 to 2 did"), (3, "round 3 has served no model")],
)
def test_a_version_that_never_was_is_refused(bench, make_task, update_of, to, text):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 2)
    with pytest.raises(RollbackError, match=text):
        b.service._run.go_back(to)


@pytest.mark.parametrize("which", [0, -1], ids=["base", "served"])
def test_a_version_that_is_damaged_on_disk_is_not_gone_back_to(bench, make_task, update_of, which):
    b = play(bench, make_task("full", rounds=6), update_of, 3, "full")
    blob = b.store.rounds.made(1).blobs[which]
    path = b.store.models.path(blob.sha)
    path.write_bytes(bytes(path.stat().st_size))
    before = deployed(b)
    run_files.request_rollback(b.folder, 1)
    b.wait(0.1)
    assert deployed(b) == before
    b.restart()
    assert (b.service.state.phase, b.service.state.round) == ("collect", 4)


@pytest.mark.parametrize("damaged", [(1,), (1, 3), (1, 2, 3)])
def test_a_run_ends_with_the_latest_sound_model_where_the_best_is_damaged(
    bench, make_task, update_of, caplog, damaged
):
    b = play(bench, make_task("full", rounds=6), update_of, 3, "full")
    for number in damaged:
        path = b.store.models.path(b.store.rounds.made(number).served.sha)
        path.write_bytes(bytes(path.stat().st_size))
    if damaged == (1, 2, 3):
        with pytest.raises(RollbackError, match="no model that was served is kept and sound"):
            b.service.rounds.registry.end_with(1)
        return
    b.service.rounds.registry.end_with(1)
    instead = 2 if 3 in damaged else 3
    assert deployed(b) == of_round(b, instead)
    assert f"the best model, that of round 1, is lost: that of round {instead} is served" in caplog.text
    b.service.rounds.registry.end_with(1)  # as in the next life
    assert deployed(b) == of_round(b, instead)


def test_before_any_round_there_is_nothing_to_go_back_to(bench, make_task):
    b = bench(make_task("few-shot"))
    with pytest.raises(RollbackError, match="round 1 has served no model; no round did"):
        b.service._run.go_back(1)


def test_a_done_run_serves_what_it_is_set_back_to(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=3), update_of, 3)
    assert b.service.state.phase == "done"
    b.service._run.go_back(2)
    b.restart()
    assert (b.service.state.phase, deployed(b)) == ("done", of_round(b, 2))
    assert b.offer.base.sha == b.store.rounds.made(2).served.sha


def test_what_is_asked_for_in_the_run_folder_is_done_and_the_word_removed(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 3)
    run_files.request_rollback(b.folder, 2)
    b.wait(0.1)
    assert deployed(b) == of_round(b, 2)
    assert run_files.requested_round(b.folder) is None
    run_files.request_rollback(b.folder, 77)  # cannot be done: said, and forgotten
    b.wait(0.1)
    assert run_files.requested_round(b.folder) is None
    for text in (b"two\n", b"\xff\n", b"9" * 5000):
        (b.folder / run_files.ROLLBACK_FILE).write_bytes(text)
        b.wait(0.1)
        assert not (b.folder / run_files.ROLLBACK_FILE).exists()
    assert deployed(b) == of_round(b, 2)


ASKER = """
import sys
from pathlib import Path
from device_runtime.aggregator.storage import run_files
for to in range(1, 301):
    run_files.request_rollback(Path(sys.argv[1]), to)
"""


def test_several_who_ask_at_one_time_are_all_heard_and_the_last_is_followed(tmp_path):
    asking = [subprocess.Popen([sys.executable, "-c", ASKER, str(tmp_path)]) for _ in range(3)]
    while any(process.poll() is None for process in asking):
        assert run_files.requested_round(tmp_path) in (None, *range(1, 301))
    assert [process.returncode for process in asking] == [0, 0, 0]
    assert run_files.requested_round(tmp_path) == 300
    assert [path.name for path in tmp_path.iterdir()] == [run_files.ROLLBACK_FILE]


def test_what_is_asked_for_as_an_earlier_wish_is_taken_away_is_not_lost(tmp_path, monkeypatch):
    asking = threading.Thread(target=run_files.request_rollback, args=(tmp_path, 2))
    real = run_files.requested_round

    def slowly(folder):
        wish = real(folder)
        asking.start()
        asking.join(0.3)
        return wish

    run_files.request_rollback(tmp_path, 1)
    monkeypatch.setattr(run_files, "requested_round", slowly)
    run_files.clear_request(tmp_path, 1)
    asking.join()
    assert real(tmp_path) == 2


def test_who_is_stopped_as_it_asks_does_not_hold_up_the_rounds(tmp_path):
    run_files.request_rollback(tmp_path, 1)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run_files.clear_request(tmp_path, 1)
    assert run_files.requested_round(tmp_path) == 1
    os.close(handle)
    run_files.clear_request(tmp_path, 1)
    assert run_files.requested_round(tmp_path) is None


def test_the_command_lists_beside_a_running_aggregator_and_asks_it(bench, make_task, update_of, capsys):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 3)
    assert cli.main(["models", str(b.folder), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["round"], row["served"], row["kept"]) for row in listed] == [
        (1, False, True),
        (2, False, True),
        (3, True, True),
    ]
    assert cli.main(["models", str(b.folder), "--rollback", "1"]) == 0
    assert "asked the aggregator" in capsys.readouterr().out
    b.wait(0.1)
    assert deployed(b) == of_round(b, 1)
    assert cli.main(["models", str(b.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("->")).split()[1] == "1"


@pytest.mark.parametrize(
    ("rounds", "more"), [(6, "the next round goes on from it"), (3, "its rounds are over")]
)
def test_the_command_goes_back_by_itself_where_no_aggregator_runs(
    bench, make_task, update_of, capsys, rounds, more
):
    b = play(bench, make_task("few-shot", rounds=rounds), update_of, 3)
    b.service.close()
    assert cli.main(["models", str(b.folder), "--rollback", "2"]) == 0
    assert f"serves the model of round 2; {more}" in capsys.readouterr().out
    b.restart()
    assert deployed(b) == of_round(b, 2)


def test_the_served_model_is_written_as_one_onnx_file_that_gives_its_logits(
    bench, make_task, update_of, capsys, tmp_path
):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 3)
    file = tmp_path / "model.onnx"
    assert cli.main(["models", str(b.folder), "--export-onnx", str(file)]) == 0
    assert "the model of round 3" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    bundle = Bundle.open(bundles.find_bundle(b.service.rounds.task.bundle))
    x = np.random.default_rng(0).standard_normal((5, *bundle.manifest.input.shape)).astype(np.float32)
    [logits] = session.run(["logits"], {"x": x})
    served = OnnxModel(bundle, tensors.decode(deployed(b)))
    assert np.array_equal(logits, served.logits(x))
    assert not np.allclose(logits, OnnxModel(bundle).logits(x))
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["task"], metadata["round"]) == (b.service.rounds.task.name, "3")
    assert json.loads(metadata["labels"]) == list(bundle.manifest.labels)


def test_where_nothing_is_served_yet_no_onnx_file_is_written(bench, make_task, capsys, tmp_path):
    b = bench(make_task("few-shot", rounds=6))
    file = tmp_path / "model.onnx"
    assert cli.main(["models", str(b.folder), "--export-onnx", str(file)]) == 2
    assert "serves no model yet" in capsys.readouterr().err
    assert not file.exists()


def test_a_folder_that_cannot_be_written_is_no_running_aggregator(bench, make_task, update_of, capsys):
    b = play(bench, make_task("few-shot", rounds=6), update_of, 3)
    b.service.close()
    lock = b.folder / "lock"
    lock.unlink()
    lock.mkdir()
    assert cli.main(["models", str(b.folder), "--rollback", "2"]) != 0
    assert f"cannot use run folder {b.folder}" in capsys.readouterr().err
    assert run_files.requested_round(b.folder) is None


def test_the_command_refuses_what_is_not_there(tmp_path, bench, make_task, update_of, capsys):
    assert cli.main(["models", str(tmp_path)]) != 0
    assert "is no run folder" in capsys.readouterr().err
    b = play(bench, make_task("few-shot", rounds=6, keep_versions=1), update_of, 3)
    assert cli.main(["models", str(b.folder), "--rollback", "1"]) != 0
    assert "no model of round 1 is kept" in capsys.readouterr().err
    with pytest.raises(RunFolderError):
        versions_in(tmp_path / "none")


def test_a_registry_that_keeps_all_keeps_all(bench, make_task, update_of):
    b = play(bench, make_task("few-shot", rounds=14, keep_versions=0), update_of, 12)
    assert all(version.kept for version in versions(b))
    assert ModelVersions(b.store, 0).served() == 12


def test_what_is_asked_for_while_another_request_is_followed_comes_next(bench, make_task, monkeypatch):
    b, followed = bench(make_task("class-means")), []

    def go_back(conductor, to):
        followed.append(to)
        if to == 1:
            run_files.request_rollback(b.folder, 2)

    monkeypatch.setattr(RoundRunner, "go_back", go_back)
    run_files.request_rollback(b.folder, 1)
    for _ in range(3):
        b.service.tick()
    assert followed == [1, 2]


@pytest.fixture
def short_segments(monkeypatch):
    """A checkpoint every four steps, and as many in an offer."""
    for module in (bases, log, run_module):
        monkeypatch.setattr(module, "SEGMENT", 4)
    for module in (log, run_module):
        monkeypatch.setattr(module, "TAIL", 2)


def stored_rounds(b):
    """The rounds of the steps that are in the database."""
    return [row["round"] for row in b.store._db.rows("SELECT round FROM steps ORDER BY round, position")]


def test_steps_that_lead_to_nothing_that_is_kept_are_forgotten(bench, make_task, update_of, short_segments):
    """Models of rounds 8 and 12 are checkpoints; the last two steps stand in the offer."""
    b = play(bench, make_task("zeroth-order", rounds=20, keep_versions=2), update_of, 9, "zeroth-order")
    assert stored_rounds(b) == [8, 9]
    for number in (10, 11, 12, 13):
        send(b, update_of, number, "zeroth-order")
    assert stored_rounds(b) == [12, 13]
    b.restart()
    b.join("a")
    send(b, update_of, 14, "zeroth-order")
    b.wait(SETTLE_S)
    assert stored_rounds(b) == [13, 14]
    b.store.latest = None  # else it is remembered
    assert b.service.rounds.weights(15)  # its hash is looked at
    assert [version.round for version in versions(b) if version.kept] == [13, 14]
    weights = bases.made_weights(b.store, 13, b.service.rounds.manifest)
    b.service._run.go_back(13)
    send(b, update_of, 15, "zeroth-order")
    assert b.offer.round == 16
    assert all(np.array_equal(b.weights(b.offer.base)[name], value) for name, value in weights.items())


def test_steps_to_an_old_model_are_kept_as_long_as_that_is(bench, make_task, update_of, short_segments):
    b = play(bench, make_task("zeroth-order", rounds=20, keep_versions=5), update_of, 9, "zeroth-order")
    assert [version.round for version in versions(b) if version.kept] == [5, 6, 7, 8, 9]
    assert stored_rounds(b) == [5, 6, 7, 8, 9]
    expected = bases.made_weights(b.store, 6, b.service.rounds.manifest)
    b.service._run.go_back(6)
    send(b, update_of, 10, "zeroth-order")
    assert b.offer.round == 11
    assert all(np.array_equal(b.weights(b.offer.base)[name], value) for name, value in expected.items())


def test_a_model_whose_steps_are_gone_is_not_kept_though_its_blobs_are(bench, make_task, update_of):
    b = play(bench, make_task("zeroth-order", rounds=20), update_of, 4, "zeroth-order")
    assert b.store.step_history.has(5, 4)
    b.store.step_history.forget([(5, 2)])
    assert stored_rounds(b) == [3, 4]
    assert not any(version.kept for version in versions(b))
    with pytest.raises(RollbackError, match="round 4 is not kept any more"):
        b.service._run.go_back(4)
