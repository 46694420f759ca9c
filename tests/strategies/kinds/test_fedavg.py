from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.manifest import Parameter
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import shipped
from device_runtime.strategies.interface.device_half import OutOfTime, Run, Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.terms.moon import Moon
from device_runtime.strategies.terms.proximal import FedProx, FscProx
from device_runtime.strategies.training.workload import workload


def test_fedavg_weights_by_samples(round_model):
    """(30 * 1 + 10 * 5) / 40 = 2, worked by hand."""
    strategy = FedAvg()
    state = strategy.start(round_model)
    for value, n in ((1.0, 30), (5.0, 10)):
        update = {name: np.full_like(w, value) for name, w in round_model.weights.items()}
        state = strategy.fold(state, Update("full", update, n, 0.0), n)
    effect = strategy.finish(state, round_model)
    assert all((mean == 2).all() for mean in effect.mean.mean().values())
    assert effect.num_examples == 40


def test_a_full_update_lowers_the_loss_and_sends_every_parameter(model, digits, run):
    before = model.probe("all").loss(digits.x, digits.y)
    sent = FedAvg(epochs=2, batch=32).train(model, digits, run())
    assert set(sent.tensors) == set(model.manifest.names("all"))
    assert sent.num_examples == 240
    model.load(sent.tensors)
    assert model.probe("all").loss(digits.x, digits.y) < 0.8 * before


def test_fedprox_adds_its_pull_to_each_step(model, digits, run):
    """Two steps of one batch each, written out: g + mu (w - w_g), equation 2 of Li et al. 2020."""
    mu, lr = 5.0, 0.05
    sent = FedAvg(epochs=2, batch=240, lr=lr, momentum=0.0, weight_decay=0.0, terms=(FedProx(mu),)).train(
        model, digits, run()
    )
    trainer = model.trainer("all")
    w = trainer.params.vector
    start = w.copy()
    for _ in range(2):
        trainer.loss_and_grads(digits.x, digits.y)
        w[:] = w - lr * (trainer.grads.vector + mu * (w - start))
    for name, expected in trainer.params.views.items():
        np.testing.assert_allclose(sent.tensors[name], expected, atol=2e-5)


def test_fedprox_stays_nearer_to_the_base(model, digits, run):
    def distance(mu: float) -> float:
        sent = FedAvg(epochs=3, batch=32, terms=(FedProx(mu),) if mu else ()).train(model, digits, run())
        return sum(float(((v - model.weights[n]) ** 2).sum()) for n, v in sent.tensors.items())

    assert distance(1.0) < 0.7 * distance(0.0)


def test_the_device_s_own_clock_stops_a_run_that_would_miss_the_deadline(model, digits, clock):
    """Each batch takes a second here; 16 batches do not fit into 6 seconds, which shows after two."""

    def ticking(done: float) -> None:
        clock.now += 1

    run = Run(1, "slow", clock, upload_at=6.0, progress=ticking)
    with pytest.raises(OutOfTime, match="would end"):
        FedAvg(epochs=2, batch=30).train(model, digits, run)
    assert clock.now == 2


def test_sgd_of_the_thesis_is_the_default():
    strategy = FedAvg()
    sgd = Sgd(strategy.lr, strategy.momentum, strategy.weight_decay)
    params = np.array([1.0], np.float32)
    sgd.start(params).step(params, np.array([2.0], np.float32))
    assert params[0] == pytest.approx(1 - 0.1 * (2 + 1e-5))


def test_fedavg_of_several_batches_is_the_loop_written_out(model, digits, run):
    """Algorithm 1 of McMahan et al. 2017, with the momentum and weight decay of thesis 002, table 4.1."""
    strategy = FedAvg(epochs=2, batch=30, clip_norm=0.0)
    sent = strategy.train(model, digits, run())
    trainer = model.trainer("all")
    w = trainer.params.vector
    velocity = np.zeros_like(w)
    rng = run().rng()
    for _ in range(2):
        order = rng.permutation(np.arange(240))
        for at in range(0, 240, 30):
            batch = order[at : at + 30]
            trainer.loss_and_grads(digits.x[batch], digits.y[batch])
            velocity = 0.5 * velocity + trainer.grads.vector + 1e-5 * w
            w[:] = w - 0.1 * velocity
    for name, expected in trainer.params.views.items():
        np.testing.assert_allclose(sent.tensors[name], expected, atol=2e-5)


