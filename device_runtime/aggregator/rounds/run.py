"""An open run: its folder, its progress, and the work of each phase of a round; no sockets, no clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from device_runtime.aggregator.errors import RollbackError
from device_runtime.aggregator.machine.events import DoPhase
from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.machine.state import Rules, Saved
from device_runtime.aggregator.masking.groups import NoiseBudget, SumGroups
from device_runtime.aggregator.merging.evaluation import (
    Evaluator,
    mean_loss,
    reason_to_serve_trained_head,
    summarise,
)
from device_runtime.aggregator.merging.merge_round import (
    MergeTools,
    merge_round,
    open_family,
    samples,
    store_carried,
)
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.contributions import DeviceTraffic
from device_runtime.aggregator.storage.model_versions import ModelVersions
from device_runtime.aggregator.storage.run_files import (
    SITE_ROLLBACK_TEXT,
    GivenRound,
    GivenRoundStore,
    begun_without_evaluation,
    check_identity,
)
from device_runtime.aggregator.storage.store import (
    MergeResult,
    ModelEvaluation,
    RoundModels,
    RoundStart,
    Store,
)
from device_runtime.aggregator.tasks.closing import WINDOW, Progress, score_of
from device_runtime.aggregator.tasks.feasible import (
    check_kinds,
    with_members,
    with_possible_head,
    with_test_samples,
    without_effect,
)
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.blobs import BlobRoom
from device_runtime.broker.wire.messages import Blob, Masks
from device_runtime.broker.wire.step_log import SEGMENT, TAIL
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import initial_values
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.kinds import evaluation
from device_runtime.strategies.merging.folding import derived_bases
from device_runtime.strategies.statistics import closed_form

log = logging.getLogger(__name__)


MERGED, SPARE_BYTES = 4, 16 * 1024**2
"""Uploads leave room on the disk for merging a round: MERGED times the bundles' size plus SPARE_BYTES."""
FRESH_WEIGHTS_DRAW = 3
"""Keeps the draws of fresh parameters apart from all others of the same seed."""


class RunProgress:
    """How a run goes on. `given_rounds`: where its rounds come from outside. Raises as Store."""

    def __init__(self, task: Task, store: Store, given_rounds: GivenRoundStore | None) -> None:
        self._task, self._store, self._given_rounds = task, store, given_rounds
        self._rules = Rules.of(task)

    @property
    def rules(self) -> Rules:
        """The task's rules; where rounds are given from outside, with the deadline of the last one.

        Where only zeroth-order updates are offered in given rounds, each counts in its own round only: their
        merged scalars must all be along the directions of one round.
        """
        rules = self._rules
        if self._given_rounds is None:
            return rules
        latest, kinds = self._given_rounds.latest, self._task.kinds
        scalars = (
            {kind.name for kind in kinds}
            if all(capabilities.scalars(kind.strategy) for kind in kinds)
            else set()
        )
        return replace(
            rules,
            given=True,
            round_deadline_s=latest.deadline_s if latest else rules.round_deadline_s,
            bound=rules.bound | scalars,
        )

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        saved = self._store.session.saved()
        if saved is None:
            return None
        begun = saved.round if saved.phase == "collect" else saved.round + 1
        paces = self._store.rounds.paces(WINDOW, begun)
        return replace(saved, paces=paces, progress=self.latest(), given_up=self.given_up())

    def given_up(self) -> frozenset[int]:
        """All rounds that a rollback discarded: those after the model rolled back to, until the rollback."""
        backs = self._store.history.rollbacks()
        return frozenset(n for back in backs for n in range(back.to + 1, back.into + back.instead))

    def latest(self) -> Progress:
        """The progress of the run after all closed rounds."""
        progress = self._progress_by_round()
        return progress[max(progress)]

    def restored(self, number: int) -> Progress | None:
        """The progress at the model that the run rolled back to in this round; None without a rollback."""
        to = self._set_back().get(number)
        return None if to is None else self._progress_by_round()[to]

    def _progress_by_round(self) -> dict[int, Progress]:
        """The progress after each closed round, and before the first (0), without rounds rolled back."""
        task, back = self._task, self._set_back()
        progress, latest = {0: Progress()}, 0
        for number, figures in self._store.rounds.every_figures():
            score = score_of(task.stop_metric, figures.eval_acc, figures.eval_loss)
            before = progress[back.get(number, latest)]
            progress[number] = before.after(number, score, task.stop_gain, number in back)
            latest = number
        return progress

    def _set_back(self) -> dict[int, int]:
        """For each round in which the run rolled back: the round whose model it went back to."""
        return {rollback.into: rollback.to for rollback in self._store.history.rollbacks()}


