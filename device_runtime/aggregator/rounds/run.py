"""An open run: reads and writes its folder in each phase of a round, without sockets or a clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np

from device_runtime.aggregator.errors import RollbackError, RunFolderError
from device_runtime.aggregator.intake.contributions import DeviceTraffic
from device_runtime.aggregator.merging import merge_round as merging
from device_runtime.aggregator.merging.evaluation import Evaluator, reason_to_serve_trained_head, summarise
from device_runtime.aggregator.merging.merge_round import MergeTools, open_family, samples
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.model_versions import ModelVersions
from device_runtime.aggregator.storage.run_files import check_identity
from device_runtime.aggregator.storage.store import CarriedBlobs, MergeResult, RoundModels, RoundStart, Store
from device_runtime.aggregator.tasks.feasible import check_kinds, with_possible_head
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.listener import RoundClosed
from device_runtime.broker.wire.blobs import BlobRoom
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.messages import Base, Blob, Member, Offer
from device_runtime.broker.wire.step_log import SEGMENT, TAIL
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.initial import initial_values
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.merging.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.merging.folding import derived_bases
from device_runtime.strategies.statistics import closed_form

from . import pace
from .given_rounds import SITE_ROLLBACK_TEXT, GivenRound, GivenRoundStore
from .pace import WINDOW, Progress, score_of
from .state import Rules, Saved

log = logging.getLogger(__name__)

SERVED = "served.safetensors"
"""File in the run folder: the served model of the latest closed round."""
MERGED, SPARE_BYTES = 4, 16 * 1024**2
"""Uploads leave room on the disk for merging a round: MERGED times the bundles' size plus SPARE_BYTES."""
FRESH_WEIGHTS_DRAW = 3
"""Keeps the draws of fresh parameters apart from all others of the same seed."""


