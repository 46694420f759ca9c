"""A regression and the search for anomalies, with real processes over a real broker."""

import json
import subprocess

import numpy as np
import pytest

HEADER = "a,b,c,d"


@pytest.fixture
def rounds(broker, launched, lines, tmp_path):
    """Serves two rounds of a bundle to devices a and b with these tables; returns the rounds."""

    def run(bundle, tables, evaluation):
        serve = ("serve", "--bundle", bundle, "--rounds", 2, "--min-devices", 2, "--eval-data", evaluation)
        where = ("--broker", broker.url, "--run-dir", tmp_path / "run")
        with launched(tmp_path / "serve.log", *serve, *where) as service:
            devices = []
            for name, table in zip("ab", tables, strict=True):
                place = ("--name", name, "--data", table, "--state", tmp_path / name, "--until-done")
                devices.append(launched(tmp_path / f"{name}.log", "join", broker.url, *place))
            with devices[0] as a, devices[1] as b:
                assert (service.wait(600), a.wait(600), b.wait(600)) == (0, 0, 0)
        return lines(tmp_path / "run" / "rounds.jsonl")

    return run


@pytest.fixture
def predicted(program, tmp_path):
    """What `predict` says of a file by device a's model."""

    def ask(file):
        words = [program, "predict", file, "--state", tmp_path / "a", "--format", "json"]
        return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)

    return ask


def written(path, x, header="", more=()):
    rows = [",".join([*(f"{value:.6g}" for value in row)]) for row in np.column_stack([x, *more])]
    path.write_text("\n".join([*([header] if header else []), *rows]))
    return path


def test_a_regression_runs_from_tables_to_predictions_in_original_units(
    exported, rounds, predicted, tmp_path
):
    rng = np.random.default_rng(0)

    def houses(name):
        x = rng.normal(size=(120, 4))
        y = np.stack([100 + 30 * x[:, 0], 3 * x[:, 1]], 1)
        return written(tmp_path / f"{name}.csv", x, f"{HEADER},price,area", y.T)

    tables = [houses("a"), houses("b")]
    first, last = rounds(exported.of_loss("mse"), tables, houses("c"))
    assert (last["metric"], set(last["metrics"])) == (
        "R2", {"RMSE price", "RMSE area", "MAE price", "MAE area"},
    )  # fmt: skip
    assert last["eval_acc"] > first["eval_acc"] > 0.5
    assert last["metrics"]["RMSE price"] < 15  # half of the prices' deviation
    log = (tmp_path / "serve.log").read_text()
    assert "no device can do this kind: few-shot works by class" in log
    assert "class-means works by class" not in log
    assert "R2 0." in log
    assert "R2 0." in (tmp_path / "a.log").read_text()
    prediction = predicted(written(tmp_path / "new.csv", np.array([[1.0, 0.0, 0.0, 0.0]])))[0]
    assert prediction["values"]["price"] == pytest.approx(130, abs=20)


def test_an_anomaly_is_told_by_the_error_of_its_reconstruction(exported, rounds, predicted, tmp_path):
    rng = np.random.default_rng(0)

    def normal(count):
        along = rng.normal(size=(count, 1))
        return along * [1, 1, -1, 1] + 0.05 * rng.normal(size=(count, 4))

    tables = [written(tmp_path / f"{name}.csv", normal(200)) for name in "ab"]
    x = np.concatenate([normal(60), 2 * rng.normal(size=(20, 4))])
    kind = np.repeat([0, 1], [60, 20])  # numbers of the labels normal and anomaly
    evaluation = written(tmp_path / "eval.csv", x, f"{HEADER},label", [kind])
    _, last = rounds(exported.of_loss("mse", "input"), tables, evaluation)
    assert last["metrics"]["AUROC"] > 0.8
    predictions = predicted(written(tmp_path / "new.csv", np.array([[0.5, 0.5, -0.5, 0.5], [5, -5, 5, 5]])))
    assert predictions[1]["error"] > predictions[1]["threshold"]
    assert predictions[0]["error"] < predictions[1]["error"]