@dataclass(frozen=True)
class InitialModels:
    """The start of a run: the bundle of each member of the family ("" is the main model), and round 1."""

    bundles: Mapping[str, Blob]
    start: RoundStart

    @property
    def model_bytes(self) -> int:
        """Bytes that a device fetches before its first round: the main bundle, and the base of round 1."""
        return sum(blob.size for blob in (self.bundles[""], *self.start.base.checkpoint))


class OpenRun:
    """An open run. Raises RunFolderError, BlobError when the disk fails, ModelError for a bad bundle."""

    def __init__(self, task: Task, folder: Path, given: bool = False, database: str = "") -> None:
        """Opens the folder, as a new run or where the last process left it.

        `given`: rounds come from outside (`given_rounds`). `database` as in Ports. Raises TaskError for kinds
        of update that the bundle has no graphs for, or evaluation data that do not fit, and RunFolderError
        for another task's folder.
        """
        main = Bundle.open(bundles.find_bundle(task.bundle))
        family = open_family(task, main)
        models = {"": main, **family}
        given_task, task = task, with_members(task, tuple(family))
        for why in without_effect(task, main.manifest):
            log.warning("%s", why)
        task = with_possible_head(task, main.manifest)
        measured = bool(task.eval_data) and not begun_without_evaluation(folder)
        self.task = task if given or measured else with_test_samples(task)
        check_kinds(self.task, main.manifest, {name: bundle.manifest for name, bundle in family.items()})
        self.evaluator = Evaluator(main, task.eval_data, task.metrics)
        generic = samples(task.generic, main, "generic set") if task.generic else None
        self.tools = MergeTools(models, generic)
        self.store = Store(folder, database=database)
        try:
            self.initial = self._initial(task, models)
            shas = tuple(blob.sha for blob in self.initial.bundles.values())[: 1 + len(task.family)]
            self.run, self.resumed = check_identity(self.store, given_task, shas)
            self.budget = NoiseBudget(self.task, self.store, self.tools.manifests)
            self.groups = SumGroups(self.store, self.task, self.run, self.tools.manifests)
            self.registry = ModelVersions(self.store, task.keep_versions)
            self.given_rounds = GivenRoundStore(folder) if given else None
            self.progress = RunProgress(self.task, self.store, self.given_rounds)
        except BaseException:
            self.store.close()
            raise

    def _initial(self, task: Task, models: Mapping[str, Bundle]) -> InitialModels:
        """Stores the bundles and the first base, and reserves room for merging."""
        store, manifest = self.store, self.manifest
        packed = {name: store.models.put(bundle.packed()) for name, bundle in models.items()}
        store.updates.room = BlobRoom(spare=MERGED * sum(b.size for b in packed.values()) + SPARE_BYTES)
        weights, carried = first_base(task, models, self.tools)
        base = bases.checkpoint(weights, store.models, manifest)
        return InitialModels(packed, RoundStart(base, store_carried(carried, store, self.tools)))

    @property
    def manifest(self) -> Manifest:
        """The manifest of the main model."""
        return self.tools.manifests[""]

    def given(self, number: int) -> GivenRound | None:
        """Round `number` as it was given from outside; None if it was not, or is not the latest."""
        return self.given_rounds.round(number) if self.given_rounds else None

    def seed(self, number: int) -> int:
        """The seed that all devices of a round share."""
        return self.given_rounds.seed(number) if self.given_rounds else self.task.round_seed(number)

    def weights(self, number: int, member: str = "") -> Tensors:
        """The weights that round `number` distributes."""
        return bases.base_weights(self.store, number, self.tools.manifests[member], member)

    def go_back(self, to: int) -> None:
        """Serves the model of round `to` and continues from it; see `ModelVersions.go_back`.

        Raises RollbackError, also where rounds are given from outside.
        """
        if self.given_rounds is not None:
            raise RollbackError(SITE_ROLLBACK_TEXT)
        self.registry.go_back(to)
        self.registry.deploy()


