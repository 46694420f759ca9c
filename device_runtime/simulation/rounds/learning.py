"""Makes the next base model of a round's updates: trains, checks, folds and evaluates them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.intake.check import UpdateOrigin, update_refusal
from device_runtime.aggregator.merging.evaluation import reason_to_serve_trained_head
from device_runtime.aggregator.merging.merge_round import CountedUpdate, EarlierRounds, RoundMerge
from device_runtime.aggregator.tasks.closing import Progress, score_of
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.evaluation import evaluate, evaluate_outputs, sample_losses
from device_runtime.models.training.heads import Evaluation
from device_runtime.models.training.metrics import FurtherMetrics
from device_runtime.simulation.clock.sampling import PendingUpdate
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.data.loading import prepared_targets
from device_runtime.simulation.executors.job import Executor, FailedJob, TrainingJob, aside_key, base_key
from device_runtime.simulation.history.bases import BaseHistory
from device_runtime.simulation.history.checkpoint import Checkpoint, StrategyStates
from device_runtime.simulation.history.metrics import accuracy_by_class
from device_runtime.simulation.history.records import RunObserver
from device_runtime.strategies.codecs import chain as codecs
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel, ServerTools
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Update
from device_runtime.strategies.interface.kind import variant_named

from .ledger import RoundFigures, RunLedger
from .masked_sums import SimulatedSums

log = logging.getLogger(__name__)

ON_CPU = EngineSettings()

Evaluate = Callable[[int, Tensors, Tensors], RoundFigures]
"""The figures of (round, served model, new base), and of the better one; see `RoundEvaluator`."""


@dataclass(frozen=True)
class LearningTools:
    """What `ModelState` learns with.

    server: what kinds of update may use on the aggregator. sums: where updates are masked; else None.
    evaluate_held_out: gives the metric of (round, served model) on devices that are held out; nan without.
    """

    server: ServerTools
    executor: Executor
    evaluate: Evaluate
    ledger: RunLedger
    watch: RunObserver
    keep: Callable[[Checkpoint], None] = lambda _: None
    sums: SimulatedSums | None = None
    evaluate_held_out: Callable[[int, Tensors], float] = lambda number, served: nan


class ModelState:
    """The model of a run, advanced round by round.

    Updates are folded one by one, so memory does not grow with the devices of a round. It grows with the
    devices whose kind of update keeps a strategy state. Only updates that count are trained: a late or lost
    update leaves no strategy state on its device.
    """

    def __init__(
        self,
        task: Task,
        bases: BaseHistory,
        carried: CarriedState,
        tools: LearningTools,
        resume: Checkpoint | None = None,
    ) -> None:
        """`carried` comes with round 1's base; the rounds of `resume` are replayed without training."""
        self._task, self._bases, self._carried, self._tools = task, bases, carried, tools
        self.ledger = tools.ledger
        self._kinds = {kind.name: kind for kind in task.kinds}
        self._order = {name: place for place, name in enumerate(self._kinds)}
        self._memories: dict[tuple[int, str], Tensors] = {}
        self._resume = resume
        self._updates: list[PendingUpdate] = []
        self._counted: dict[str, int] = {}  # the round in which each device last counted
        self._figures = RoundFigures()
        self._unopened = 0
        self._closed_form: Tensors = NO_TENSORS
        self._scores: tuple[float, ...] = ()
        self._progress = Progress()
        self._best: Tensors = resume.best if resume else NO_TENSORS
        self.served: Tensors = bases.of(1).weights

    def keep(self, flight: PendingUpdate) -> None:
        """Keeps an update that counts in the open round, for `merge`."""
        self._updates.append(flight)

    def merge(self, number: int, now: float) -> None:
        """Trains the updates that count and merges them into the next base."""
        self._keep_newest(number, now)
        devices = [flight.device for flight in self._updates]
        since = {device: float(number - self._counted.get(device, 0)) for device in devices}
        self._counted.update(dict.fromkeys(devices, number))
        if self._resume is not None and number <= self._resume.round:
            self._replay(number, self._resume)
            return
        flights = sorted(self._updates, key=lambda f: (self._order[f.kind], f.device, f.round))
        self._updates = []
        alone: tuple[str, ...] = ()
        if self._tools.sums:
            flights, unopened, alone = self._tools.sums.divide(number, flights)
            self._unopened = len(unopened)
            for flight in unopened:
                self.ledger.ended(flight, "unopened", now, why=self._tools.sums.reason)
        server, weights = self._tools.server, self._bases.of(number).weights
        model = RoundModel(server.manifest(), weights, number, self._task.round_seed(number), tools=server)
        earlier = EarlierRounds(self._task.round_seed, lambda at, member: self._bases.of(at).of(member))
        merge = RoundMerge(self._task, model, self._carried, earlier)
        sizes = None if self._tools.sums else [flight.samples for flight in flights]
        trained: dict[str, tuple[PendingUpdate, Update]] = {}

        def refuse(device: str, why: str) -> None:
            self.ledger.ended(trained.pop(device)[0], "refused", now, why=why)

        def counted(flight: PendingUpdate, update: Update) -> CountedUpdate:
            device, kind = flight.device, flight.kind
            trained[device] = flight, Update(kind, NO_TENSORS, update.num_examples, update.train_loss)
            return CountedUpdate(device, kind, flight.round, lambda: update, False, since[device])

        updates = starmap(counted, self._trained(flights, now))
        merged, note = merge.merged(updates, sizes, lambda counted, error: refuse(counted.device, str(error)))
        for flight, update in list(trained.values()):
            if why := merge.failures.get((flight.device, flight.kind)):
                refuse(flight.device, why)
            else:
                norm = merge.norms.get((flight.device, flight.kind), nan)
                self.ledger.ended(flight, "counted", now, into=number, update=update, norm=norm)
        if note:
            log.warning("round %d: %s", number, note)
        self.served, self._carried, self._closed_form = merged.served, merged.carried, merged.closed_form
        self._bases.advance(number, merged, alone)

    def _keep_newest(self, number: int, now: float) -> None:
        """Of several updates of one device, lets the newest count alone."""
        newest: dict[str, PendingUpdate] = {}
        for flight in sorted(self._updates, key=lambda flight: flight.round):
            if older := newest.get(flight.device):
                why = f"counted in round {number} with its update for round {flight.round}"
                self.ledger.ended(older, "late", now, why=f"{flight.device} {why}")
            newest[flight.device] = flight
        self._updates = list(newest.values())

    def _replay(self, number: int, resume: Checkpoint) -> None:
        """Advances over a round that was trained before the run was stopped."""
        self._updates = []
        self._bases.replay(number, resume.history[number])
        if number == resume.round:
            self._bases.restore(resume.bases)
            newest = self._bases.of(number + 1)
            self._carried = CarriedState(newest.family, resume.states.aggregator, newest.aside)
            self._memories = dict(resume.states.devices)
            self.served = resume.served

    def _trained(self, flights: list[PendingUpdate], now: float) -> Iterator[tuple[PendingUpdate, Update]]:
        """Trains the flights and yields each update that passes the checks; refuses the others."""
        seeds = {number: self._task.round_seed(number) for number in {flight.round for flight in flights}}
        jobs = [self._job(flight, seeds[flight.round]) for flight in flights]
        results = self._tools.executor.run(self._bases.tensors(), jobs) if jobs else []
        for flight, job, result in zip(flights, jobs, results, strict=True):
            if isinstance(result, FailedJob):
                self.ledger.ended(flight, "refused", now, why=result.why)
                continue
            if result.memory is not None:
                self._memories[flight.index, flight.kind] = result.memory
            base = self._bases.of(flight.round).of(job.strategy.member)
            sent, left = self._as_sent(result, flight, base)
            manifest = self._tools.server.manifest(job.strategy.member)
            origin = UpdateOrigin(self._kinds[flight.kind], job.strategy, manifest, base)
            if why := update_refusal(sent.tensors, sent.num_examples, origin):
                self.ledger.ended(flight, "refused", now, why=why)
                continue
            self._memories |= left
            self._tools.watch.trained(job, replace(sent, device=job.name))
            yield flight, self._tools.sums.bounded(sent, flight, base) if self._tools.sums else sent

    def _as_sent(
        self, update: Update, flight: PendingUpdate, base: Tensors
    ) -> tuple[Update, dict[tuple[int, str], Tensors]]:
        """The update as the aggregator decodes it by its kind's codec, and the error feedback to keep."""
        kind = self._kinds[flight.kind].strategy
        codec = capabilities.codec_of(kind)
        if not codec.lossy:
            return update, {}
        key = flight.index, codecs.memory_of(flight.kind, variant_named(kind, update.variant).member)
        written = codec.rounded(update.tensors, base, self._memories.get(key, NO_TENSORS))
        return replace(update, tensors=written.read), {key: written.left}

    def _job(self, flight: PendingUpdate, seed: int) -> TrainingJob:
        strategy, number = flight.strategy, flight.round
        if strategy is None:
            raise ValueError(f"{flight.device} sits out round {number}: there is nothing to train")
        return TrainingJob(
            flight.index,
            flight.device,
            strategy,
            seed,
            base_key(number, strategy.member),
            self._memories.get((flight.index, flight.kind), NO_TENSORS),
            aside_key(number) if self._bases.of(number).aside else "",
            self._bases.of(number).rare,
        )

    def evaluate(self, number: int) -> None:
        """Computes the figures of the round, for `publish`.

        The served model is the better one of the two heads by the test samples. Its figures are those of
        `RoundFigures.better`: no sample is evaluated with a head that it has helped to choose.
        """
        if self._resume is not None and number <= self._resume.round:
            return
        base = self._bases.of(number + 1).weights
        compared = self._closed_form or self.served
        figures = self._tools.evaluate(number, compared, base)
        if self._closed_form:
            figures = figures.as_closed_form()
        if self._task.evaluation_judges:
            why = reason_to_serve_trained_head(figures.eval_acc, figures.base_eval_acc)
            if why:
                log.info("round %d: %s", number, why)
                self.served = base
            if figures.better is not None:
                figures = figures.serving(figures.better)
        elif self.served is not compared:
            figures = figures.serving(self._tools.evaluate(number, base, base))
        held_out = self._tools.evaluate_held_out(number, self.served)
        self._figures = replace(figures, held_out_eval_acc=held_out)

    def publish(self, number: int, in_use: Iterable[int]) -> RoundFigures:
        """Ends the round and returns its figures; keeps only the bases `in_use` and the newest."""
        self._bases.keep((*in_use, number + 1))
        trained = self._resume is None or number > self._resume.round
        self._note_score(number, trained)
        if trained:
            states = StrategyStates(self._carried.memory, dict(self._memories))
            bases = self._bases
            self._tools.keep(
                Checkpoint(number, bases.kept(), bases.history, self.served, states, self._scores, self._best)
            )
        if self._tools.sums is None:
            return self._figures
        spent = self._tools.sums.spent(number)
        return replace(self._figures, unopened=self._unopened, central_epsilon=spent)

    def _note_score(self, number: int, trained: bool) -> None:
        """Notes the score of the round's model; keeps the best model where the run is to end with it."""
        figures, then = self._figures, self._resume.scores if self._resume else ()
        score = score_of(self._task.stop_metric, figures.eval_acc, figures.eval_loss)
        if not trained:
            score = then[number - 1] if number <= len(then) else nan
        self._scores = (*self._scores, score)
        self._progress = self._progress.after(number, score, self._task.stop_gain)
        if self._task.stop_after and trained and self._progress.best == number:
            self._best = self.served

    @property
    def score(self) -> float:
        """The score of the model that was published last, for `events.PhaseDone`."""
        return self._scores[-1]

    def finish(self, best: int) -> None:
        """Ends the run: serves the model of round `best`, or for 0 that of the last round."""
        if best and self._best:
            self.served = self._best


