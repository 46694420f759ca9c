"""Draws of every kind of tensor from a table of parameters alone; real networks that learn from them."""

import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Parameter
from device_runtime.models.bundles.weights import initial_values
from device_runtime.models.errors import BundleError
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.models.training.optimizer import Sgd


@pytest.fixture
def table(digits):
    """A manifest with these tensors, name -> shape, all of them trained."""

    def make(shapes, **untrained):
        rows = [Parameter(name, shape, "float32", "low", ("all",)) for name, shape in shapes.items()]
        rows += [
            Parameter(name.replace("__", "."), shape, "float32", "low", ())
            for name, shape in untrained.items()
        ]
        return msgspec.structs.replace(digits.manifest, parameters=tuple(rows))

    return make


def drawn(manifest, seed=0):
    return initial_values(
        manifest, [parameter.name for parameter in manifest.parameters], np.random.default_rng(seed)
    )


def assert_uniform(value, bound):
    """Within the bound, nearly up to it, with its mean and variance to five deviations of their estimates."""
    n = value.size
    assert value.dtype == np.float32
    assert 0.99 * bound < np.abs(value).max() <= bound
    assert abs(value.mean(dtype=np.float64)) < 5 * bound / np.sqrt(3 * n)
    assert value.var(dtype=np.float64) == pytest.approx(bound**2 / 3, rel=5 / np.sqrt(n))


def test_a_linear_layer_is_drawn_as_torch_draws_it(table):
    values = drawn(table({"fc.weight": (300, 400), "fc.bias": (300,)}))
    assert_uniform(values["fc.weight"], 1 / 20)
    assert_uniform(values["fc.bias"], 1 / 20)


def test_a_convolution_keeps_the_variance_behind_relu_and_has_bias_zero(table):
    """fan_in 50 * 3 * 3 = 450: the variance is 2 / 450. Of groups only the own channels count: 9 -> 2 / 9."""
    values = drawn(table({"c.weight": (200, 50, 3, 3), "c.bias": (200,), "d.weight": (2000, 1, 3, 3)}))
    assert_uniform(values["c.weight"], np.sqrt(6 / 450))
    assert_uniform(values["d.weight"], np.sqrt(6 / 9))
    assert not values["c.bias"].any()


def test_the_projection_of_patches_is_drawn_as_a_linear_layer(table):
    values = drawn(table({"patch_embed.proj.weight": (400, 4, 5, 5)}))
    assert_uniform(values["patch_embed.proj.weight"], 1 / 10)


def test_normalisation_begins_with_scale_one_shift_zero_and_statistics_zero_and_one(table):
    trained = {"n.weight": (7,), "n.bias": (7,)}
    values = drawn(table(trained, n__running_mean=(7,), n__running_var=(7,)))
    contents = {name: set(value.tolist()) for name, value in values.items()}
    assert contents == {"n.weight": {1}, "n.bias": {0}, "n.running_mean": {0}, "n.running_var": {1}}


def test_recurrent_layers_are_drawn_by_their_hidden_size(table):
    shapes = {
        "weight_ih_l1": (400, 30),
        "weight_hh_l1": (400, 100),
        "bias_ih_l1": (400,),
        "bias_hh_l1": (400,),
    }
    for name, value in drawn(table({f"rnn.{name}": shape for name, shape in shapes.items()})).items():
        assert value.shape == shapes[name[4:]]
        assert_uniform(value, 1 / 10)


@pytest.mark.parametrize(
    "name",
    ["cls_token", "pos_embed", "model.embeddings.word_embeddings.weight", "position_embeddings.weight"],
)
def test_embeddings_and_tokens_are_normal_with_deviation_a_fiftieth(table, name):
    value = drawn(table({name: (1, 200, 300)}))[name]
    assert value.dtype == np.float32
    assert value.std() == pytest.approx(0.02, rel=0.02)
    assert abs(value.mean()) < 5 * 0.02 / np.sqrt(value.size)
    assert np.abs(value).max() > 3 * 0.02


def test_parameter_efficient_sets_begin_as_they_are_injected(table):
    values = drawn(
        table(
            {
                "q.lora_a": (100, 400),
                "q.lora_b": (400, 100),
                "c.lora_a": (40, 16, 5, 5),
                "mlp.adapter_down": (100, 400),
                "mlp.adapter_down_bias": (100,),
                "mlp.adapter_up": (400, 100),
                "mlp.adapter_up_bias": (400,),
                "blocks.0.prompt_tokens": (100, 300),
                "attn.prefix_keys": (3, 100, 100),
                "c.sparse_values": (50,),
            }
        )
    )
    bounds = {"q.lora_a": 1 / 20, "c.lora_a": 1 / 20, "mlp.adapter_down": 1 / 20}
    bounds |= {"blocks.0.prompt_tokens": 1 / 10, "attn.prefix_keys": 1 / 10}
    for name, value in values.items():
        if name in bounds:
            assert_uniform(value, bounds[name])
        else:
            assert not value.any(), name