class RoundPhases:
    """The phases of the rounds of one run. Raises RunFolderError, BlobError when the disk fails."""

    def __init__(self, run: OpenRun) -> None:
        self._run, self._store = run, run.store

    def open(self, number: int, masks: Masks | None = None) -> None:
        """Stores that a round is open, and how its updates are masked, if they are.

        Round 1 distributes the first base, if it is not given another.
        """
        rounds = self._store.rounds
        if given_round := self._run.given(number):
            rounds.open(number, RoundStart(given_round.base, given_round.carried), given_round.steps, masks)
        elif back := self._store.history.rollback_into(number, instead=False):
            rounds.open(number, self._made_again(back.to), masks=masks)
        else:
            start = self._run.initial.start if number == 1 else rounds.start(number)
            rounds.open(number, start, masks=masks)

    def begin_unmask(self, command: DoPhase) -> bool:
        """Stores that a round is unmasked.

        Returns whether sums are to be opened: not where the run goes back to an earlier model.
        """
        self._store.rounds.begin_merge(command.round, command.durations, command.early, "unmask")
        return self._store.history.rollback_into(command.round, instead=True) is None

    def merge(self, command: DoPhase) -> None:
        """Merges a round, or takes the model rolled back to."""
        run, store, number = self._run, self._store, command.round
        store.rounds.begin_merge(number, command.durations, command.early)
        if back := store.history.rollback_into(number, instead=True):
            note = f"went back to the model of round {back.to}; what came for this round does not count"
            result = MergeResult(self._made_again(back.to), note=note)
        else:
            result = merge_round(store, run.task, run.tools, number, run.seed, run.groups)
        store.rounds.merged(number, result)
        run.tools.unload()

    def _made_again(self, number: int) -> RoundModels:
        """The models that an earlier round made, with a new checkpoint of the base.

        It needs its own checkpoint, because the steps taken since do not lead to it.
        """
        weights = bases.made_weights(self._store, number, self._run.manifest)
        base = bases.checkpoint(weights, self._store.models, self._run.manifest)
        return replace(self._store.rounds.made(number), base=base)

    def evaluate(self, number: int) -> None:
        """Evaluates the round's models; serves the next base where its trained head is the better one."""
        models, evaluator = self._store.models, self._run.evaluator
        served = tensors.decode(models.get(self._store.rounds.made(number).served))
        base, instead = self._run.weights(number + 1), None
        figures = evaluator.figures(served, base)
        why = reason_to_serve_trained_head(figures.eval_acc, figures.base_eval_acc)
        if why and self._run.task.evaluation_judges:
            log.info("round %d: %s", number, why)
            figures, instead = evaluator.figures(base, base), models.put(tensors.encode(base))
        self._store.rounds.evaluated(number, self._with_held_out(figures, number), instead)

    def _with_held_out(self, figures: ModelEvaluation, number: int) -> ModelEvaluation:
        """With the accuracy on samples that the devices of a round held out; not where it went back."""
        if self._store.history.rollback_into(number, instead=True):
            return figures
        blobs = self._store.rounds.start(number + 1).carried.memory
        pool, tests = (
            tensors.decode(self._store.models.get(blobs[name])) if name in blobs else {}
            for name in (closed_form.MEMORY, evaluation.FederatedEvaluation.name)
        )
        own = evaluation.figures(self._run.manifest.target, tests, number)
        if own is None:
            counted = closed_form.HeldOutAccuracy.of(pool)
            return replace(
                figures,
                held_out_acc=counted.served,
                held_out_samples=counted.samples,
                held_out_head=counted.head,
                held_out_other_acc=counted.other,
            )
        further = {"loss": own.eval_loss, **own.metrics}
        return replace(
            figures,
            metrics={**figures.metrics, **{f"held-out {name}": value for name, value in further.items()}},
            held_out_acc=own.eval_acc,
            held_out_samples=own.num_examples,
            held_out_head="trained",
        )

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
        if run.task.masks:
            loss = mean_loss((total.train_loss, total.num_examples) for total in store.sums.records(number))
            record = replace(record, train_loss=loss, central_epsilon=run.budget.spent(number))
        if number > run.task.untimed_rounds:
            deadline_s = run.progress.rules.deadline_s(number, store.rounds.paces(WINDOW, number))
            record = replace(record, deadline_s=deadline_s)
        store.rounds.close(record)
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
        for _, models in versions:
            blobs += (*models.blobs, *models.base.log)
        self._store.models.prune(blobs)
        bases_kept = [(numbers[0], starts[numbers[0]].base)] + [(n + 1, v.base) for n, v in versions[:1]]
        latest = number if run.given_rounds else number + 1
        at = rounds.start(latest).base.at
        written = (latest, min(at, max(at % SEGMENT, TAIL)))
        self._store.step_history.forget([written, *((n, base.steps) for n, base in bases_kept)])


def first_base(task: Task, models: Mapping[str, Bundle], tools: MergeTools) -> tuple[Tensors, CarriedState]:
    """The first base, which round 1 distributes: the bundles' weights, or fresh ones, with the family."""
    weights = {
        member: initial_weights(bundle, task, place) for place, (member, bundle) in enumerate(models.items())
    }
    main = weights.pop("")
    model = RoundModel(models[""].manifest, main, 0, task.seed, tools=tools)
    cut = derived_bases((kind.strategy for kind in task.kinds), main, model)
    return main, CarriedState(family={**weights, **cut})


def initial_weights(bundle: Bundle, task: Task, place: int) -> Tensors:
    """The weights of one model at the start; `place`, its index, makes its random draws its own."""
    weights = bundle.weights()
    if task.start == "bundle":
        return weights
    rng = np.random.default_rng([task.seed, FRESH_WEIGHTS_DRAW, place])
    return {**weights, **initial_values(bundle.manifest, weights, rng)}
