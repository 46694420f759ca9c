"""What is trained, from which base, with what was kept: by an executor that only answers."""

from dataclasses import dataclass, field, replace
from math import nan

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.merging.merge_round import MergeTools as ServerSide
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.clock.sampling import PendingUpdate
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.executors.job import FailedJob, TrainingJob
from device_runtime.simulation.history.bases import BaseHistory, ShippedModel
from device_runtime.simulation.rounds.learning import (
    LearningTools,
    ModelState,
    RoundEvaluator,
    _better_on_other_half,
)
from device_runtime.simulation.rounds.ledger import RoundFigures
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.registry import make

FULL = make("full", {"epochs": 1, "terms": {"moon": {"mu": 1.0}}})


@dataclass
class Answers:
    """Full updates of ones, fails for devices of `failing`; the number of a job is what its device keeps."""

    weights: dict[str, np.ndarray]
    failing: set[str] = field(default_factory=set)
    runs: list[list[TrainingJob]] = field(default_factory=list)
    done: int = 0
    name: str = "answers"

    def run(self, bases, jobs):
        self.runs.append(list(jobs))
        for job in jobs:
            assert job.base in bases
            if job.name in self.failing:
                yield FailedJob("it diverged")
                continue
            tensors = {name: np.ones_like(value) for name, value in self.weights.items()}
            self.done += 1
            yield Update("full", tensors, 10, 1.0, memory={"done": np.full(1, self.done, np.float32)})

    def close(self):
        pass


@dataclass
class Told:
    fates: list[tuple[str, str]] = field(default_factory=list)

    def ended(self, flight, fate, now, **more):
        self.fates.append((flight.device, fate))

    def trained(self, job, update):
        pass


@dataclass
class Run:
    learning: ModelState
    executor: Answers
    notes: Told
    bases: BaseHistory
    checkpoints: list

    def round(self, number: int, *flights: tuple[str, int]):
        """Merges updates of these devices from these rounds; gives their jobs' memories, run by run."""
        before = len(self.executor.runs)
        for device, asked_in in flights:
            self.learning.keep(PendingUpdate(int(device), device, "all", asked_in, 0.0, "full", FULL, None))
        self.learning.merge(number, 0.0)
        self.learning.evaluate(number)
        self.learning.publish(number, [number])
        runs = self.executor.runs[before:]
        return [[(job.name, *(float(v[0]) for v in job.memory.values())) for job in jobs] for jobs in runs]


@pytest.fixture
def run(bundle) -> Run:
    weights = bundle.weights()
    kind = KindSettings(name="full", settings={"epochs": 1, "terms": {"moon": {"mu": 1.0}}}, max_norm=1e6)
    task = Task(bundle="digits-wrn-10-1", late="count", kinds=(kind,))
    executor, notes, checkpoints = Answers(weights), Told(), []
    bases = BaseHistory({"": ShippedModel.of(bundle)}, weights, CarriedState())
    server = ServerSide({"": bundle})
    tools = LearningTools(server, executor, lambda *_: RoundFigures(nan), notes, notes, checkpoints.append)
    return Run(ModelState(task, bases, CarriedState(), tools), executor, notes, bases, checkpoints)


def test_a_device_is_given_what_it_kept_when_it_trains_the_kind_again(run):
    assert run.round(1, ("1", 1), ("2", 1)) == [[("1",), ("2",)]]
    assert run.round(2, ("2", 2), ("3", 2)) == [[("2", 2.0), ("3",)]]
    assert run.round(3, ("1", 3), ("2", 3)) == [[("1", 1.0), ("2", 3.0)]]


def test_training_that_diverged_leaves_what_was_kept(run):
    run.round(1, ("1", 1))
    run.executor.failing = {"1"}
    run.round(2, ("1", 2))
    run.executor.failing = set()
    assert run.round(3, ("1", 3)) == [[("1", 1.0)]]
    assert run.notes.fates == [("1", "counted"), ("1", "refused"), ("1", "counted")]


def test_of_several_updates_of_a_device_in_a_round_the_newest_counts(run):
    run.round(1, ("7", 1))
    assert run.round(2, ("2", 2), ("2", 1), ("3", 1)) == [[("2",), ("3",)]]
    assert [job.round for job in run.executor.runs[-1]] == [2, 1]
    assert run.notes.fates == [("7", "counted"), ("2", "late"), ("2", "counted"), ("3", "counted")]


def test_checkpoints_hold_what_was_kept_then_and_not_what_came_later(run):
    run.round(1, ("1", 1))
    run.round(2, ("1", 2))
    first, second = (checkpoint.states.devices[1, "full"]["done"][0] for checkpoint in run.checkpoints)
    assert (first, second) == (1.0, 2.0)