class OpenRun:
    """An open run. Raises RunFolderError, BlobError when the disk fails, ModelError for a bad bundle."""

    def __init__(self, task: Task, folder: Path, given: bool = False, database: str = "") -> None:
        """Opens the folder, as a new run or where the last process left it.

        `given`: rounds come from outside (`given_rounds`). `database` as in Ports. Raises TaskError for kinds
        of update that the bundle has no graphs for, or evaluation data that do not fit, and RunFolderError
        for another task's folder.
        """
        self.bundle = Bundle.open(bundles.find_bundle(task.bundle))
        self.manifest = self.bundle.manifest
        self.task = with_possible_head(task, self.manifest)
        family = open_family(task.family, self.manifest)
        self.manifests = {"": self.manifest, **{name: bundle.manifest for name, bundle in family.items()}}
        check_kinds(task, self.manifest, {name: bundle.manifest for name, bundle in family.items()})
        self._evaluator = Evaluator(self.bundle, task.eval_data)
        generic = samples(task.generic, self.bundle, "generic set") if task.generic else None
        self._tools = MergeTools({"": self.bundle, **family}, generic)
        self.store = Store(folder, database=database)
        try:
            put = self.store.models.put
            self._packed = put(self.bundle.packed())
            self._family = {name: put(bundle.packed()) for name, bundle in family.items()}
            models = sum(blob.size for blob in (self._packed, *self._family.values()))
            self.store.updates.room = BlobRoom(spare=MERGED * models + SPARE_BYTES)
            weights, carried = first_base(task, {"": self.bundle, **family}, self._tools)
            self._first_base = bases.checkpoint(weights, self.store.models, self.manifest)
            self._first_carried = merging.store_carried(carried, self.store, self._tools)
            shas = tuple(blob.sha for blob in (self._packed, *self._family.values()))
            self.run, self.resumed = check_identity(self.store, task, shas)
            self.registry = ModelVersions(self.store, task.keep_versions)
            self.outside = GivenRoundStore(folder) if given else None
            self._served = self._first_base
            self._known_rare: tuple[int, tuple[int, ...]] = (0, ())
        except BaseException:
            self.store.close()
            raise

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        saved = self.store.session.saved()
        if saved is None:
            return None
        begun = saved.round if saved.phase == "collect" else saved.round + 1
        paces, progress = self.store.rounds.paces(WINDOW, begun), self.progress()
        return replace(saved, paces=paces, progress=progress, given_up=self.given_up())

    def given_up(self) -> frozenset[int]:
        """All rounds that a rollback discarded: those after the model rolled back to, until the rollback."""
        backs = self.store.history.rollbacks()
        return frozenset(n for back in backs for n in range(back.to + 1, back.into + back.instead))

    def deadline_s(self, number: int) -> float:
        """The deadline of round `number` in seconds: fixed, or learnt from the rounds before it."""
        fixed, learnt = self.rules.deadline_s(number), self.task.pace
        if learnt is None or number <= self.task.untimed_rounds:
            return fixed
        return pace.deadline_s(learnt, self.store.rounds.paces(WINDOW, number), fixed)

    def progress(self) -> Progress:
        """The progress of the run after all closed rounds."""
        known = self._progress()
        return known[max(known)]

    def _progress(self) -> dict[int, Progress]:
        """The progress after each closed round, and before the first (0), without rounds rolled back."""
        task, back = self.task, self._set_back()
        known, latest = {0: Progress()}, 0
        for number, figures in self.store.rounds.every_figures():
            score = score_of(task.stop_metric, figures.eval_acc, figures.eval_loss)
            before = known[back.get(number, latest)]
            known[number] = before.after(number, score, task.stop_gain, number in back)
            latest = number
        return known

    def _set_back(self) -> dict[int, int]:
        """For each round in which the run rolled back: the round whose model it went back to."""
        return {rollback.into: rollback.to for rollback in self.store.history.rollbacks()}

    def score(self, number: int) -> float:
        """The score of an evaluated round's model, for `events.PhaseDone`."""
        figures = self.store.rounds.figures(number)
        return score_of(self.task.stop_metric, figures.eval_acc, figures.eval_loss)

    def restored_progress(self, number: int) -> Progress | None:
        """The progress at the model that the run rolled back to in this round; None without a rollback."""
        to = self._set_back().get(number)
        return None if to is None else self._progress()[to]

    @property
    def rules(self) -> Rules:
        """The task's rules; where rounds are given from outside, with the deadline of the last one.

        Where only zeroth-order updates are offered in given rounds, each counts in its own round only: their
        merged scalars must all be along the directions of one round.
        """
        rules = Rules.of(self.task)
        if self.outside is None:
            return rules
        latest, kinds = self.outside.latest, self.task.kinds
        scalars = {kind.name for kind in kinds} if all(kind.strategy.scalars for kind in kinds) else set()
        return replace(
            rules,
            given=True,
            round_deadline_s=latest.deadline_s if latest else rules.round_deadline_s,
            bound=rules.bound | scalars,
        )

    def given(self, number: int) -> GivenRound | None:
        """Round `number` as it was given from outside; None if it was not, or is not the latest."""
        return self.outside.round(number) if self.outside else None

    def seed(self, number: int) -> int:
        """The seed that all devices of a round share."""
        return self.outside.seed(number) if self.outside else self.task.round_seed(number)

    def open(self, number: int) -> None:
        """Stores that a round is open. Round 1 distributes the first base, if it is not given another."""
        if given := self.given(number):
            self.store.rounds.open(number, RoundStart(given.base, given.carried), given.steps)
        elif back := self.store.history.rollback_into(number, instead=False):
            self.store.rounds.open(number, self._made_again(back.to))
        elif number == 1:
            self.store.rounds.open(number, RoundStart(self._first_base, self._first_carried))
        else:
            self.store.rounds.open(number, self.store.rounds.start(number))

    def lobby(self, number: int = 0) -> Offer:
        """The offer of round 0, with which devices prepare.

        They get it before round 1, or (`number`) while that round asks others. Its base is that of round
        `number`, or the first base.
        """
        return Offer(
            task=self.task.name,
            run=self.run,
            round=0,
            seed=0,
            deadline_s=self.task.round_deadline_s,
            remaining_s=self.task.round_deadline_s,
            bundle=self._packed,
            base=self.store.rounds.start(number).base if number else self._first_base,
            kinds=(),
            family=self._members(self.store.rounds.start(number).carried if number else self._first_carried),
        )

    def offer(self, number: int, remaining_s: float) -> Offer:
        """The offer of an open round."""
        return Offer(
            task=self.task.name,
            run=self.run,
            round=number,
            seed=self.seed(number),
            deadline_s=self.deadline_s(number),
            remaining_s=remaining_s,
            bundle=self._packed,
            base=self.store.rounds.start(number).base,
            kinds=self.task.offer_kinds(number),
            family=self._members(self.store.rounds.start(number).carried),
            aside=self.store.rounds.start(number).carried.aside,
            rare=self._rare(number),
        )

    def _rare(self, number: int) -> tuple[int, ...]:
        """The labels of rare classes that round `number` names.

        They come from the statistics pooled at its beginning, or from the aggregator above.
        """
        if self._known_rare[0] != number:
            self._known_rare = number, self._look_up_rare(number)
        return self._known_rare[1]

    def _look_up_rare(self, number: int) -> tuple[int, ...]:
        if all(kind.strategy.statistics is None for kind in self.task.offered(number)):
            return ()
        if given := self.given(number):
            return given.rare
        kept = self.store.rounds.start(number).carried.memory.get(closed_form.MEMORY)
        return closed_form.rarest_classes(tensors.decode(self.store.models.get(kept))) if kept else ()

    def _members(self, carried: CarriedBlobs) -> tuple[Member, ...]:
        return tuple(
            Member(name, bundle, carried.family[name])
            for name, bundle in self._family.items()
            if name in carried.family
        )

    def farewell(self) -> Offer:
        """The last offer of a finished task; its base is the served model. Raises BlobError."""
        last = self.store.rounds.latest_closed()
        return Offer(
            task=self.task.name,
            run=self.run,
            round=last,
            seed=self.task.round_seed(last),
            deadline_s=self.task.round_deadline_s,
            remaining_s=0.0,
            bundle=self._packed,
            base=self._served_base(),
            kinds=(),
            done=True,
        )

    def _served_base(self) -> Base:
        """The served model as a base: the base that its round made, where that has the same weights."""
        made = self.store.rounds.made(self.registry.served())
        if made.served.sha == made.base.sha:
            return made.base
        if self._served.sha != made.served.sha:
            served = tensors.decode(self.store.models.get(made.served))
            self._served = bases.checkpoint(served, self.store.models, self.manifest)
        return self._served

    def weights(self, number: int, member: str = "") -> Tensors:
        """The weights that round `number` distributes."""
        return bases.base_weights(self.store, number, self.manifests[member], member)

    def merge(self, number: int, durations: Sequence[tuple[int, int]] = (), early: str = "") -> None:
        """Merges round `number`, or takes the model rolled back to; the rest as in `events.DoPhase`."""
        self.store.rounds.begin_merge(number, durations, early)
        if back := self.store.history.rollback_into(number, instead=True):
            self.store.rounds.merged(number, self._instead(back.to))
            return
        self.store.rounds.merged(
            number, merging.merge_round(self.store, self.task, self._tools, number, self.seed)
        )
        self._tools.unload()

    def _made_again(self, number: int) -> RoundStart:
        """The base and the rest that an earlier round made, as a new checkpoint.

        It needs its own checkpoint, because the steps taken since do not lead to it.
        """
        weights = bases.made_weights(self.store, number, self.manifest)
        base = bases.checkpoint(weights, self.store.models, self.manifest)
        return RoundStart(base, self.store.rounds.made(number).carried)

    def _instead(self, number: int) -> MergeResult:
        """The result of a round whose contributions a rollback discarded: the model rolled back to."""
        start, served = self._made_again(number), self.store.rounds.made(number).served
        note = f"went back to the model of round {number}; what came for this round does not count"
        return MergeResult(RoundModels(start.base, start.carried, served), (), note)

    def go_back(self, to: int) -> None:
        """Serves the model of round `to` and continues from it; see `ModelVersions.go_back`.

        Raises RollbackError, also where rounds are given from outside.
        """
        if self.outside is not None:
            raise RollbackError(SITE_ROLLBACK_TEXT)
        self.registry.go_back(to)
        self.redeploy()

    def finish(self, best: int) -> None:
        """Ends the run: serves the model of round `best` (0: the last round).

        A pending rollback takes precedence. Raises RollbackError as `ModelVersions.end_with`.
        """
        if best and self.registry.pending() is None:
            self.registry.end_with(best)
        self.redeploy()

    def redeploy(self) -> None:
        """Writes the served model again, because a crash may have come before it was written."""
        if number := self.registry.served():
            self._deploy(self.store.rounds.made(number).served)

    def evaluate(self, number: int) -> None:
        """Evaluates the round's models; serves the next base where its trained head is the better one."""
        served, base = (
            tensors.decode(self.store.models.get(self.store.rounds.made(number).served)),
            self.weights(number + 1),
        )
        figures = self._evaluator.figures(served, base)
        if self.task.evaluation_judges and (why := reason_to_serve_trained_head(figures)):
            log.info("round %d: %s", number, why)
            instead = self.store.models.put(tensors.encode(base))
            self.store.rounds.evaluated(number, self._evaluator.figures(base, base), instead)
        else:
            self.store.rounds.evaluated(number, figures)

    def publish(self, number: int, traffic: Mapping[str, DeviceTraffic], duration_s: float) -> RoundClosed:
        """Closes the round and deploys its served model."""
        back = self.store.history.rollback_after(number)
        self._deploy(self.store.rounds.made(back.to if back else number).served)
        self.registry.published(number)
        self.store.contributions.save_traffic(number, traffic)
        contributions = self.store.contributions.records(number)
        figures = self.store.rounds.figures(number)
        record = summarise(figures, contributions, traffic, (number, duration_s))
        deadline_s = nan if number <= self.task.untimed_rounds else self.deadline_s(number)
        self.store.rounds.close(replace(record, deadline_s=deadline_s))
        self._prune(number)
        return self.store.rounds.closed(number)[0]

    def _prune(self, number: int) -> None:
        """Deletes the blobs and steps that nothing needs any more after round `number`.

        Kept are the next base, that of round `number` (devices may still fetch it), the served models, the
        steps since their checkpoints, and the steps that the log is written from. Where late contributions
        count, the bases that they may have been made for are kept too. Where rounds are given from outside,
        the log continues from the base that the last round was given, not from the one that it made.
        """
        back = self.task.max_staleness - 1 if self.rules.counts_late else 0
        first = max(1, number - max(0, back))
        kept = [n for n in range(first, number + 1) if self.store.rounds.opened(n)] + [number + 1]
        offered = (self._first_base, *(self.store.rounds.start(n).base for n in kept))
        blobs = [part for base in offered for part in (*base.checkpoint, *base.log)]
        for carried in (self._first_carried, *(self.store.rounds.start(n).carried for n in kept)):
            blobs += carried.blobs
        versions = self.registry.kept(self.progress().best)
        for _, made in versions:
            blobs += (*made.blobs, *made.base.log)
        bundled = (self._packed, *self._family.values())
        self.store.models.prune([*bundled, self.store.rounds.made(number).served, *blobs])
        bases_kept = [(kept[0], self.store.rounds.start(kept[0]).base)] + [
            (n + 1, one.base) for n, one in versions[:1]
        ]
        latest = number if self.outside else number + 1
        at = self.store.rounds.start(latest).base.at
        written = (latest, min(at, max(at % SEGMENT, TAIL)))
        self.store.taken.forget([written, *((n, base.steps) for n, base in bases_kept)])

    def _deploy(self, served: Blob) -> None:
        path = self.store.folder / SERVED
        try:
            replace_file(path, self.store.models.get(served))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from None


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
