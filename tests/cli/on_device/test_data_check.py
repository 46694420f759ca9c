"""`data check` with a trained model: the bundle's, given weights, or what a device keeps."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits

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
