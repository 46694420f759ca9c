import msgspec
import numpy as np
import pytest

from models.manifest import Parameter
from models.optimizer import Sgd
from strategies.entropy_subset import EntropySubset
from strategies.full import Full
from strategies.kind import Contribution, OutOfTime, Run


def test_fedavg_weights_by_samples(round_model):
    """(30 * 1 + 10 * 5) / 40 = 2, worked by hand."""
    strategy = Full()
    state = strategy.start(round_model)
    for value, n in ((1.0, 30), (5.0, 10)):
        tensors = {name: np.full_like(w, value) for name, w in round_model.weights.items()}
        state = strategy.fold(state, Contribution("full", tensors, n, 0.0), n)
    effect = strategy.finish(state, round_model)
    assert all((mean == 2).all() for mean in effect.mean.mean().values())
    assert effect.num_examples == 40


def test_a_full_update_lowers_the_loss_and_sends_every_parameter(model, digits, run):
    before = model.probe("all").loss(digits.x, digits.y)
    sent = Full(epochs=2, batch=32).train(model, digits, run())
    assert set(sent.tensors) == set(model.manifest.names("all"))
    assert sent.num_examples == 240
    model.load(sent.tensors)
    assert model.probe("all").loss(digits.x, digits.y) < 0.8 * before


def test_fedprox_adds_its_pull_to_each_step(model, digits, run):
    """Two steps of one batch each, written out: g + mu (w - w_g), equation 2 of Li et al. 2020."""
    mu, lr = 5.0, 0.05
    sent = Full(epochs=2, batch=240, lr=lr, momentum=0.0, weight_decay=0.0, mu=mu).train(model, digits, run())
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
        sent = Full(epochs=3, batch=32, mu=mu).train(model, digits, run())
        return sum(float(((v - model.weights[n]) ** 2).sum()) for n, v in sent.tensors.items())

    assert distance(1.0) < 0.7 * distance(0.0)


def test_the_device_s_own_clock_stops_a_run_that_would_miss_the_deadline(model, digits, clock):
    """Each batch takes a second here; 16 batches do not fit into 6 seconds, which shows after two."""

    def ticking(done: float) -> None:
        clock.now += 1

    run = Run(1, "slow", clock, deadline=6.0, progress=ticking)
    with pytest.raises(OutOfTime, match="would end"):
        Full(epochs=2, batch=30).train(model, digits, run)
    assert clock.now == 2


def test_sgd_of_the_thesis_is_the_default():
    strategy = Full()
    sgd = Sgd(strategy.lr, strategy.momentum, strategy.weight_decay)
    params = np.array([1.0], np.float32)
    sgd.start(params).step(params, np.array([2.0], np.float32))
    assert params[0] == pytest.approx(1 - 0.1 * (2 + 1e-5))


def test_fedavg_of_several_batches_is_the_loop_written_out(model, digits, run):
    """Algorithm 1 of McMahan et al. 2017, with the momentum and weight decay of thesis 002, table 4.1."""
    strategy = Full(epochs=2, batch=30)
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
    strategy = Full(epochs=1, batch=240, lr=0.5, momentum=0.0, weight_decay=0.0, clip_norm=0.1)
    sent = strategy.train(model, digits, run())
    moved = sum(float(((v - model.weights[n]) ** 2).sum()) for n, v in sent.tensors.items())
    assert np.sqrt(moved) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(("strategy", "tunable"), [(Full(), "all"), (EntropySubset(), "mid")])
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
    whole, reduced = Full(epochs=10, reduced_epochs=1).variants()
    assert (whole.epochs, whole.form) == (10, "")
    assert (reduced.epochs, reduced.form) == (1, "epochs=1")
    assert reduced.variants() == (reduced,)
    assert Full(epochs=10).variants() == (Full(epochs=10),)
    with pytest.raises(ValueError, match="reduced_epochs is 11, expected 1 to 10"):
        Full(epochs=10, reduced_epochs=11)
