"""`data check` with a trained model: the bundle's, given weights, or what a device keeps."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits

from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.cli import main
from device_runtime.device.personal.kept import PersonalModelStore
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors

DIGITS = load_digits()
RAW, Y = DIGITS.images[:, None].astype(np.uint8), DIGITS.target


@pytest.fixture(scope="module")
def trained():
    """The shipped bundle with a head that was fitted to 1,200 digits; it is right in about 82%."""
    bundle = bundles.Bundle.open(bundles.find_bundle("digits-wrn-10-1"))
    model, head = open_model(bundle), bundle.manifest.head
    features = model.features(bundle.manifest.input.prepare(RAW[:1200])).astype(np.float64)
    features = np.c_[features, np.ones(len(features))]
    targets = np.eye(10)[Y[:1200]] * 16 - 8
    fit = np.linalg.solve(features.T @ features + 1e-3 * np.eye(features.shape[1]), features.T @ targets)
    new = {head.weight: fit[:-1].T.astype(np.float32), head.bias: fit[-1].astype(np.float32)}
    return bundle, {
        **bundle.weights(),
        **{name: np.ascontiguousarray(tensor) for name, tensor in new.items()},
    }


@pytest.fixture
def weights(trained, tmp_path):
    path = tmp_path / "served.safetensors"
    path.write_bytes(tensors.encode(trained[1]))
    return str(path)


@pytest.fixture
def samples(tmp_path):
    def write(x, y=None):
        path = tmp_path / "samples.npz"
        np.savez(path, x=x, **({} if y is None else {"y": y}))
        return str(path)

    return write


def check(capsys, *words):
    code = main(["data", "check", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_samples_that_the_model_knows_are_said_to_be_right(samples, weights, capsys):
    code, out, _ = check(capsys, samples(RAW[1200:], Y[1200:]), "--weights", weights)
    assert code == 0
    assert "the model is right in 8" in out
    assert "WARNING" not in out


def test_inverted_samples_are_named(samples, weights, capsys):
    path = samples(16 - RAW[1200:], Y[1200:])
    _, out, _ = check(capsys, path, "--weights", weights)
    assert "; with dark and light exchanged it would be right in 8" in out
    assert ": are they inverted?" in out
    assert out.rstrip().endswith("exchange dark and light, as by `mogrify -negate FILES` of ImageMagick")
    _, out, _ = check(capsys, path, "--weights", weights, "--format", "json")
    assert "inverted" in json.loads(out)["model"]["hint"]


def test_the_untrained_weights_of_a_task_say_nothing(samples, capsys):
    for x in (RAW, 16 - RAW, RAW.swapaxes(2, 3)):
        _, out, _ = check(capsys, samples(x, Y))
        assert "the model" not in out
    _, out, _ = check(capsys, samples(RAW))
    assert "the model" not in out


def test_a_bundle_with_trained_weights_is_asked(samples, trained, tmp_path, capsys):
    bundle, fitted = trained
    graphs = {name: bundle.graph(name) for name in bundle.manifest.graphs}
    place = bundles.write(tmp_path / "fitted", bundle.manifest, fitted, graphs).path
    _, out, _ = check(capsys, samples(16 - RAW[1200:], Y[1200:]), "--bundle", str(place))
    assert "are they inverted?" in out


@pytest.mark.parametrize("how", ["--state", "--bundle"])
def test_the_model_that_a_device_keeps_is_asked(samples, trained, tmp_path, capsys, monkeypatch, how):
    bundle, fitted = trained
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state" / "device-runtime" / "pi"
    (folder / "outbox").mkdir(parents=True)
    blob = blob_of(tensors.encode(fitted))
    offer = Offer(
        task="digits", run="r", round=4, seed=5, deadline_s=9.0, remaining_s=9.0,
        bundle=blob, base=Base(checkpoint=(blob,), sha=blob.sha), kinds=(),
    )  # fmt: skip
    PersonalModelStore(folder).keep(offer, bundle, fitted)
    chosen = ("--state", str(folder)) if how == "--state" else ("--bundle", "digits-wrn-10-1")
    _, out, _ = check(capsys, samples(16 - RAW[1200:], Y[1200:]), *chosen)
    assert "are they inverted?" in out


def test_samples_without_labels_are_described(samples, weights, capsys):
    code, out, _ = check(capsys, samples(RAW[1200:]), "--weights", weights)
    assert code == 1  # no sample can be trained on
    assert "of 300 without labels, the model says " in out


def test_weights_that_are_of_another_model_are_refused(samples, tmp_path, capsys):
    other = tmp_path / "other.safetensors"
    other.write_bytes(tensors.encode({"a": np.zeros(3, np.float32)}))
    for path in (other, tmp_path / "none.safetensors"):
        code, _, err = check(capsys, samples(RAW, Y), "--weights", str(path))
        assert code == 2
        assert f"{path} has no weights of digits-wrn-10-1" in err


def test_the_share_of_right_answers_stands_beside_each_class_and_doubtful_ones_are_named(
    samples, weights, capsys
):
    mixed = Y[1200:].copy()
    mixed[Y[1200:] == 4] = 0  # a folder of fours that is called 0: a quarter of it is right
    mixed[np.flatnonzero(Y[1200:] == 0)[20:]] = 4
    _, out, _ = check(capsys, samples(RAW[1200:], mixed), "--weights", weights)
    assert "look at samples labelled '4': the model is right in " in out
    assert "takes most others for '0'" in out
    [row] = [line for line in out.splitlines() if line.startswith("1 ")]
    assert row.endswith("% right")


def test_labels_that_are_not_the_task_s_are_answered_with_the_task_s_labels(samples, tmp_path, capsys):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        np.save(tmp_path / "pets" / label / "a.npy", RAW[0])
    code, out, _ = check(capsys, str(tmp_path / "pets"))
    assert code == 1
    assert "the task's labels are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9: name the folders or the column" in out


def test_a_device_that_is_enrolled_where_no_broker_answers_says_so_and_checks_for_the_usual_bundle(
    samples, tmp_path, capsys, caplog
):
    enrolment = Enrolment("mqtts://127.0.0.1:1", "pi", "x", b"", bytes(32), 1)
    folder = tmp_path / "pi"
    folder.mkdir()
    enrolment.save(folder)
    code, out, _ = check(capsys, samples(RAW, Y), "--state", str(folder))
    assert code == 0
    assert "the task that this device is enrolled for is not known" in caplog.text
    assert "for digits-wrn-10-1" in out
