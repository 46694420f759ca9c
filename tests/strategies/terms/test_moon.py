"""MOON in full and parameter-efficient updates, on a network of two linear layers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.profiles import shipped
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.terms.moon import Moon
from device_runtime.strategies.training.workload import workload

MU, TAU, LR, N = 2.0, 0.5, 0.3, 6
STEPS = {"epochs": 3, "batch": N, "lr": LR, "momentum": 0.0, "weight_decay": 0.0}


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """z = A x + a, logits = B z + b; x (4,), z (3,), 2 classes."""
    torch.manual_seed(0)
    body, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    module = torch.nn.Sequential(body, head)
    spec = ExportSpec(
        "linear",
        InputSpec((4,)),
        ("a", "b"),
        sets={"all": {}, "head": {}, "bias": {}},
        objectives=("train", "moon"),
    )
    return export(module, spec, tmp_path_factory.mktemp("moon") / "bundle")


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    return LocalData(rng.standard_normal((N, 4), np.float32), np.array([0, 1, 0, 1, 1, 0]))


def run(memory=None, seed=1):
    return Run(seed, "pi", lambda: 0.0, 1.0, memory=memory or {})


def softmax(rows):
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def cosine(z, u):
    return (z * u).sum(1) / (np.linalg.norm(z, axis=1) * np.linalg.norm(u, axis=1))


def cosine_slope(z, u):
    """d cos(z, u) / d z = u / (|z| |u|) - cos(z, u) z / |z|^2, row by row."""
    length = np.linalg.norm(z, axis=1)
    return u / (length * np.linalg.norm(u, axis=1))[:, None] - (cosine(z, u) / length**2)[:, None] * z


def by_hand(base, previous, data):
    """Three steps of the whole data, in float64: Li et al. 2021, equations 3 and 4, derived on paper."""
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    a_, c_, b_, d_ = (base[name].astype(np.float64) for name in names)
    x = data.x.astype(np.float64)
    z_glob = x @ a_.T + c_
    z_prev = x @ previous["0.weight"].T.astype(np.float64) + previous["0.bias"]
    for _ in range(STEPS["epochs"]):
        z = x @ a_.T + c_
        slope = (softmax(z @ b_.T + d_) - np.eye(2)[data.y]) / N
        shares = softmax(np.stack([cosine(z, z_glob), cosine(z, z_prev)], 1) / TAU)
        pull = (shares[:, :1] - 1) * cosine_slope(z, z_glob) + shares[:, 1:] * cosine_slope(z, z_prev)
        dz = slope @ b_ + MU / (TAU * N) * pull
        a_, c_ = a_ - LR * dz.T @ x, c_ - LR * dz.sum(0)
        b_, d_ = b_ - LR * slope.T @ z, d_ - LR * slope.sum(0)
    return dict(zip(names, (a_, c_, b_, d_), strict=True))


def test_local_features_are_drawn_to_the_base_s_and_away_from_the_last_ones(linear, data):
    model = OnnxModel(linear)
    rng = np.random.default_rng(2)
    previous = {
        name: v + rng.standard_normal(v.shape).astype(np.float32) for name, v in model.weights.items()
    }
    before = tensors.encode(model.weights)
    sent = FedAvg(terms=(Moon(MU, TAU),), **STEPS).train(model, data, run(previous))
    expected = by_hand(model.weights, previous, data)
    for name, value in expected.items():
        np.testing.assert_allclose(sent.tensors[name], value, atol=2e-6)
    plain = FedAvg(**STEPS).train(model, data, run())
    assert np.abs(plain.tensors["0.weight"] - expected["0.weight"]).max() > 0.01
    assert tensors.encode(model.weights) == before


def test_what_was_trained_is_kept_for_the_next_round(linear, data):
    model, moon = OnnxModel(linear), FedAvg(terms=(Moon(MU),), **STEPS)
    first = moon.train(model, data, run())
    assert tensors.encode(first.memory) == tensors.encode(first.tensors)
    assert FedAvg(**STEPS).train(model, data, run()).memory is None
    second = moon.train(model, data, run(first.memory))
    assert not np.array_equal(second.tensors["0.weight"], first.tensors["0.weight"])


def test_the_first_round_steps_as_cross_entropy_does(linear, data):
    """z_prev = z_glob: the term is mu log 2, whatever z is."""
    model = OnnxModel(linear)
    sent, plain = (FedAvg(terms=terms, **STEPS).train(model, data, run()) for terms in ((Moon(MU),), ()))
    for name, value in plain.tensors.items():
        np.testing.assert_allclose(sent.tensors[name], value, atol=1e-6)
    assert sent.train_loss == pytest.approx(plain.train_loss + MU * np.log(2), abs=1e-5)


def test_of_a_small_set_only_that_is_kept_and_the_rest_of_the_last_model_is_the_base_s(linear, data):
    model = OnnxModel(linear)
    moon = Peft(terms=(Moon(MU),), tunable="bias", epochs=2, batch=2)
    first = moon.train(model, data, run())
    assert set(first.memory) == {"0.bias", "1.weight", "1.bias"}
    whole = {**model.weights, **first.memory}
    first_tensors, other = (moon.train(model, data, run(memory)).tensors for memory in (first.memory, whole))
    assert tensors.encode(first_tensors) == tensors.encode(other)


def test_each_batch_gets_the_features_of_its_own_samples(linear, data):
    plan = FedAvg(terms=(Moon(MU),), batch=2).plan(OnnxModel(linear), data, run())
    assert plan.objective == "moon"
    extras = plan.extras(np.array([4, 1]))
    expected = OnnxModel(linear).features(data.x[[4, 1]])
    np.testing.assert_allclose(extras["z_glob"], expected, rtol=1e-6)
    assert (extras["mu"], extras["tau"]) == (np.float32(MU), np.float32(0.5))


@pytest.mark.parametrize("samples", [1, N])
def test_one_sample_and_batches_of_one_are_enough(linear, data, samples):
    few = LocalData(data.x[:samples], data.y[:samples])
    model = OnnxModel(linear)
    sent = FedAvg(terms=(Moon(MU),), epochs=2, batch=1).train(model, few, run(model.weights))
    assert all(np.isfinite(value).all() for value in sent.tensors.values())


def test_moon_costs_two_more_forward_passes_of_all_samples_and_their_features(linear):
    load = workload(linear.manifest, (N, 0))
    plain, moon = (
        FedAvg(epochs=3, batch=2, terms=terms).cost(load, shipped("pi-4")) for terms in ((), (Moon(MU),))
    )
    graphs = linear.manifest.graphs
    more = graphs["moon.all"].flops - graphs["train.all"].flops
    assert moon.flops - plain.flops == 2 * N * graphs["forward"].flops + 3 * N * more
    features, parameters = 2 * N * 3, 4 * 3 + 3 + 3 * 2 + 2
    live = [activation_bytes(load, f"{objective}.all", 2) for objective in ("moon", "train")]
    more = 4 * (features + parameters) + activation_bytes(load, "forward")  # which stays open
    assert moon.peak_memory_bytes - plain.peak_memory_bytes == more + live[0] - live[1]


def test_the_head_alone_has_no_features_to_contrast():
    with pytest.raises(ValueError, match="the head alone changes no features"):
        Peft(terms=(Moon(MU),), tunable="head")