def test_seeds_and_bases_are_those_of_the_round_that_asked(run):
    run.round(1, ("1", 1))
    run.round(2, ("1", 1), ("2", 2))
    [late, fresh] = run.executor.runs[-1]
    assert (late.base, late.round, fresh.base) == ("1", 1, "2")
    assert late.seed == run.executor.runs[0][0].seed != fresh.seed


def test_the_closed_form_head_keeps_its_figures_where_the_trained_one_is_served():
    closed = RoundFigures(0.5, 1.0, 0.7, (0.4, 0.6), (0.8, 0.6)).as_closed_form()
    kept = closed.serving(RoundFigures(0.7, 0.9, 0.7, (0.8, 0.6), (0.8, 0.6)))
    assert (kept.eval_acc, kept.eval_acc_by_class) == (0.7, (0.8, 0.6))
    assert (kept.closed_form_eval_acc, kept.closed_form_eval_acc_by_class) == (0.5, (0.4, 0.6))


def crossed_of(first, second, y):
    right = [(logits.argmax(axis=1) == y).astype(np.int64) for logits in (first, second)]
    return _better_on_other_half(first, second, right[1] - right[0])


def test_each_half_of_the_test_samples_is_evaluated_with_the_head_that_the_other_half_chose():
    """The first model is right at samples 0 and 2, the second at 1 and 3: each half prefers the other one.

    Chosen by all samples, either is right at half of them; chosen by the other half, none is.
    """
    y = np.array([0, 0, 0, 0])
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    first = np.array([right, wrong, right, wrong], np.float32)
    second = np.array([wrong, right, wrong, right], np.float32)
    crossed = crossed_of(first, second, y)
    np.testing.assert_array_equal(crossed, [wrong] * 4)
    np.testing.assert_array_equal(crossed_of(first, first, y), first)
    better = np.array([right] * 4, np.float32)
    np.testing.assert_array_equal(crossed_of(1 - better, better, y), better)


def test_two_heads_that_guess_are_served_with_the_accuracy_of_a_guess():
    """Of two heads that guess one of two classes, the better by the test samples is above a half."""
    rng, crossed, best = np.random.default_rng(0), [], []
    for _ in range(200):
        y, (first, second) = rng.integers(2, size=40), rng.normal(size=(2, 40, 2)).astype(np.float32)
        accuracies = [(logits.argmax(axis=1) == y).mean() for logits in (first, second)]
        best.append(max(accuracies))
        crossed.append((crossed_of(first, second, y).argmax(axis=1) == y).mean())
    assert np.mean(best) > 0.53
    assert np.mean(crossed) == pytest.approx(0.5, abs=0.015)


@pytest.fixture
def evaluator(bundle):
    """On twenty test samples, with labels that a base is right at and a served model is wrong at."""
    rng = np.random.default_rng(0)
    x = rng.integers(17, size=(20, 1, 8, 8)).astype(np.uint8)
    data = DataSet(x, np.zeros(20, np.int64), x, np.arange(20) % 10, tuple("0123456789"))
    return RoundEvaluator(bundle, data, 1, 1)


def test_the_figures_of_the_served_head_are_those_of_the_cross_validation(evaluator, bundle):
    weights = bundle.weights()
    other = {**weights, "head.bias": weights["head.bias"] + np.eye(10, dtype=np.float32)[3] * 100}
    figures = evaluator(1, weights, other)
    assert figures.base_eval_acc == 0.1
    assert figures.better is not None
    assert figures.better.base_eval_acc == 0.1
    assert len(figures.better.eval_acc_by_class) == 10
    assert evaluator(1, weights, weights).better is None
    logits = [evaluator._measured(model)[1] for model in (weights, other)]
    crossed = crossed_of(*logits, np.arange(20) % 10)
    assert figures.better.eval_acc == (crossed.argmax(axis=1) == np.arange(20) % 10).mean()


def test_a_round_serves_the_better_head_with_figures_that_it_did_not_choose(run):
    better = RoundFigures(0.6, 1.0, 0.7)
    run.learning._tools = replace(
        run.learning._tools, evaluate=lambda *_: RoundFigures(0.5, 1.0, 0.7, better=better)
    )
    run.learning._task = msgspec.structs.replace(run.learning._task, head="closed-form")
    run.learning._closed_form = run.bases.of(1).weights
    run.learning.merge(1, 0.0)
    run.learning._closed_form = run.bases.of(1).weights
    run.learning.evaluate(1)
    figures = run.learning.publish(1, [1])
    assert run.learning.served is run.bases.of(2).weights
    assert (figures.eval_acc, figures.closed_form_eval_acc, figures.base_eval_acc) == (0.6, 0.5, 0.7)
