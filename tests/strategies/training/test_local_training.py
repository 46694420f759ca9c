import tracemalloc
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from device_runtime.models.bundles.manifest import Extra
from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.training.optimizer import Adam, Privacy, Sgd
from device_runtime.strategies.interface.device_half import LocalData, OutOfTime, Run
from device_runtime.strategies.terms.proximal import Proximal
from device_runtime.strategies.training import local_training
from device_runtime.strategies.training.local_training import TrainingPlan


@dataclass
class Rows:
    """A model of one tensor, whose gradient is the mean row of x; it counts calls in a running statistic."""

    width: int = 2
    statistics: Flat = field(default_factory=lambda: Flat([]))
    batches: list[tuple[list[int], dict[str, np.ndarray]]] = field(default_factory=list)

    def __post_init__(self):
        extras = (Extra("each", (1,), True), Extra("all", (1,), False))
        graphs = {"train.all": SimpleNamespace(extras=()), "moon.head": SimpleNamespace(extras=extras)}
        self.manifest = SimpleNamespace(graphs=graphs)

    def trainer(self, tunable, objective, batch=0):
        self.request = (tunable, objective)
        self.params, self.grads = (Flat([TensorSpec("w", (self.width,))]) for _ in range(2))
        return self

    def loss_and_grads(self, x, y, extras):
        self.batches.append((y.tolist(), dict(extras)))
        self.statistics.vector += 1
        np.mean(x, axis=0, out=self.grads.vector)
        return float(y.mean())


def rows(n=4, width=2):
    return LocalData(np.ones((n, width), np.float32), np.arange(n))


def plan(**changes):
    usual = {"optimizer": Sgd(0.5), "epochs": 1, "batch": 2, "indices": np.arange(4)}
    return TrainingPlan(**{**usual, **changes})


def test_every_sample_is_seen_once_an_epoch_and_the_loss_is_of_the_last(run):
    model = Rows()
    trained = local_training.train(model, rows(5), plan(epochs=2, indices=np.arange(5)), run())
    batches = [labels for labels, _ in model.batches]
    assert [len(batch) for batch in batches] == [2, 2, 1] * 2
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate(epoch).tolist()) == [0, 1, 2, 3, 4]
    assert trained.loss == pytest.approx(2.0)  # the mean of 0 to 4, each counted once
    np.testing.assert_allclose(trained.tensors["w"], -3.0)  # six steps of 0.5 * 1


def test_running_statistics_come_back_with_the_tensors(run):
    model = Rows(statistics=Flat([TensorSpec("running", (1,))]))
    trained = local_training.train(model, rows(), plan(), run())
    assert set(trained.tensors) == {"w", "running"}
    assert trained.tensors["running"] == [2.0]  # two batches


def test_an_objective_gets_its_extras_for_the_samples_of_each_batch(run):
    model, features = Rows(), np.arange(4, dtype=np.float32)[:, None] * 10

    def extras(batch):
        return {"each": features[batch]}

    local_training.train(model, rows(), plan(tunable="head", objective="moon", extras=extras), run())
    assert model.request == ("head", "moon")
    for labels, inputs in model.batches:
        assert inputs["each"].ravel().tolist() == [10.0 * label for label in labels]


def test_clipping_bounds_the_whole_step_with_the_proximal_term_in_it(run):
    """At w = 0: (1, 1) + 3 * (w - (-1, -1)) = (4, 4), of norm 5.66, clipped to 1; the step is 0.5 of it."""
    anchor = {"w": np.full(2, -1, np.float32)}
    settings = plan(batch=4, gradients=(Proximal(3.0, anchor),), clip_norm=1.0)
    trained = local_training.train(Rows(), rows(), settings, run())
    np.testing.assert_allclose(trained.tensors["w"], -0.5 / np.sqrt(2), rtol=1e-5)


def test_adam_with_two_proximal_terms_is_the_loop_written_out(model, digits, run):
    names = model.manifest.names("all")
    base = {name: model.weights[name] for name in names}
    few_shot = {name: base[name] + np.float32(0.1) for name in model.manifest.names("head")}
    terms = (Proximal(0.5, base), Proximal(0.4, few_shot))
    settings = TrainingPlan(Adam(1e-3), 2, 60, np.arange(120), gradients=terms)
    sent = local_training.train(model, digits, settings, run()).tensors
    trainer, rng = model.trainer("all", batch=60), run().rng()
    w, g = trainer.params, trainer.grads
    steps = Adam(1e-3).start(w.vector)
    for _ in range(2):
        order = rng.permutation(120)
        for batch in (order[:60], order[60:]):
            trainer.loss_and_grads(digits.x[batch], digits.y[batch])
            for name in names:
                g.views[name][...] += 0.5 * (w.views[name] - base[name])
            for name, anchor in few_shot.items():
                g.views[name][...] += 0.4 * (w.views[name] - anchor)
            steps.step(w.vector, g.vector)
    for name in names:
        np.testing.assert_allclose(sent[name], w.views[name], atol=2e-5)


def private(noise=0.0, max_norm=1e6, seed=0):
    return Privacy(max_norm, noise, np.random.default_rng(seed))


def test_without_noise_or_bound_a_private_step_on_everything_is_an_ordinary_one(model, digits, run):
    settings = {"optimizer": Sgd(0.1), "epochs": 1, "indices": np.arange(20), "tunable": "head"}
    ordinary = local_training.train(model, digits, TrainingPlan(batch=20, **settings), run())
    same = local_training.train(model, digits, TrainingPlan(batch=20, privacy=private(), **settings), run())
    larger = local_training.train(model, digits, TrainingPlan(batch=50, privacy=private(), **settings), run())
    for name, expected in ordinary.tensors.items():
        np.testing.assert_allclose(same.tensors[name], expected, atol=2e-6)
        np.testing.assert_array_equal(larger.tensors[name], same.tensors[name])
    assert np.isnan(same.loss) and np.isfinite(ordinary.loss)


