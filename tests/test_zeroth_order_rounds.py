"""Rounds of zeroth-order updates alone: no weights travel after the first, who missed rounds replays."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from device_runtime.simulation.executors.job import PlainExecutor, TrainingJob
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.folding import Folding

ROOT = Path(__file__).parents[1]
ROUNDS = 30


@pytest.fixture
def join(broker, launched, digits_in, tmp_path):
    """A device that takes a fifth of a second or so for its passes, so that rounds go by at that pace."""

    def start(name):
        first = 80 * "ab".index(name)
        data = digits_in(tmp_path / f"{name}.npz", slice(first, first + 80))
        settings = ("--data", data, "--name", name, "--state", tmp_path / name)
        slow = ("--as", "pi-4", "--slow", "3", "--until-done")
        return launched(tmp_path / f"{name}.log", "join", broker.url, *settings, *slow)

    return start


@pytest.mark.slow
def test_no_weights_travel_and_a_device_that_missed_rounds_replays_them(
    broker, launched, join, lines, eventually, tmp_path
):
    options = f"--bundle digits-wrn-10-1 --kinds zeroth-order --rounds {ROUNDS} --deadline 60 --min-devices 2"
    where = ("--broker", broker.url, "--run-dir", tmp_path / "run")
    log = tmp_path / "b.log"
    with launched(tmp_path / "serve.log", "serve", *options.split(), *where) as service, join("a"):
        with join("b") as first:
            eventually(lambda: log.read_text().count(": zeroth-order") >= 2)
            first.kill()  # it has taken part in two rounds, and misses the next ones
        before = len(lines(tmp_path / "run" / "contributions.jsonl"))
        eventually(lambda: len(lines(tmp_path / "run" / "contributions.jsonl")) >= before + 4)
        with join("b") as second:
            assert service.wait(900) == 0
            assert second.wait(600) == 0
    sent = lines(tmp_path / "run" / "contributions.jsonl")
    rounds = {name: {c["round"] for c in sent if c["device"] == name} for name in ("a", "b")}
    assert rounds["a"] == set(range(1, ROUNDS + 1))
    missed = rounds["a"] - rounds["b"]
    assert missed, "b was never away"
    assert max(rounds["b"]) > max(missed), "b never came back"
    assert "beginning anew" not in log.read_text(), "a replayed base was not the aggregator's"
    later = [c for c in sent if c["device"] == "a" and c["round"] > 1]
    assert all(c["bytes_down"] < 1500 and c["bytes_up"] < 200 for c in later), "weights travelled"


@pytest.mark.parametrize("settings", [{}, {"sides": 1}, {"sampled": 0.4, "num_z": 4}, {"sizing": "relative"}])
def test_heads_on_kept_features_measure_what_devices_do(monkeypatch, settings):
    """What benchmarks of liars and of late scalars rest on."""
    monkeypatch.syspath_prepend(str(ROOT))
    heads = importlib.import_module("benchmarks.zeroth.heads")
    inputs = prepare(scenario.load("uniform", {"devices": 4, "data": {"samples_per_client": 30}}), 0).inputs
    kind = ZerothOrder(tunable="head", **settings)
    jobs = [TrainingJob(device, f"device-{device}", kind, 7, "1") for device in range(4)]
    bases = {"1": inputs.bundle.weights()}
    plain, by_features = (
        [*executor.run(bases, jobs)] for executor in (PlainExecutor(inputs), heads.Heads(inputs))
    )
    for update, other in zip(plain, by_features, strict=True):
        assert update.num_examples == other.num_examples == 30
        assert update.train_loss == pytest.approx(other.train_loss, rel=1e-6)
        np.testing.assert_allclose(update.tensors["g"], other.tensors["g"], rtol=0, atol=1e-3)


def test_in_a_simulated_fleet_late_scalars_are_steps_along_the_directions_of_their_rounds(monkeypatch):
    """Buffered rounds, of boards some of which are slow: what those send goes into a later round."""
    merged, steps = Folding.merged, []

    def noted(self):
        model = merged(self)
        steps.append(model[0].steps)
        return model

    class Asked(NullObserver):
        late = 0

        def asked(self, ask):
            self.late += ask.fate == "counted" and ask.into > ask.round

    monkeypatch.setattr(Folding, "merged", noted)
    groups = {"fast": {"profile": "pi-5", "share": 0.5}, "slow": {"profile": "pi-zero-2w", "share": 0.5}}
    kinds = [{"name": "zeroth-order", "settings": {"tunable": "head"}}]
    task = {"rounds": 8, "round_deadline_s": 1e4, "kinds": kinds, "buffer_size": 2, "devices_per_round": 4}
    data = {"samples_per_client": 20}
    fleet = {"name": "two", "groups": groups}
    over = {"fleet": fleet, "devices": 6, "slow": 50.0, "eval_every": 8, "data": data, "task": task}
    watch, simulated = Asked(), scenario.load("uniform", over)
    simulate(prepare(simulated, 0), PlainExecutor, watch)
    apart = [[step.round for step in together] for together in steps]
    assert watch.late > 0
    assert all(rounds[-1] == number or number not in rounds for number, rounds in enumerate(apart, 1))
    late = [
        (step, number) for number, together in enumerate(steps, 1) for step in together if step.round < number
    ]
    assert late
    for step, number in late:
        assert step.seed == simulated.task.round_seed(step.round)
        assert step.share < simulated.task.late_share(number - step.round)
