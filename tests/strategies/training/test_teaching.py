import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.errors import BundleError
from device_runtime.models.training.optimizer import Sgd
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.training import teaching
from device_runtime.strategies.training.teaching import ServerTraining, TeacherAttention


def test_a_lesson_is_the_loop_written_out(model, digits):
    """Two epochs of batches of 100, 100 and 40, shuffled by the generator given."""
    weights = teaching.teach(
        model, model.weights, digits, ServerTraining(Sgd(0.1), 2, 100), teaching.generator(5, "kind", 1)
    )
    trainer, rng = model.trainer("all"), teaching.generator(5, "kind", 1)
    w = trainer.params.vector
    for _ in range(2):
        order = rng.permutation(240)
        for batch in (order[:100], order[100:200], order[200:]):
            trainer.loss_and_grads(digits.x[batch], digits.y[batch])
            w -= np.float32(0.1) * trainer.grads.vector
    assert weights.keys() == set(model.weights)
    for name, expected in trainer.params.views.items():
        np.testing.assert_allclose(weights[name], expected, atol=1e-5)


def test_what_is_held_stays_though_momentum_and_decay_would_move_it(model, digits):
    constants = ("head.weight", "head.bias")
    lesson = ServerTraining(Sgd(0.1, 0.9, 0.01), 1, 60, constants=constants)
    weights = teaching.teach(model, model.weights, digits, lesson, np.random.default_rng(0))
    for name, value in weights.items():
        assert np.array_equal(value, model.weights[name]) == (name in constants), name


def test_a_lesson_starts_at_the_weights_given(model, digits):
    start = {name: value + np.float32(0.01) for name, value in model.weights.items()}
    after = teaching.teach(model, start, digits, ServerTraining(Sgd(1e-12), 1, 240), np.random.default_rng(0))
    for name, value in after.items():
        np.testing.assert_allclose(value, start[name], atol=1e-6)


def test_randomness_is_of_the_seed_the_kind_and_the_order():
    first = teaching.generator(1, "a", 1).random(4)
    assert np.array_equal(first, teaching.generator(1, "a", 1).random(4))
    for other in ((2, "a", 1), (1, "b", 1), (1, "a", 2)):
        assert not np.array_equal(first, teaching.generator(*other).random(4))


def test_attention_sums_squares_over_the_channels():
    """Of two channels at 1 x 2 places 1 + 9 and 4 + 16; of two tokens with two channels 1 + 4 and 9 + 16."""
    images = np.array([[[[1, 2]], [[3, -4]]]], np.float32)
    assert teaching.attention(images).tolist() == [[10, 20]]
    tokens = np.array([[[1, -2], [3, 4]]], np.float32)
    assert teaching.attention(tokens).tolist() == [[5, 25]]


def test_attention_maps_of_many_samples_are_those_of_each_part(family, monkeypatch):
    model = OnnxModel(family.bundles["small"])
    whole = teaching.attention_maps(model, family.data.x, ("low", "up"))
    assert {level: rows.shape for level, rows in whole.items()} == {"low": (240, 64), "up": (240, 16)}
    np.testing.assert_allclose(
        whole["up"], np.square(model.level_features(family.data.x, "up")).sum(1).reshape(240, 16), rtol=1e-5
    )
    monkeypatch.setattr(teaching, "BLOCK", 100)
    parts = teaching.attention_maps(model, family.data.x, ("low", "up"))
    assert all(np.array_equal(parts[level], rows) for level, rows in whole.items())


def test_beta_is_divided_by_the_places_and_0_where_a_level_does_not_count():
    maps = {"low": np.ones((3, 1024), np.float32), "mid": np.ones((3, 256), np.float32)}
    extras = TeacherAttention.of(maps, 1024.0, ("mid",))(np.array([2, 0]))
    assert extras["beta"].tolist() == [0.0, 4.0]
    assert extras["teacher.low"].shape == (2, 1024)


def test_a_level_weighs_the_same_whatever_the_size_of_the_images():
    of_8x8 = {"low": np.ones((1, 64), np.float32), "mid": np.ones((1, 16), np.float32)}
    extras = TeacherAttention.of(of_8x8, 1024.0, ("low", "mid"))(np.array([0]))
    assert extras["beta"].tolist() == [1.0, 4.0]


def test_the_levels_at_which_a_model_is_compared_are_read_off_its_graph(family, bundle):
    assert teaching.attention_places(family.bundles[""].manifest) == {"low": 64, "mid": 16, "up": 16}
    with pytest.raises(
        BundleError,
        match=r"wrn-10-1 has no graph attention.all: export it with --objective attention --tunable all",
    ):
        teaching.attention_places(bundle.manifest)


def test_models_that_cannot_be_compared_are_named(family, bundle):
    main, other = family.bundles[""].manifest, bundle.manifest
    with pytest.raises(BundleError, match=r"no graph features.up: export it with --features up"):
        teaching.need_one_shape((main, other), "up")


def test_a_lesson_of_maps_takes_inputs_that_need_no_memory(family):
    """The part above level low, on maps that are the model's own, learns as on the images."""
    bundle = family.bundles[""]
    model, data = OnnxModel(bundle), family.data
    maps = model.level_features(data.x, "low")
    x = np.broadcast_to(np.float32(0), data.x.shape)
    lesson = ServerTraining(Sgd(0.05), 1, 80, "mid", "above-low", lambda batch: {"maps": maps[batch]})
    above = teaching.teach(model, bundle.weights(), LocalData(x, data.y), lesson, np.random.default_rng(1))
    plain = teaching.teach(
        model, bundle.weights(), data, ServerTraining(Sgd(0.05), 1, 80, "mid"), np.random.default_rng(1)
    )
    for name, value in plain.items():
        np.testing.assert_allclose(above[name], value, atol=1e-5)