def test_a_clipped_step_is_as_long_as_the_learning_rate_times_the_norm(model, digits, run):
    """One step without momentum and decay, from a gradient longer than 0.1: 0.5 * 0.1 in all."""
    strategy = FedAvg(epochs=1, batch=240, lr=0.5, momentum=0.0, weight_decay=0.0, clip_norm=0.1)
    sent = strategy.train(model, digits, run())
    moved = sum(float(((v - model.weights[n]) ** 2).sum()) for n, v in sent.tensors.items())
    assert np.sqrt(moved) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("strategy", "new", "pretrained"),
    [
        (FedAvg(), 2.0, 0.5),
        (FedAvg(clip_norm=0.0), 0.0, 0.0),
        (FedAvg(clip_norm=3.0), 3.0, 3.0),
        (EntropySubset(), 2.0, 2.0),
        (EntropySubset(tunable="all"), 2.0, 0.5),
        (Peft(tunable="bias"), 2.0, 2.0),
    ],
)
def test_all_of_a_pretrained_network_is_trained_in_smaller_steps(bundle, strategy, new, pretrained):
    assert strategy.clip_norm_for(bundle.manifest) == new
    assert strategy.clip_norm_for(msgspec.structs.replace(bundle.manifest, pretrained=True)) == pretrained


def test_a_pretrained_network_that_is_only_a_head_is_trained_as_the_simulation_trains_heads(bundle, run):
    """The simulation trains heads without the bundle, so the bound must not depend on it."""
    parameters = tuple(
        msgspec.structs.replace(parameter, sets=("all", "head") if "head" in parameter.sets else ())
        for parameter in bundle.manifest.parameters
    )
    head_only = msgspec.structs.replace(bundle.manifest, parameters=parameters, pretrained=True)
    assert FedAvg().trains_head(head_only)
    bound = FedAvg().head_training(np.zeros(8, np.int64), run()).clip_norm
    assert FedAvg().clip_norm_for(head_only) == bound == 2.0


def test_private_training_bounds_each_sample_and_not_the_step_as_well(model, digits, run):
    assert FedAvg().plan(model, digits, run()).clip_norm == 2.0
    assert FedAvg(terms=(DpSgd(),), clip_norm=0.1).plan(model, digits, run()).clip_norm == 0.0


@pytest.mark.parametrize(("strategy", "tunable"), [(FedAvg(), "all"), (EntropySubset(), "mid")])
def test_statistics_that_training_moves_belong_to_an_update(bundle, strategy, tunable):
    manifest = bundle.manifest
    graph = msgspec.structs.replace(manifest.graphs[f"train.{tunable}"], statistics=("running",))
    moving = msgspec.structs.replace(
        manifest,
        parameters=(*manifest.parameters, Parameter("running", (16,), "float32", "mid", ())),
        graphs={**manifest.graphs, f"train.{tunable}": graph},
    )
    assert [spec.name for spec in strategy.expected(moving)] == [*manifest.names(tunable), "running"]


def test_a_device_may_train_fewer_epochs_where_the_round_allows_it():
    """FedAvg+ (thesis 002): all epochs, or the reduced number."""
    whole, reduced = FedAvg(epochs=10, reduced_epochs=1).variants()
    assert (whole.epochs, whole.variant, whole.least) == (10, "", 1)
    assert (reduced.epochs, reduced.variant, reduced.least) == (1, "epochs=1", 0)
    assert (whole.variants(), reduced.variants()) == ((whole,), (reduced,))
    assert FedAvg(epochs=10).variants() == (FedAvg(epochs=10),)
    for name in ("reduced_epochs", "least_epochs"):
        with pytest.raises(ValueError, match=f"{name} is 11, expected 1 to 10"):
            FedAvg(epochs=10, **{name: 11})


