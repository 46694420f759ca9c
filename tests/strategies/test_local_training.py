import tracemalloc
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from models.clipping import Privacy
from models.manifest import Extra
from models.optimizer import Adam, Sgd
from models.proximal import Proximal, fscprox
from models.tensors import Flat, TensorSpec
from strategies import local_training
from strategies.kind import LocalData
from strategies.local_training import Epochs


@dataclass
class Rows:
    """A model of one tensor, whose gradient is the mean row of x; it counts calls in a running statistic."""

    width: int = 2
    statistics: Flat = field(default_factory=lambda: Flat([]))
    seen: list[tuple[list[int], dict[str, np.ndarray]]] = field(default_factory=list)

    def __post_init__(self):
        extras = (Extra("each", (1,), True), Extra("all", (1,), False))
        graphs = {"train.all": SimpleNamespace(extras=()), "moon.head": SimpleNamespace(extras=extras)}
        self.manifest = SimpleNamespace(graphs=graphs)

    def trainer(self, tunable, objective):
        self.asked = (tunable, objective)
        self.params, self.grads = (Flat([TensorSpec("w", (self.width,))]) for _ in range(2))
        return self

    def loss_and_grads(self, x, y, extras):
        self.seen.append((y.tolist(), dict(extras)))
        self.statistics.vector += 1
        np.mean(x, axis=0, out=self.grads.vector)
        return float(y.mean())


def rows(n=4, width=2):
    return LocalData(np.ones((n, width), np.float32), np.arange(n))


def plan(**changes):
    usual = {"optimizer": Sgd(0.5), "epochs": 1, "batch": 2, "indices": np.arange(4)}
    return Epochs(**{**usual, **changes})


def test_every_sample_is_seen_once_an_epoch_and_the_loss_is_of_the_last(run):
    model = Rows()
    trained = local_training.train(model, rows(5), plan(epochs=2, indices=np.arange(5)), run())
    batches = [labels for labels, _ in model.seen]
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
    assert model.asked == ("head", "moon")
    for labels, given in model.seen:
        assert given["each"].ravel().tolist() == [10.0 * label for label in labels]


def test_clipping_bounds_the_whole_step_with_the_proximal_term_in_it(run):
    """At w = 0: (1, 1) + 3 * (w - (-1, -1)) = (4, 4), of norm 5.66, clipped to 1; the step is 0.5 of it."""
    anchor = {"w": np.full(2, -1, np.float32)}
    settings = plan(batch=4, proximal=(Proximal(3.0, anchor),), clip_norm=1.0)
    trained = local_training.train(Rows(), rows(), settings, run())
    np.testing.assert_allclose(trained.tensors["w"], -0.5 / np.sqrt(2), rtol=1e-5)


def test_adam_with_two_proximal_terms_is_the_loop_written_out(model, digits, run):
    names = model.manifest.names("all")
    base = {name: model.weights[name] for name in names}
    few_shot = {name: base[name] + np.float32(0.1) for name in model.manifest.names("head")}
    terms = (Proximal(0.5, base), fscprox(0.2, few_shot))
    settings = Epochs(Adam(1e-3), 2, 60, np.arange(120), proximal=terms)
    sent = local_training.train(model, digits, settings, run()).tensors
    trainer, rng = model.trainer("all"), run().rng()
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
    ordinary = local_training.train(model, digits, Epochs(batch=20, **settings), run())
    same = local_training.train(model, digits, Epochs(batch=20, privacy=private(), **settings), run())
    larger = local_training.train(model, digits, Epochs(batch=50, privacy=private(), **settings), run())
    for name, expected in ordinary.tensors.items():
        np.testing.assert_allclose(same.tensors[name], expected, atol=2e-6)
        np.testing.assert_array_equal(larger.tensors[name], same.tensors[name])
    assert same.loss == pytest.approx(ordinary.loss, abs=1e-5)


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
    assert [given["each"].shape for _, given in model.seen] == [(1, 1)] * 4
    assert {given["all"].shape for _, given in model.seen} == {(1,)}


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