def test_private_batches_hold_each_sample_by_chance_and_may_be_empty(run):
    """1,000 lots of 1 from 4: binomial sizes of mean 1 and variance 3/4; empty in (3/4)^4 = 0.316."""
    sizes = []

    def extras(batch):
        sizes.append(len(batch))
        return {}

    local_training.train(Rows(), rows(), plan(epochs=250, batch=1, extras=extras, privacy=private()), run())
    assert len(sizes) == 1000
    assert np.mean(sizes) == pytest.approx(1.0, abs=0.1)
    assert np.var(sizes) == pytest.approx(0.75, abs=0.12)
    assert np.mean(np.equal(sizes, 0)) == pytest.approx(0.316, abs=0.06)


def test_private_noise_is_the_generator_s_and_not_the_round_s(run):
    def end(seed, device):
        settings = plan(privacy=private(noise=1.0, max_norm=1.0, seed=seed))
        return local_training.train(Rows(), rows(), settings, run(device)).tensors["w"].tolist()

    assert end(1, "pi-1") == end(1, "pi-2")
    assert end(1, "pi-1") != end(2, "pi-1")


def test_extras_of_private_training_are_cut_by_row_where_they_have_rows(run):
    model = Rows()

    def extras(batch):
        return {"each": np.ones((len(batch), 1), np.float32), "all": np.ones(1, np.float32)}

    settings = plan(batch=4, tunable="head", objective="moon", extras=extras, privacy=private())
    local_training.train(model, rows(), settings, run())
    assert [inputs["each"].shape for _, inputs in model.batches] == [(1, 1)] * 4
    assert {inputs["all"].shape for _, inputs in model.batches} == {(1,)}


def test_training_holds_weights_gradients_and_momentum_and_nothing_else_of_their_size(run):
    width = 1_000_000
    data = LocalData(np.ones((1, width), np.float32), np.zeros(1, np.int64))
    settings = plan(optimizer=Sgd(0.1, 0.9, 0.01), indices=np.arange(1), clip_norm=1.0)
    model = Rows(width)
    tracemalloc.start()
    local_training.train(model, data, settings, run())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    batch, rest = 4 * width, 4 * 100_000  # the rest: a block of scratch, and objects
    assert peak <= 4 * 3 * width + batch + rest


@dataclass
class Ticking(Rows):
    """A batch takes `seconds` on the clock, `slow` from its number `slow_from` on."""

    clock: object = None
    slow_from: int = 10**9

    def loss_and_grads(self, x, y, extras):
        self.clock.now += 10.0 if len(self.batches) >= self.slow_from else 1.0
        return super().loss_and_grads(x, y, extras)


def ended(clock, deadline, epochs=5, least=1, slow_from=10**9):
    """Two batches of 2 an epoch, a second each; every step moves w by -0.5."""
    model = Ticking(statistics=Flat([TensorSpec("running", (1,))]), clock=clock, slow_from=slow_from)
    run = Run(1, "pi", clock, deadline)
    return local_training.train(model, rows(), plan(epochs=epochs, least=least), run)


def test_a_run_that_cannot_be_finished_ends_after_the_last_whole_epoch(clock):
    """10 s do not fit into 7: seen after 1 s, at a tenth; the first epoch takes 2 s and is what is sent."""
    trained = ended(clock, deadline=7.0)
    assert (trained.epochs, clock.now) == (1, 2.0)
    np.testing.assert_allclose(trained.tensors["w"], -1.0)


def test_what_was_begun_after_the_last_whole_epoch_is_not_sent(clock):
    """The fifth batch, of the third epoch, takes so long that no more fits: two epochs are four steps."""
    trained = ended(clock, deadline=12.0, slow_from=4)
    assert (trained.epochs, clock.now) == (2, 14.0)
    np.testing.assert_allclose(trained.tensors["w"], -2.0)
    assert trained.tensors["running"] == [4.0]
    assert trained.loss == pytest.approx(1.5)  # of the second epoch


def test_a_run_with_time_for_all_of_it_does_all_of_it(clock):
    trained = ended(clock, deadline=10.0)
    assert (trained.epochs, clock.now) == (5, 10.0)
    np.testing.assert_allclose(trained.tensors["w"], -5.0)


def test_a_run_without_time_for_the_least_number_of_epochs_is_given_up(clock):
    """After a second neither the 10 s of all fit into 5, nor the 6 s of three epochs."""
    with pytest.raises(OutOfTime) as refusal:
        ended(clock, deadline=5.0, least=3)
    assert (clock.now, refusal.value.whole_s) == (1.0, pytest.approx(10.0))


def test_a_run_that_ends_early_is_bit_for_bit_one_of_so_many_epochs(model, digits, clock):
    def ticking(done: float) -> None:
        clock.now += 1

    settings = {"optimizer": Sgd(0.1, 0.5), "batch": 60, "indices": np.arange(240)}
    early = Run(1, "pi", clock, upload_at=12.0, progress=ticking)
    stopped = local_training.train(model, digits, TrainingPlan(epochs=10, least=1, **settings), early)
    assert 1 <= stopped.epochs < 10
    whole = Run(1, "pi", lambda: 0.0, upload_at=1.0)
    same = local_training.train(model, digits, TrainingPlan(epochs=stopped.epochs, **settings), whole)
    for name, value in same.tensors.items():
        np.testing.assert_array_equal(stopped.tensors[name], value)
    assert stopped.loss == same.loss