def test_a_device_may_train_half_of_the_epochs_or_a_quarter():
    whole, *fewer = FedAvg(epochs=10, reduced_epochs=2, graded=True).variants()
    assert (whole.epochs, whole.variant, whole.least, whole.variants()) == (10, "", 2, (whole,))
    assert [form.variant for form in fewer] == ["epochs=5", "epochs=2"]
    assert all(form.variants() == (form,) for form in fewer)
    assert [form.variant for form in FedAvg(epochs=8, graded=True).variants()] == [
        "", "epochs=4", "epochs=2", "epochs=1",
    ]  # fmt: skip
    assert [form.variant for form in FedAvg(epochs=12, reduced_epochs=4, graded=True).variants()] == [
        "", "epochs=6", "epochs=4",
    ]  # fmt: skip
    assert FedAvg(epochs=5, reduced_epochs=5, graded=True).variants()[0].variant == "epochs=5"
    kind = FedAvg(epochs=1, graded=True)
    assert kind.variants() == (kind,)


@pytest.mark.parametrize(("form", "weight"), [("", 30), ("epochs=5", 15), ("epochs=1", 3)])
def test_an_update_of_fewer_epochs_weighs_less_if_it_is_asked_for(form, weight):
    update = Update("full", {}, 30, 0.0, form)
    assert FedAvg(graded=True, weigh_epochs=True).weight(update) == weight
    assert FedAvg(graded=True).weight(update) == 30


def test_an_entropy_subset_weighs_by_its_epochs_and_by_all_samples():
    kind = EntropySubset(shares=(0.5, 0.1), graded=True, weigh="local", weigh_epochs=True, epochs=4)
    assert kind.weight(Update("entropy-subset", {}, 30, 0.0, "10% epochs=1")) == pytest.approx(30 / 0.1 / 4)


def test_a_straggler_of_fedprox_plus_trains_one_to_all_epochs_drawn_anew_in_each_round(model, digits):
    """Thesis 002, section 5.6: "to train randomly for 1 epoch to full local epochs E"."""
    whole, *fewer = FedAvg(epochs=4, drawn_epochs=True).variants()
    assert (whole.epochs, whole.variant, whole.least, whole.variants()) == (4, "", 1, (whole,))
    assert [form.variant for form in fewer] == ["epochs=3", "epochs=2", "epochs=1"]
    rounds = [Run(seed, "pi-1", lambda: 0.0, 1.0) for seed in range(300)]
    drawn = [fewer[0].plan(model, digits, run).epochs for run in rounds]
    assert all(80 < drawn.count(epochs) < 120 for epochs in (1, 2, 3))
    assert drawn == [fewer[0].plan(model, digits, run).epochs for run in rounds]
    assert {whole.plan(model, digits, run).epochs for run in rounds} == {4}
    two = next(run for run, epochs in zip(rounds, drawn, strict=True) if epochs == 2)
    sent = fewer[0].train(model, digits, two)
    assert variant_named(FedAvg(epochs=4, drawn_epochs=True), sent.variant).epochs == 2


@pytest.mark.parametrize(
    ("share", "epochs"), [(0.19, None), (0.2, 2), (0.39, 3), (0.7, 7), (0.3, 3), (0.999, 9)]
)
def test_what_was_stopped_is_worth_its_whole_epochs_if_they_are_enough(share, epochs):
    whole, reduced = FedAvg(epochs=10, reduced_epochs=2).variants()
    stopped = whole.stopped(share)
    assert (stopped and stopped.epochs) == epochs
    assert stopped is None or (stopped.variant, stopped.variants()) == (f"epochs={epochs}", (stopped,))
    assert FedAvg(epochs=10).stopped(share) is None
    assert reduced.stopped(share) is None


