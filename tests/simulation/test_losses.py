"""Simulations of bundles whose loss is not cross-entropy: they train, and show the metrics that fit."""

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.data.loading import prepared_targets
from device_runtime.simulation.errors import ScenarioError, SimulationError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)).astype(np.float32)
HOUSES = np.stack([100 + 30 * X[:, 0], 3 * X[:, 1] - 3 * X[:, 2]], 1)


def simulated(bundle, data, policies, **more):
    return dr.simulate(bundle, data=data, policies=policies, devices=4, rounds=3, **more)


def test_a_regression_is_judged_by_r2_and_errors_in_original_units(exported):
    data = dr.data.arrays(X, HOUSES, labels=["price", "area"])
    result = simulated(exported.of_loss("mse"), data, ["mixed", "fedavg"])
    run = result.run("fedavg", seed=0)
    assert run.rounds[-1].metric == "R2"
    assert run.accuracy[-1] > max(0.5, run.accuracy[0])
    assert 0 < run.rounds[-1].eval_metrics["RMSE price"] < 30  # the spread of the prices
    table = result.table(whole=True)
    for row in ("final R2", "final RMSE price", "final MAE area", "R2 at equal rounds"):
        assert row in table
    assert "accuracy" not in table
    assert result.plot("accuracy").title == "R2 over virtual time"
    with pytest.raises(SimulationError, match="classes"):
        result.plot("classes")


def test_a_table_has_the_columns_that_the_bundle_names(exported, tmp_path):
    rows = [",".join(f"{value:.4f}" for value in row) for row in np.hstack([HOUSES, X])]
    (tmp_path / "houses.csv").write_text("\n".join(["price,area,a,b,c,d", *rows]))
    result = simulated(exported.of_loss("mse"), dr.data.table(tmp_path / "houses.csv"), ["fedavg"])
    assert set(result.run("fedavg", seed=0).rounds[-1].eval_metrics) >= {"RMSE price", "RMSE area"}


def test_flags_are_judged_by_label_accuracy_and_f1(exported):
    flags = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 2] > 1], 1).astype(np.int64)
    result = simulated(exported.of_loss("bce"), dr.data.arrays(X, flags), ["fedavg"])
    last = result.run("fedavg", seed=0).rounds[-1]
    assert (last.metric, set(last.eval_metrics)) == ("label accuracy", {"exact match", "F1"})
    assert last.eval_acc > 0.6
    assert "final label accuracy" in result.table(whole=True)
    assert result.table().splitlines()[2].split()[-7:-3] == ["end", "exact", "match", "F1"]


def test_anomalies_are_not_trained_on_and_are_found(exported, tmp_path):
    """Normal samples lie on a plane."""
    x = X @ np.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    y = (np.arange(len(x)) % 4 == 0).astype(np.int64)
    x[y == 1] = 3 * X[y == 1]
    data = dr.data.arrays(x, y, partition="iid", labels=["normal", "anomaly"])
    result = simulated(exported.of_loss("mse", "input"), data, ["fedavg"])
    run = result.run("fedavg", seed=0)
    assert run.rounds[-1].eval_metrics["AUROC"] > 0.8
    assert run.accuracy[-1] > run.accuracy[0]


def test_a_kind_that_works_by_class_is_refused_where_nothing_else_is_offered(exported):
    data = dr.data.arrays(X, HOUSES, labels=["price", "area"])
    with pytest.raises(ScenarioError, match="class-means works by class, and the bundle's loss is mse of"):
        simulated(exported.of_loss("mse"), data, ["class-means"])


def test_kinds_that_work_by_class_are_passed_over_beside_others(exported):
    data = dr.data.arrays(X, HOUSES, labels=["price", "area"])
    others = ["class-means", "few-shot", "representatives", "prototypes", "attention-transfer"]
    result = dr.simulate(
        exported.of_loss("mse"), data=data, kinds=[*others, "full"], devices=4, rounds=2, fleet="mixed"
    )
    run = result.run(result.policies[0], seed=0)
    assert run.accuracy[-1] > run.accuracy[0]


def test_data_of_another_form_than_the_loss_takes_is_refused(exported, bundle):
    classes = DataSet(X, np.zeros(240, np.int64), X, np.zeros(240, np.int64), ("a", "b"))
    houses = DataSet(X, HOUSES, X, HOUSES, ("price", "area"))
    with pytest.raises(
        ScenarioError, match="the data has 2 classes, the loss of bundle mse is mse of columns"
    ):
        prepared_targets(classes, Bundle.open(exported.of_loss("mse")).manifest, classes.train_y)
    with pytest.raises(
        ScenarioError, match="2 columns of targets, the loss of .* is cross-entropy of classes"
    ):
        prepared_targets(houses, bundle.manifest, houses.train_y)
    with pytest.raises(
        ScenarioError, match=r"does not fit bundle bce: targets are .* expected numbers \(n, 3\)"
    ):
        prepared_targets(houses, Bundle.open(exported.of_loss("bce")).manifest, houses.train_y)


def test_targets_are_divided_by_tenths_of_the_first_column():
    houses = DataSet(X, HOUSES, X, HOUSES, ("price", "area"))
    assert np.bincount(houses.keys).tolist() == [24] * 10
    assert HOUSES[houses.keys == 0, 0].max() < HOUSES[houses.keys == 9, 0].min()
    assert houses.key_names[9] == "price, tenth 10"
    flags = DataSet(X, np.eye(3)[[0, 2]], X, np.eye(3)[[0, 2]], ("a", "b", "c"))
    assert (flags.keys.tolist(), flags.key_names) == ([0, 2], ("a", "b", "c"))
