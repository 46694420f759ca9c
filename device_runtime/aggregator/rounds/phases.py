"""Does the work of each phase of a round on the disk. All of it may be repeated after a crash."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan

from device_runtime.aggregator.intake.contributions import DeviceTraffic
from device_runtime.aggregator.merging.evaluation import reason_to_serve_trained_head, summarise
from device_runtime.aggregator.merging.merge_round import merge_round
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.store import MergeResult, RoundModels, RoundStart
from device_runtime.aggregator.views.listener import RoundClosed
from device_runtime.broker.wire.step_log import SEGMENT, TAIL
from device_runtime.models.bundles import tensors

from .run import OpenRun

log = logging.getLogger(__name__)


class RoundPhases:
    """The phases of the rounds of one run. Raises RunFolderError, BlobError when the disk fails."""

    def __init__(self, run: OpenRun) -> None:
        self._run, self._store = run, run.store

    def open(self, number: int) -> None:
        """Stores that a round is open. Round 1 distributes the first base, if it is not given another."""
        rounds = self._store.rounds
        if given := self._run.given(number):
            rounds.open(number, RoundStart(given.base, given.carried), given.steps)
        elif back := self._store.history.rollback_into(number, instead=False):
            rounds.open(number, self._made_again(back.to))
        else:
            rounds.open(number, self._run.initial.start if number == 1 else rounds.start(number))

    def merge(self, number: int, durations: Sequence[tuple[int, int]] = (), early: str = "") -> None:
        """Merges round `number`, or takes the model rolled back to; the rest as in `events.DoPhase`."""
        run, store = self._run, self._store
        store.rounds.begin_merge(number, durations, early)
        if back := store.history.rollback_into(number, instead=True):
            store.rounds.merged(number, self._instead(back.to))
            return
        store.rounds.merged(number, merge_round(store, run.task, run.tools, number, run.seed))
        run.tools.unload()

    def _made_again(self, number: int) -> RoundStart:
        """The base and the rest that an earlier round made, as a new checkpoint.

        It needs its own checkpoint, because the steps taken since do not lead to it.
        """
        weights = bases.made_weights(self._store, number, self._run.manifest)
        base = bases.checkpoint(weights, self._store.models, self._run.manifest)
        return RoundStart(base, self._store.rounds.made(number).carried)

    def _instead(self, number: int) -> MergeResult:
        """The result of a round whose contributions a rollback discarded: the model rolled back to."""
        start, served = self._made_again(number), self._store.rounds.made(number).served
        note = f"went back to the model of round {number}; what came for this round does not count"
        return MergeResult(RoundModels(start.base, start.carried, served), (), note)

    def evaluate(self, number: int) -> None:
        """Evaluates the round's models; serves the next base where its trained head is the better one."""
        models, evaluator = self._store.models, self._run.evaluator
        served = tensors.decode(models.get(self._store.rounds.made(number).served))
        base, instead = self._run.weights(number + 1), None
        figures = evaluator.figures(served, base)
        if self._run.task.evaluation_judges and (why := reason_to_serve_trained_head(figures)):
            log.info("round %d: %s", number, why)
            figures, instead = evaluator.figures(base, base), models.put(tensors.encode(base))
        self._store.rounds.evaluated(number, figures, instead)

    def publish(self, number: int, traffic: Mapping[str, DeviceTraffic], duration_s: float) -> RoundClosed:
        """Closes the round and deploys its served model."""
        run, store = self._run, self._store
        back = store.history.rollback_after(number)
        run.registry.deploy(back.to if back else number)
        run.registry.published(number)
        store.contributions.save_traffic(number, traffic)
        contributions = store.contributions.records(number)
        figures = store.rounds.figures(number)
        record = summarise(figures, contributions, traffic, (number, duration_s))
        deadline_s = nan if number <= run.task.untimed_rounds else run.progress.deadline_s(number)
        store.rounds.close(replace(record, deadline_s=deadline_s))
        self._prune(number)
        return store.rounds.closed(number)[0]

    def _prune(self, number: int) -> None:
        """Deletes the blobs and steps that nothing needs any more after round `number`.

        Kept are the next base, that of round `number` (devices may still fetch it), the served models, the
        steps since their checkpoints, and the steps that the log is written from. Where late contributions
        count, the bases that they may have been made for are kept too. Where rounds are given from outside,
        the log continues from the base that the last round was given, not from the one that it made.
        """
        run, rounds = self._run, self._store.rounds
        back = run.task.max_staleness - 1 if run.progress.rules.counts_late else 0
        first = max(1, number - max(0, back))
        numbers = [n for n in range(first, number + 1) if rounds.opened(n)] + [number + 1]
        starts = {n: rounds.start(n) for n in numbers}
        blobs = [*run.initial.bundles.values(), rounds.made(number).served]
        for start in (run.initial.start, *starts.values()):
            blobs += (*start.base.checkpoint, *start.base.log, *start.carried.blobs)
        versions = run.registry.kept(run.progress.latest().best)
        for _, made in versions:
            blobs += (*made.blobs, *made.base.log)
        self._store.models.prune(blobs)
        bases_kept = [(numbers[0], starts[numbers[0]].base)] + [(n + 1, one.base) for n, one in versions[:1]]
        latest = number if run.outside else number + 1
        at = rounds.start(latest).base.at
        written = (latest, min(at, max(at % SEGMENT, TAIL)))
        self._store.taken.forget([written, *((n, base.steps) for n, base in bases_kept)])
