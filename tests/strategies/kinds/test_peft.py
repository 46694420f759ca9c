import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.profiles import shipped
from device_runtime.profiles.cost import MissingGraph
from device_runtime.strategies.interface.device_half import LocalData, OutOfTime, Run
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.terms.dp_sgd import ACCOUNTANT_BYTES, DpSgd, dp_settings
from device_runtime.strategies.terms.proximal import FedProx, FscProx
from device_runtime.strategies.training.local_training import train
from device_runtime.strategies.training.workload import workload


def test_linear_probing_trains_and_sends_the_head_alone(model, digits, run):
    before = model.probe("head").loss(digits.x, digits.y)
    sent = Peft(tunable="head", lr=0.1, epochs=3, batch=30).train(model, digits, run())
    assert set(sent.tensors) == set(model.manifest.names("head"))
    assert sent.num_examples == 240
    model.load(sent.tensors)
    assert model.probe("head").loss(digits.x, digits.y) < before


@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
def test_linear_probing_takes_the_steps_of_back_propagation(model, digits, run, clip_norm):
    """To rounding; with the same loss, of the last epoch."""
    strategy = Peft(tunable="head", lr=0.1, momentum=0.9, epochs=3, batch=32, clip_norm=clip_norm)
    sent = strategy.train(model, digits, run())
    plain = train(model, digits, strategy.plan(model, digits, run()), run())
    for name, value in plain.tensors.items():
        np.testing.assert_allclose(sent.tensors[name], value, atol=1e-5)
    assert sent.train_loss == pytest.approx(plain.loss, abs=1e-5)


def test_linear_probing_passes_each_sample_through_the_network_once(bundle):
    load, board = workload(bundle.manifest, (24,) * 10), shipped("pi-4")
    graphs, width = bundle.manifest.graphs, bundle.manifest.head.features
    cost = Peft(tunable="head", epochs=7).cost(load, board)
    assert cost.flops == 240 * graphs["forward"].flops + 7 * 240 * 3 * 2 * width * 10
    near = Peft(tunable="head", epochs=7, terms=(FedProx(0.1),)).cost(load, board)
    assert near.flops == 7 * 240 * graphs["train.head"].flops


def test_linear_probing_is_stopped_by_the_device_s_own_clock(model, digits, clock):
    def ticking(done):
        clock.now += 1

    with pytest.raises(OutOfTime):
        Peft(tunable="head").train(model, digits, Run(1, "slow", clock, 9.0, progress=ticking))
    assert clock.now < 9


def test_linear_probing_may_be_done_on_features_and_nothing_else_may(bundle):
    manifest = bundle.manifest
    assert Peft(tunable="head").trains_head(manifest)
    assert not Peft(tunable="bias").trains_head(manifest)
    others = ({"terms": (FedProx(0.1),)}, {"terms": (FscProx(0.1),)}, {"terms": (DpSgd(),)})
    assert not any(Peft(tunable="head", **other).trains_head(manifest) for other in others)


def test_the_learning_rate_is_the_paper_s_for_the_set_unless_it_is_said():
    """Paper 003, section IV-A."""
    rates = {name: Peft(tunable=name).sgd.lr for name in ("head", "bias", "adapter", "prompt")}
    assert rates == {"head": 0.005, "bias": 0.01, "adapter": 0.005, "prompt": 0.01}
    assert Peft(tunable="bias", lr=0.3).sgd.lr == 0.3
    # Paper 004, table 8: N = 64, M = 8, alpha = 0.1, DP
    private = {name: Peft(tunable=name, terms=(DpSgd(),)).sgd.lr for name in rates}
    assert private == {"head": 5e-4, "bias": 1e-3, "adapter": 5e-4, "prompt": 3e-4}
    assert (Peft().weight_decay, Peft().batch, Peft().epochs) == (1e-4, 64, 10)


def test_a_round_may_offer_several_sets_and_a_device_takes_one_form():
    forms = Peft(tunables=("bias", "head")).variants()
    assert [(form.variant, form.trained, form.sgd.lr) for form in forms] == [
        ("bias",) * 2 + (0.01,),
        ("head",) * 2 + (0.005,),
    ]
    assert [form.variants() for form in forms] == [(form,) for form in forms]
    assert Peft(tunable="lora").variants() == (Peft(tunable="lora"),)


def test_a_contribution_says_which_set_it_is_of(model, digits, run):
    offered = Peft(tunables=("bias", "head"), epochs=1)
    sent = offered.variants()[1].train(model, digits, run())
    assert (sent.kind, sent.variant) == ("peft", "head")


def test_a_set_that_the_bundle_lacks_is_said(bundle):
    with pytest.raises(MissingGraph, match="needs tunable set bias, the bundle has all, mid, head"):
        Peft().cost(workload(bundle.manifest, (5,) * 10), shipped("pi-4"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tunable": "all"}, "tunable is 'all', expected one of head, bias"),
        ({"tunables": ("bias", "toes")}, "tunables is 'toes', expected one of"),
        ({"tunables": ("bias", "bias")}, "each can be named once"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"terms": (DpSgd(),), "batch": 0}, "batch is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Peft(**settings)


def private(seed, model, data):
    dp = DpSgd(epsilon=5.0, delta=1e-3, max_norm=0.5, rounds=3)
    strategy = Peft(tunable="head", terms=(dp,), epochs=2, batch=20)
    run = Run(1, "pi", lambda: 0.0, 1.0, noise=lambda: np.random.default_rng(seed))
    return strategy, strategy.plan(model, data, run), strategy.train(model, data, run)


def test_private_training_takes_the_noise_of_its_budget_and_tells_no_loss(model, digits):
    strategy, plan, sent = private(1, model, digits)
    assert (plan.privacy.max_norm, plan.privacy.noise) == (0.5, dp_settings(strategy).round(240, 20, 2).noise)
    assert np.isnan(sent.train_loss)
    again, other = private(1, model, digits)[2], private(2, model, digits)[2]
    assert np.array_equal(sent.tensors["head.weight"], again.tensors["head.weight"])
    assert not np.array_equal(sent.tensors["head.weight"], other.tensors["head.weight"])


def test_private_training_of_one_sample_is_possible(bundle, digits):
    sent = private(1, OnnxModel(bundle), LocalData(digits.x[:1], digits.y[:1]))[2]
    assert np.isfinite(sent.tensors["head.weight"]).all()


def test_private_training_is_predicted_to_take_longer_for_as_many_operations(bundle):
    load, board = workload(bundle.manifest, (20,) * 10), shipped("pi-4")
    plain, private = (FedAvg(terms=terms).cost(load, board) for terms in ((), (DpSgd(),)))
    assert private.flops == plain.flops
    assert private.compute_s == pytest.approx(5 * plain.compute_s)
    graph = bundle.manifest.graphs["train.all"]
    batch = graph.memory_bytes(32) - graph.memory_bytes(1)  # as many as one run takes
    # instead of the sum of several runs' gradients, that of the samples'
    assert private.peak_memory_bytes == plain.peak_memory_bytes - batch + ACCOUNTANT_BYTES
