"""SLoRA's first stage and the hand-over to LoRA, on a bundle that has both sets."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.profiles import shipped
from device_runtime.profiles.cost import MissingGraph
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.kinds.slora import SparseStage, factors, lora_start, product
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.training.workload import workload

RANK, ALPHA = 9, 4.0
"""The rank is more than either layer can have, so that nothing is lost."""


class Net(torch.nn.Module):
    """A convolution, a grouped one that has no LoRA, a linear layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.grouped = torch.nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.inner = torch.nn.Linear(4, 6)
        self.head = torch.nn.Linear(6, 10)

    def forward(self, x):
        x = torch.tanh(self.grouped(torch.tanh(self.conv(x))))
        return self.head(torch.tanh(self.inner(x.flatten(1))))


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    torch.manual_seed(0)
    sets = {
        "lora": {"rank": RANK, "alpha": ALPHA, "targets": "all"},
        "sparse": {"density": 0.4},
    }
    size = InputSpec((1, 8, 8), 0.0625, (0.305,), (0.376,))
    spec = ExportSpec("rich", size, tuple("0123456789"), sets=sets)
    return export(Net(), spec, tmp_path_factory.mktemp("slora") / "bundle")


@pytest.fixture
def digits_8x8(rich, digits):
    return LocalData(digits.x[:60], digits.y[:60])


def run(seed=3):
    return Run(seed, "pi", lambda: 0.0, 1.0)


def round_of(model, number):
    return RoundModel(model.manifest, dict(model.weights), number, 5)


def round_made(model, number, data, strategy=None):
    """The base after one device's contribution in round `number`."""
    strategy = strategy or SparseStage(rounds=2, lr=0.5, epochs=3)
    distributed = round_of(model, number)
    sent = strategy.train(model, data, run(number))
    state = strategy.fold(strategy.start(distributed), sent, len(data))
    return merge(distributed, {strategy.name: strategy.finish(state, distributed)}).base


def changed(model, before, *names):
    return [name for name in names if not np.array_equal(model.weights[name], before[name])]


@pytest.mark.slow
def test_only_values_at_the_mask_and_the_head_travel(rich, digits_8x8):
    sent = SparseStage(epochs=1).train(OnnxModel(rich), digits_8x8, run())
    layers = ("conv", "grouped", "inner")
    assert set(sent.tensors) == {*(f"{layer}.sparse_values" for layer in layers), "head.weight", "head.bias"}
    assert sent.tensors["conv.sparse_values"].shape == (14,)  # round(0.4 * 4 * 9)


def test_the_network_computes_the_same_after_the_hand_over(rich, digits_8x8):
    """With a rank that holds the whole change; alpha is not the rank."""
    model = OnnxModel(rich)
    model.load(round_made(model, 1, digits_8x8))
    untouched = SparseStage(rounds=9, lr=0.5, epochs=3)
    model.load(round_made(model, 2, digits_8x8, untouched))
    logits, start = model.logits(digits_8x8.x), dict(model.weights)
    assert np.abs(logits - OnnxModel(rich).logits(digits_8x8.x)).max() > 0.1
    model.load(lora_start(start, model.manifest, "kept"))
    np.testing.assert_allclose(model.logits(digits_8x8.x), logits, atol=2e-5)
    for layer in ("conv", "inner"):
        assert not model.weights[f"{layer}.sparse_values"].any()
        assert model.weights[f"{layer}.lora_b"].any()
    same = ("conv.weight", "inner.weight", "head.weight", "grouped.sparse_values", "conv.sparse_indices")
    assert changed(model, start, *same) == []


def test_what_layers_without_lora_changed_is_taken_back(rich, digits_8x8):
    """Stage 2 of the thesis: the pre-trained model with LoRA, and no other parameter but the head."""
    model = OnnxModel(rich)
    base = round_made(model, 2, digits_8x8, SparseStage(rounds=2, lr=0.5, epochs=3))
    assert not any(base[f"{layer}.sparse_values"].any() for layer in ("conv", "grouped", "inner"))
    change = round_made(model, 2, digits_8x8, SparseStage(rounds=2, lr=0.5, epochs=3, without_lora="kept"))
    assert change["grouped.sparse_values"].any() and not change["conv.sparse_values"].any()


