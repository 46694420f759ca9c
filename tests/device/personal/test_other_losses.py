"""What a device's kept model says where the loss is not cross-entropy."""

import numpy as np
import pytest

from device_runtime import Personal
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.device.personal.after_round import OwnHead, judge, personal_evaluation
from device_runtime.device.personal.kept import PersonalModelStore
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import encode
from device_runtime.models.errors import DataError
from device_runtime.models.training.evaluation import reconstruction_errors, sigmoid
from device_runtime.strategies.interface.device_half import LocalData

X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
OWN = OwnHead(3, "a", lambda: 0.0)


@pytest.fixture
def store_of(tmp_path):
    """Keeps a bundle's model as that of round 4; returns it, and the store."""

    def keep(path):
        bundle = Bundle.open(path)
        blob = blob_of(encode(bundle.weights()))
        offer = Offer(
            task="t", run="r", round=4, seed=5, deadline_s=9.0, remaining_s=9.0, bundle=blob, kinds=(),
            base=Base(checkpoint=(blob,), sha=blob.sha),
        )  # fmt: skip
        store = PersonalModelStore(tmp_path)
        store.keep(offer, bundle, bundle.weights())
        return bundle, store

    return keep


def test_values_are_predicted_in_original_units(store_of, exported, tmp_path):
    bundle, _ = store_of(exported.of_loss("mse"))
    [answer, *_] = Personal.open(tmp_path).predict(X)
    price, area = OnnxModel(bundle).logits(X)[0] * (30, 3) + (100, 0)
    assert answer.values == pytest.approx({"price": price, "area": area}, rel=1e-5)
    assert (answer.label, answer.guesses, answer.is_anomaly) == ("", (), None)
    with pytest.raises(DataError, match="mse predicts no labels: its loss is mse of price, area"):
        Personal.open(tmp_path).probabilities(X)


def test_each_flag_has_a_probability_of_its_own(store_of, exported, tmp_path):
    bundle, _ = store_of(exported.of_loss("bce"))
    [answer, *_] = Personal.open(tmp_path).predict(X, top=3)
    expected = dict(zip("abc", sigmoid(OnnxModel(bundle).logits(X))[0].tolist(), strict=True))
    assert {guess.label: guess.probability for guess in answer.guesses} == pytest.approx(expected)


def test_an_error_above_the_quantile_of_the_device_s_own_samples_is_an_anomaly(store_of, exported, tmp_path):
    bundle, store = store_of(exported.of_loss("mse", "input"))
    model, none = OnnxModel(bundle), np.zeros(0, np.int64)
    assert Personal.open(tmp_path).predict(X)[0].is_anomaly is None
    training, holdout = LocalData(X, np.zeros(20, np.int64)), LocalData(X[:0], none)
    judge(store, 4, lambda: personal_evaluation(model, training, holdout, OWN))
    errors = reconstruction_errors(bundle.manifest.target, model.logits(X), X)
    answers = Personal.open(tmp_path).predict(np.concatenate([X[:1], 100 + X[:1]]))
    assert answers[0].error == pytest.approx(errors[0], rel=1e-5)
    assert answers[0].threshold == pytest.approx(np.quantile(errors, 0.99), rel=1e-5)
    assert [answer.is_anomaly for answer in answers] == [errors[0] > answers[0].threshold, True]


def test_a_model_of_another_loss_is_judged_by_its_metrics_and_gets_no_own_head(store_of, exported):
    bundle, _ = store_of(exported.of_loss("mse"))
    y = np.zeros((20, 2), np.float32)
    judgement = personal_evaluation(OnnxModel(bundle), LocalData(X, y), LocalData(X, y), OWN)
    assert (judgement.own_head, judgement.served.metric) == (None, "R2")
    assert judgement.served.description.startswith("R2 0.000, RMSE price ")
