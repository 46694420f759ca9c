"""Metrics of the user's own, models that are kept, and what callbacks are given: one small run."""

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.models.training.metrics import MetricError
from device_runtime.simulation.errors import ScenarioError, SimulationError


class Watch(dr.Callback):
    """Keeps the names of devices, and the weights of each round."""

    def __init__(self):
        self.devices, self.weights, self.metrics = set(), [], []

    def on_update(self, job, update):
        assert update.device == job.name
        self.devices.add(update.device)

    def on_round(self, round):  # noqa: A002
        self.weights.append(round.weights())
        self.metrics.append(dict(round.metrics))


def wrong_sevens(outputs, y):
    return (outputs[y == 7].argmax(axis=1) != 7).mean()


@pytest.fixture(scope="module")
def watched():
    watch = Watch()
    result = dr.simulate(
        "digits",
        policies=["few-shot"],
        devices=4,
        rounds=3,
        metrics=["f1-macro", wrong_sevens],
        callbacks=[watch],
        keep_models=2,
        progress=False,
    )
    return result, watch


def test_metrics_are_figures_of_every_round(watched):
    result, watch = watched
    columns = result.run("few-shot").columns()
    assert columns["f1-macro"].shape == columns["wrong_sevens"].shape == (3,)
    assert [figures["f1-macro"] for figures in watch.metrics] == columns["f1-macro"].tolist()
    assert all(name in result.table().splitlines()[2] for name in ("f1-macro", "wrong_sevens"))
    assert "final f1-macro" in result.table(whole=True)


def test_any_metric_of_a_finished_run_can_be_asked_for(watched):
    run = watched[0].run("few-shot")
    figures = run.evaluate("accuracy", "f1-macro", "confusion-matrix", wrong_sevens)
    assert figures["accuracy"] == pytest.approx(run.accuracy[-1])
    assert figures["f1-macro"] == pytest.approx(run.columns()["f1-macro"][-1])
    matrix = figures["confusion-matrix"]
    assert matrix.trace() / matrix.sum() == pytest.approx(figures["accuracy"])
    assert figures["wrong_sevens"] == pytest.approx(1 - matrix[7, 7] / matrix[7].sum())
    assert run.evaluate("accuracy", round=2)["accuracy"] == pytest.approx(run.accuracy[1])
    with pytest.raises(MetricError, match="no metric 'f2'"):
        run.evaluate("f2")


def test_every_second_model_is_kept(watched):
    result, watch = watched
    run = result.run("few-shot")
    assert run.kept_rounds == (2,)
    for round_, weights in ((2, run.weights(2)), (3, run.weights())):
        assert all(np.array_equal(weights[name], value) for name, value in watch.weights[round_ - 1].items())
    with pytest.raises(SimulationError, match=r"the model of round 3 was not kept; kept are 2"):
        run.weights(3)


def test_callbacks_know_the_devices(watched):
    assert watched[1].devices == {row.device for row in watched[0].updates() if row.fate == "counted"}


def test_metrics_that_rounds_cannot_have_are_refused_before_anything_runs():
    with pytest.raises(ScenarioError, match="confusion-matrix is a table.*`evaluate` of a finished run"):
        dr.simulate("digits", devices=4, rounds=1, metrics=["confusion-matrix"], progress=False)
    with pytest.raises(MetricError, match="there is no metric 'beauty'"):
        dr.simulate("digits", devices=4, rounds=1, metrics=["beauty"], progress=False)
