import json

import numpy as np
import pytest

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.cli import main
from device_runtime.device.personal.kept import PersonalModelStore, RoundEvaluation
from device_runtime.models.bundles.tensors import encode
from device_runtime.models.training.heads import Evaluation


@pytest.fixture
def device(tmp_path, bundle):
    """The folder of a device that keeps the shipped model."""
    folder = tmp_path / "state" / "pi"
    folder.mkdir(parents=True)
    blob = blob_of(encode(bundle.weights()))
    offer = Offer(
        task="digits", run="r", round=4, seed=5, deadline_s=9.0, remaining_s=9.0,
        bundle=blob, base=Base(checkpoint=(blob,), sha=blob.sha), kinds=(),
    )  # fmt: skip
    PersonalModelStore(folder).keep(offer, bundle, bundle.weights())
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8)))
    return folder


def test_what_is_kept_is_told_and_how_good_it_is(device, capsys):
    assert main(["predict", "--state-dir", str(device)]) == 0
    summary = "digits-wrn-10-1, task 'digits', the model of round 3"
    assert capsys.readouterr().out == f"{summary}, not evaluated on this device yet\n"
    PersonalModelStore(device).judge(
        RoundEvaluation(4, Evaluation(0.75, 1.0, 8), Evaluation(0.5, 2.0, 8)), None
    )
    assert main(["predict", "--state", str(device)]) == 0
    assert f"{summary}; 75.0% of 8 samples held out; with an own head 50.0% of" in capsys.readouterr().out


def test_files_are_answered_and_what_is_none_is_said(device, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"no picture")
    arguments = [
        "predict",
        "--state",
        str(device),
        "--top",
        "2",
        str(tmp_path / "a.png"),
        str(tmp_path / "x.npy"),
    ]
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert output.out.count("x.npy [0]") == output.out.count("x.npy [1]") == 1
    assert output.out.count("%") == 4
    assert "a.png: a damaged picture" in output.err


def test_json_without_samples_is_an_empty_list(device, capsys):
    assert main(["predict", "--state", str(device), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_json_has_files_labels_and_probabilities(device, tmp_path, capsys):
    assert main(["predict", "--state", str(device), "--format", "json", str(tmp_path / "x.npy")]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["file"], first["number"], second["number"]) == (str(tmp_path / "x.npy"), 0, 1)
    assert [sorted(guess) for guess in first["guesses"]] == [["label", "probability"]] * 3


def test_the_model_is_written_as_one_file(device, tmp_path, capsys):
    assert main(["predict", "--state", str(device), "--export-onnx", str(tmp_path / "m.onnx")]) == 0
    assert (tmp_path / "m.onnx").stat().st_size > 300_000
    assert "m.onnx: digits-wrn-10-1, task 'digits', the model of round 3" in capsys.readouterr().err


def test_without_a_device_or_a_model_it_says_what_to_do(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["predict", "--state", str(tmp_path / "empty")]) == 2
    assert main(["predict", "--state", str(tmp_path / "none")]) == 2
    output = capsys.readouterr().err
    assert "no model is kept in" in output
    assert "join a task first" in output
    assert "no device is in" in output
