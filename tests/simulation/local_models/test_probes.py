"""Local models of a round: which are compared, and what is seen of them."""

import numpy as np
import pytest

from benchmarks.local_models.probes import Probes, ProbeSet, mean_logits, spread_rounds
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.width_slice import WidthSlice

RNG = np.random.default_rng(0)
PROBE = ProbeSet(RNG.normal(size=(12, 1, 8, 8)).astype(np.float32), np.arange(12) % 10)


class Answers:
    """An executor that has been asked for nothing but its bases."""

    name = "answers"

    def run(self, bases, jobs):
        return iter(())

    def close(self):
        self.closed = True


@pytest.fixture
def notes():
    return []


@pytest.fixture
def probes(model, bundle, notes):
    probes = Probes(model, PROBE, frozenset({1, 3}), notes.append)
    probes.over(Answers()).run({"1": bundle.weights()}, [])
    return probes


def job(name):
    return TrainingJob(0, name, FedAvg(), 0, base="1")


def changed(bundle, seed, only=None):
    rng = np.random.default_rng(seed)
    return {
        name: value + rng.normal(0, 0.1, value.shape).astype(value.dtype)
        for name, value in bundle.weights().items()
        if only is None or name in only
    }


def test_every_two_models_of_a_probed_round_are_compared(probes, bundle, notes, round_line):
    same = changed(bundle, 1)
    for device, tensors in (("a", same), ("b", same), ("c", changed(bundle, 2))):
        probes.trained(job(device), Update("full", tensors, 9, 1.0))
    probes.closed(round_line(round=1))
    [line] = notes
    assert (line.round, line.devices) == (1, ("a", "b", "c"))
    matrix = line.cka["head"]
    assert matrix[0][1] == pytest.approx(1.0)
    assert matrix[0][2] == matrix[1][2] == matrix[2][0] < 0.99
    assert line.means["head"] == pytest.approx((1 + 2 * matrix[0][2]) / 3, abs=2e-5)
    [heat] = line.heat
    assert (heat.kind, heat.device, np.shape(heat.matrix)) == ("full", "a", (10, 10))


def test_a_model_of_which_only_the_head_changed_is_seen_but_not_compared(probes, bundle, notes, round_line):
    head = changed(bundle, 1, only=("head.weight", "head.bias"))
    for device in "ab":
        probes.trained(job(device), Update("few-shot", head, 9, 1.0))
    probes.closed(round_line(round=1))
    [line] = notes
    assert (line.devices, line.cka, line.means) == ((), {}, {})
    assert [heat.kind for heat in line.heat] == ["few-shot"]


def test_the_heat_map_is_of_the_base_with_what_was_sent(probes, model, bundle, notes, round_line):
    head = changed(bundle, 1, only=("head.bias",))
    probes.trained(job("a"), Update("few-shot", head, 9, 1.0))
    probes.closed(round_line(round=1))
    model.load({**bundle.weights(), **head})
    expected = model.logits(PROBE.x)[PROBE.y == 5].mean(axis=0)
    assert notes[0].heat[0].matrix[5] == pytest.approx(expected, abs=2e-5)


def test_what_holds_no_weights_has_no_model(probes, notes, round_line):
    scalars = {"zeroth-order.scalars": np.zeros(2, np.float32)}
    probes.trained(job("a"), Update("zeroth-order", scalars, 9, 1.0))
    probes.closed(round_line(round=1))
    assert notes == []


def test_a_smaller_model_of_the_family_is_passed_over(probes, bundle, notes, round_line):
    half = {name: value[: len(value) // 2] for name, value in bundle.weights().items()}
    member = TrainingJob(0, "a", WidthSlice(members=("half",)), 0, base="1")
    probes.trained(member, Update("width-slice", half, 9, 1.0, "half"))
    probes.closed(round_line(round=1))
    assert notes == []


def test_other_rounds_are_passed_over(probes, bundle, notes, round_line):
    probes.closed(round_line(round=1))
    probes.trained(job("a"), Update("full", changed(bundle, 1), 9, 1.0))
    probes.closed(round_line(round=2))
    assert notes == []


def test_an_executor_that_is_listened_to_is_the_same_in_all_else(probes):
    answers = Answers()
    listened = probes.over(answers)
    assert listened.name == "answers"
    listened.close()
    assert answers.closed


@pytest.mark.parametrize(
    "rounds, count, expected", [(15, 3, {1, 8, 15}), (2, 3, {1, 2}), (10, 1, {1}), (10, 0, set())]
)
def test_probed_rounds_are_spread_from_first_to_last(rounds, count, expected):
    assert spread_rounds(rounds, count) == expected


def test_mean_logits_have_a_row_for_each_true_class():
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 4.0, 0.0], [6.0, 3.0, 3.0]])
    expected = np.array([[1.0, 2.5, 0.0], [6.0, 3.0, 3.0], [np.nan] * 3])
    assert mean_logits(logits, np.array([0, 0, 1])) == pytest.approx(expected, nan_ok=True)
