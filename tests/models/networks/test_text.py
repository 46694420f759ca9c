import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx
from torch.func import grad_and_value, vmap

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks.text import gru, gru_layer, lstm, lstm_layer

TINY = {"vocabulary": 20, "dim": 5, "hidden": 6, "classes": 3}
KINDS = [(lstm, torch.nn.LSTM), (gru, torch.nn.GRU)]


@pytest.mark.parametrize(("build", "theirs"), KINDS)
def test_layers_are_torchs_with_the_same_names(build, theirs):
    torch.manual_seed(0)
    ours = build(**TINY).rnn
    reference = theirs(5, 6, 2, batch_first=True)
    reference.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(4, 7, 5)
    torch.testing.assert_close(ours(x), reference(x)[0])


@pytest.mark.parametrize("build", [lstm, gru])
def test_padding_behind_a_text_changes_nothing(build):
    module = build(**TINY).eval()
    text = torch.tensor([[3, 7, 1]])
    torch.testing.assert_close(module(text), module(torch.tensor([[3, 7, 1, 0, 0]])))


def test_a_text_without_tokens_gives_the_heads_bias():
    module = gru(**TINY).eval()
    torch.testing.assert_close(module(torch.zeros(1, 4, dtype=torch.int64))[0], module.head.bias)


def test_word_vectors_come_from_a_file_and_are_not_trained(tmp_path):
    table = np.arange(100, dtype=np.float32).reshape(20, 5)
    np.save(tmp_path / "vectors.npy", table)
    module = lstm(**TINY, vectors=str(tmp_path / "vectors.npy"))
    assert np.array_equal(module.embedding.weight.numpy(), table)
    assert not module.embedding.weight.requires_grad
    with pytest.raises(ValueError, match=r"holds float32 \(20, 5\), expected float32 \(20, 8\)"):
        lstm(vocabulary=20, dim=8, vectors=str(tmp_path / "vectors.npy"))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "kind", "nodes"), [(gru, "GRU", 3), (lstm, "LSTM", 16)])
def test_graphs_pass_the_gate_and_grow_by_few_nodes_a_step(build, kind, nodes, tmp_path):
    """A GRU's step: concatenate, multiply, product. An LSTM's: ten nodes for its states, six back."""
    sizes = {}
    for length in (4, 6):
        spec = ExportSpec(kind, InputSpec(shape=(length,), dtype="int64", vocabulary=20), ("a", "b", "c"))
        bundle = export(build(**TINY), spec, tmp_path / str(length))
        sizes[length] = len(operators(bundle, "train.all"))
    assert sizes[6] - sizes[4] <= 2 * 2 * nodes


@pytest.mark.slow
def test_only_trained_layers_of_an_lstm_are_written_step_by_step(tmp_path):
    spec = ExportSpec("lstm", InputSpec(shape=(4,), dtype="int64", vocabulary=20), ("a", "b", "c"))
    bundle = export(lstm(**TINY), spec, tmp_path / "lstm")
    counts = {name: operators(bundle, name).count("LSTM") for name in bundle.manifest.graphs}
    assert counts == {
        "forward": 2, "loss.all": 2, "loss.mid": 2, "loss.head": 2,
        "train.all": 0, "train.mid": 1, "train.head": 2,
    }  # fmt: skip


def operators(bundle, name) -> list[str]:
    graph = onnx.load(bundle.path / f"{name}.onnx", load_external_data=False).graph
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize(("layer", "gates"), [(gru_layer, 3), (lstm_layer, 4)])
def test_layers_of_many_copies_are_those_of_each_alone(layer, gates):
    """Three copies on their own samples: 5 steps, 2 samples, 4 inputs, 6 hidden."""
    torch.manual_seed(0)
    shapes = ((gates * 6, 4), (gates * 6, 6), (gates * 6,), (gates * 6,))
    weights = tuple(torch.randn(3, *shape) for shape in shapes)
    x = torch.randn(3, 5, 2, 4)

    def loss(weights, x):
        return layer(x, weights).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where vmap runs one copy after another
        grads, values = vmap(grad_and_value(loss))(weights, x)
        frozen = [each[0] for each in weights]
        torch.testing.assert_close(vmap(layer, (0, None))(x, frozen)[2], layer(x[2], frozen))
    for k in range(3):
        alone = tuple(each[k].clone().requires_grad_() for each in weights)
        value = loss(alone, x[k])
        torch.testing.assert_close(values[k], value)
        for ours, theirs in zip(grads, torch.autograd.grad(value, alone), strict=True):
            torch.testing.assert_close(ours[k], theirs, atol=1e-5, rtol=1e-5)