def test_what_lora_had_learnt_before_is_handed_over_too(rich, digits_8x8):
    model = OnnxModel(rich)
    rng = np.random.default_rng(0)
    names = ("inner.lora_b", "inner.sparse_values", "conv.lora_b")
    model.load({n: rng.standard_normal(model.weights[n].shape).astype(np.float32) for n in names})
    logits = model.logits(digits_8x8.x)
    model.load(lora_start(model.weights, model.manifest))
    np.testing.assert_allclose(model.logits(digits_8x8.x), logits, atol=2e-4)


def test_beyond_the_rank_the_nearest_change_is_what_stays(rich):
    """Eckart and Young: of the singular values of the change, the `rank` largest."""
    weights = dict(OnnxModel(rich).weights)
    places = weights["inner.sparse_indices"]
    weights["inner.sparse_values"] = np.arange(1, len(places) + 1, dtype=np.float32)
    weights |= {"inner.lora_a": np.zeros((1, 4), np.float32), "inner.lora_b": np.zeros((6, 1), np.float32)}
    sets = {**rich.manifest.sets, "lora": {"rank": 1, "alpha": ALPHA}}
    handed = lora_start(weights, msgspec.structs.replace(rich.manifest, sets=sets))
    change = np.zeros((6, 4))
    change.reshape(-1)[places] = weights["inner.sparse_values"]
    product = ALPHA * handed["inner.lora_b"] @ handed["inner.lora_a"]
    values = np.linalg.svd(change, compute_uv=False)
    assert np.linalg.norm(change - product) == pytest.approx(np.sqrt((values[1:] ** 2).sum()), rel=1e-5)


def test_the_hand_over_is_in_the_last_round_of_the_stage_and_in_no_other(rich, digits_8x8):
    model = OnnxModel(rich)
    for number, handed in ((1, False), (2, True), (3, False)):
        base = round_made(model, number, digits_8x8)
        assert (not base["inner.sparse_values"].any()) == handed, number


def test_the_hand_over_does_not_wait_for_contributions(rich, digits_8x8):
    model = OnnxModel(rich)
    model.load(round_made(model, 1, digits_8x8))
    distributed = round_of(model, 2)
    strategy = SparseStage(rounds=2)
    base = merge(distributed, {"sparse": strategy.finish(strategy.start(distributed), distributed)}).base
    assert not base["inner.sparse_values"].any()
    assert base["inner.lora_b"].any()


def test_stage_two_goes_on_from_there(rich, digits_8x8):
    model = OnnxModel(rich)
    for number in (1, 2):
        model.load(round_made(model, number, digits_8x8))
    before = model.probe("lora").loss(digits_8x8.x, digits_8x8.y)
    start = dict(model.weights)
    model.load(round_made(model, 3, digits_8x8, Peft(tunable="lora", lr=0.1, epochs=5, batch=10)))
    assert model.probe("lora").loss(digits_8x8.x, digits_8x8.y) < before
    moved = changed(model, start, *start)
    assert moved == [n for n in start if "lora" in n or "head" in n]


def test_a_bundle_without_lora_has_nothing_for_stage_two(rich):
    load = workload(rich.manifest, (5,) * 10)
    assert SparseStage().cost(load, shipped("pi-4")).bytes_up > 0
    without = replace(load, parameters={name: n for name, n in load.parameters.items() if name != "lora"})
    with pytest.raises(MissingGraph, match="needs tunable set lora"):
        SparseStage().cost(without, shipped("pi-4"))


def test_settings_travel_and_the_stage_has_at_least_one_round():
    assert registry.read(registry.write(SparseStage(rounds=4))) == SparseStage(rounds=4)
    with pytest.raises(ValueError, match="rounds is 0"):
        SparseStage(rounds=0)


@pytest.mark.parametrize("inner", [(4,), (4, 5), (4, 3, 3)])
def test_a_change_of_a_layer_of_any_dimension_has_factors(inner):
    change = np.random.default_rng(0).standard_normal((6, *inner), np.float32)
    a, b = factors(change, 6)
    assert (a.shape, b.shape) == ((6, *inner), (6, 6, *(1 for _ in inner[1:])))
    np.testing.assert_allclose(product(a, b), change, atol=1e-5)