def test_the_order_of_names_and_what_else_is_asked_for_change_nothing(digits):
    names = [parameter.name for parameter in digits.manifest.parameters]
    every = initial_values(digits.manifest, names, np.random.default_rng(3))
    backwards = initial_values(digits.manifest, reversed(names), np.random.default_rng(3))
    alone = initial_values(digits.manifest, ["head.weight"], np.random.default_rng(3))
    assert every.keys() == backwards.keys() == set(names)
    assert all(np.array_equal(every[name], backwards[name]) for name in names)
    assert np.array_equal(alone["head.weight"], every["head.weight"])


def test_another_seed_and_another_name_give_other_values(table):
    manifest = table({"a.weight": (5, 5), "b.weight": (5, 5)})
    first, second = drawn(manifest, 1), drawn(manifest, 2)
    assert not np.array_equal(first["a.weight"], second["a.weight"])
    assert not np.array_equal(first["a.weight"], first["b.weight"])


def test_one_generator_gives_other_values_each_time(table):
    manifest, rng = table({"a.weight": (5, 5)}), np.random.default_rng(0)
    first, second = (initial_values(manifest, ["a.weight"], rng)["a.weight"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_places_of_a_sparse_set_and_given_word_vectors_are_left_out(table):
    manifest = table({"fc.weight": (5, 5)}, embedding__weight=(50, 8))
    places = Parameter("fc.sparse_indices", (3,), "int64", "low", ())
    manifest = msgspec.structs.replace(manifest, parameters=(*manifest.parameters, places))
    assert set(drawn(manifest)) == {"fc.weight"}


def test_an_unknown_name_is_refused(digits):
    with pytest.raises(BundleError, match="bundle digits-wrn-10-1 has no tensor 'tail'"):
        initial_values(digits.manifest, ["tail"], np.random.default_rng(0))


def real_digits(spec):
    from sklearn.datasets import load_digits

    raw = load_digits()
    return spec.prepare(raw.images[:600, None]), raw.target[:600].astype(np.int64)


def learnt(bundle, sgd, epochs):
    """Logits of the fresh network; accuracy on 200 digits after training on 400 others in batches of 20."""
    model = OnnxModel(bundle)
    model.load({**bundle.weights(), **drawn(bundle.manifest)})
    x, y = real_digits(bundle.manifest.input)
    logits = model.logits(x[:50])
    trainer, rng = model.trainer("all"), np.random.default_rng(0)
    steps = sgd.start(trainer.params.vector)
    for _ in range(epochs):
        for batch in rng.permutation(400).reshape(-1, 20):
            trainer.loss_and_grads(x[batch], y[batch])
            steps.step(trainer.params.vector, trainer.grads.vector)
    model.load({**model.weights, **trainer.params.tensors()})
    return logits, accuracy_and_loss(model.logits(x[400:]), y[400:]).eval_acc


def assert_sensible(logits):
    """Finite, not all alike, and none so large that the first steps have to unlearn it."""
    assert np.isfinite(logits).all()
    assert logits.std(0).mean() > 0.01
    assert np.abs(logits).max() < 10


def test_a_fresh_wide_resnet_has_sensible_logits_and_learns_digits(digits):
    logits, accuracy = learnt(digits, Sgd(0.1, momentum=0.5), epochs=5)
    assert_sensible(logits)
    assert accuracy > 0.8


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Bundle:
    pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    settings = {"size": "tiny", "image": 8, "patch": 4, "depth": 3, "in_channels": 1, "classes": 10}
    input_spec = InputSpec((1, 8, 8), 1 / 16, (0.3,), (0.4,))
    spec = ExportSpec("vit", input_spec, tuple("0123456789"), sets={"all": {}})
    return export(build("vit", settings), spec, tmp_path_factory.mktemp("vit") / "bundle")


@pytest.mark.slow
def test_a_fresh_vision_transformer_has_sensible_logits_and_learns_digits(vit):
    """Of three blocks 192 wide; 400 digits do not suffice it for more."""
    logits, accuracy = learnt(vit, Sgd(0.02, momentum=0.9), epochs=6)
    assert_sensible(logits)
    assert accuracy > 0.6