class RoundEvaluator:
    """An `Evaluate` that measures a round's models on the data set's test part.

    It does so in every `every`-th round and in the last; with `every` 0 in none. `RoundFigures.better` is of
    the better of the two models: each half of the samples, those with even and those with odd numbers, is
    evaluated with the model that is better on the other half, as in a cross-validation of two folds.
    """

    def __init__(
        self,
        bundle: Bundle,
        data: DataSet,
        every: int,
        rounds: int,
        engine: EngineSettings = ON_CPU,
        metrics: Sequence[str] = (),
        held_out: LocalData | None = None,
    ) -> None:
        """`engine`: that of the fleet; on a GPU the models are evaluated there too. metrics: further ones.

        `held_out`: samples of devices that are held out, as the graphs take them.

        Raises TensorError for samples of another shape, ScenarioError for targets that do not fit,
        MetricError.
        """
        self._every, self._rounds, self._held_out = every, rounds, held_out
        self._metrics = FurtherMetrics(metrics, bundle.manifest.target)
        if not every:
            return
        manifest = bundle.manifest
        self._y = prepared_targets(data, manifest, data.test_y)
        self._model = open_model(bundle, ON_CPU if engine.device == "cpu" else engine)
        self._x, self._target = manifest.input.prepare(data.test_x), manifest.target

    def _is_due(self, number: int) -> bool:
        return bool(self._every) and (number % self._every == 0 or number == self._rounds)

    def of_held_out(self, number: int, served: Tensors) -> float:
        """The metric of a model on the samples of the devices that are held out; nan without any."""
        if self._held_out is None or not self._is_due(number):
            return nan
        self._model.load(served)
        return evaluate(self._model, self._held_out.x, self._held_out.y).eval_acc

    def __call__(self, number: int, served: Tensors, base: Tensors) -> RoundFigures:
        if not self._is_due(number):
            return RoundFigures()
        figures, outputs = self._measured(served)
        of_base, base_outputs = (figures, outputs) if base is served else self._measured(base)
        base_figures: dict[str, Any] = {
            "base_eval_acc": of_base.eval_acc,
            "base_eval_acc_by_class": of_base.eval_acc_by_class,
        }
        better = None
        if base is not served and not self._target.own:
            scores = [self._scores(each) for each in (outputs, base_outputs)]
            crossed = _better_on_other_half(outputs, base_outputs, scores[1] - scores[0])
            evaluation = evaluate_outputs(self._target, crossed, self._x, self._y)
            better = replace(self._figures(evaluation, crossed), **base_figures)
            of_own = of_base if of_base.eval_acc > figures.eval_acc else figures
            better = replace(better, eval_metrics={**of_own.eval_metrics, **better.eval_metrics})
        return replace(figures, **base_figures, better=better)

    def _measured(self, weights: Tensors) -> tuple[RoundFigures, NDArray[np.float32]]:
        """The figures of a model, and its outputs."""
        self._model.load(weights)
        outputs = self._model.logits(self._x)
        if self._target.own:
            evaluation = evaluate(self._model, self._x, self._y)
        else:
            evaluation = evaluate_outputs(self._target, outputs, self._x, self._y)
        figures = self._figures(evaluation, outputs)
        more = self._metrics.of_model(self._model, self._x, self._y)
        return replace(figures, eval_metrics={**figures.eval_metrics, **more}), outputs

    def _scores(self, outputs: NDArray[np.float32]) -> NDArray[Any]:
        """How good the outputs for each sample are, (n,): right or not, or less the loss of a normal one."""
        if self._target.compared == "classes":
            right: NDArray[np.int64] = (outputs.argmax(axis=1) == self._y).astype(np.int64)
            return right
        values = self._target.compared_values(self._x, self._y)
        losses = sample_losses(self._target, outputs[:, : values.shape[1]], values)
        return -losses * (self._y == 0) if self._target.compared == "input" else -losses

    def _figures(self, evaluation: Evaluation, outputs: NDArray[np.float32]) -> RoundFigures:
        by_class: tuple[float, ...] = ()
        if self._target.compared == "classes":
            by_class = tuple(accuracy_by_class(outputs, self._y).tolist())
        return RoundFigures(
            evaluation.eval_acc,
            evaluation.eval_loss,
            eval_acc_by_class=by_class,
            metric=evaluation.metric,
            eval_metrics={**evaluation.metrics, **self._metrics.of_outputs(outputs, self._x, self._y)},
        )


def _better_on_other_half(
    first: NDArray[np.float32], second: NDArray[np.float32], more: NDArray[Any]
) -> NDArray[np.float32]:
    """Outputs (n, outputs) of one of two models for each half of the samples, chosen by the other half.

    more: by how much the second is better on each sample, (n,). The first is taken if they are level.
    """
    odd = np.arange(len(more)) % 2 == 1
    chosen: NDArray[np.float32] = first.copy()
    for half in (odd, ~odd):
        if more[~half].sum() > 0:
            chosen[half] = second[half]
    return chosen