def test_a_device_that_runs_out_of_time_sends_the_epochs_that_it_has_done(model, digits, clock):
    """Eight batches of each of 10 epochs in a second each: 80 s do not fit into 40, as is seen after 8."""

    def ticking(done: float) -> None:
        clock.now += 1

    whole = FedAvg(epochs=10, batch=30, reduced_epochs=1).variants()[0]
    sent = whole.train(model, digits, Run(77, "pi-1", clock, upload_at=40.0, progress=ticking))
    assert (clock.now, sent.variant) == (8.0, "epochs=1")
    same = whole.stopped(0.1).train(model, digits, Run(77, "pi-1", lambda: 0.0, 1.0))
    assert tensors.encode(sent.tensors) == tensors.encode(same.tensors)
    assert (sent.variant, sent.train_loss) == (same.variant, same.train_loss)


def test_keeping_what_was_done_takes_one_more_copy_of_the_parameters(bundle):
    load, board = workload(bundle.manifest, (6,) * 10), shipped("pi-4")
    plain, with_copy = (FedAvg(least_epochs=least).cost(load, board).peak_memory_bytes for least in (0, 1))
    assert with_copy - plain == 4 * bundle.manifest.num_parameters("all")


def one_step(model, data, slope_of):
    """Each tensor after one step of 0.1 on all of `data`; slope_of(name, weight, slope)."""
    trainer = model.trainer("all")
    trainer.loss_and_grads(data.x, data.y)
    return {
        n: model.weights[n] - 0.1 * slope_of(n, model.weights[n], g) for n, g in trainer.grads.views.items()
    }


ONE_STEP = {"epochs": 1, "batch": 240, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.0}


def test_fscprox_pulls_the_classifier_alone_to_the_few_shot_learnt_one(model, digits, run):
    """mu_fsc * ||theta - theta_fs||^2 has slope 2 mu (theta - theta_fs): thesis 002, equation 4.3."""
    head = {f"few-shot/{n}": model.weights[n] + np.float32(0.3) for n in model.manifest.names("head")}
    aside = {**head, "of another kind": np.zeros(3, np.float32)}
    sent = FedAvg(terms=(FscProx(0.5),), **ONE_STEP).train(model, digits, replace(run(), aside=aside)).tensors
    expected = one_step(model, digits, lambda n, w, g: g - 2 * 0.5 * 0.3 if f"few-shot/{n}" in head else g)
    for name, value in expected.items():
        np.testing.assert_allclose(sent[name], value, atol=2e-6)


def test_before_there_is_a_few_shot_learnt_classifier_there_is_no_term(model, digits, run):
    sent, plain = (
        FedAvg(terms=terms, **ONE_STEP).train(model, digits, run()).tensors for terms in ((FscProx(0.5),), ())
    )
    assert tensors.encode(sent) == tensors.encode(plain)


def test_baseprox_pulls_the_classifier_to_that_of_the_base(model, digits, run):
    settings = {**ONE_STEP, "epochs": 2}
    sent = FedAvg(terms=(FscProx(0.5, "base"),), **settings).train(model, digits, run()).tensors
    start = {name: value.copy() for name, value in model.weights.items()}
    model.load(one_step(model, digits, lambda n, w, g: g))
    second = one_step(model, digits, lambda n, w, g: g + 2 * 0.5 * (w - start[n]) * n.startswith("head."))
    for name, value in second.items():
        np.testing.assert_allclose(sent[name], value, atol=2e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"terms": (FedProx(0.1),)},
        {"terms": (FscProx(0.1),)},
        {"terms": (DpSgd(),)},
        {"terms": (FscProx(0.1, "base"),)},
    ],
)
def test_terms_are_in_the_plan(model, digits, run, settings):
    """For executors that train many devices at once; FSCProx even where no classifier is there yet."""
    plain, more = (kind.plan(model, digits, run()) for kind in (FedAvg(), FedAvg(**settings)))
    assert (plain.objective, tuple(plain.gradients), plain.privacy) == ("train", (), None)
    assert more.gradients or more.privacy is not None


@pytest.mark.parametrize("term", [Moon, FscProx, FedProx])
def test_terms_have_weights_that_can_be(term):
    with pytest.raises(ValueError, match=r"mu is -0.1, expected more than 0"):
        term(-0.1)
