"""One life of a run: its folder opened, and what each phase of a round does on disk. No sockets, no clock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from broker.blobs import sync_folder
from broker.messages import Blob, Member, Offer
from models import bundle as bundles
from models import tensors
from models.bundle import Bundle
from models.initial import fresh
from models.tensors import Tensors
from strategies.folding import derived
from strategies.kind import Carried, RoundModel

from . import merging
from .contributions import Bytes
from .errors import RunFolderError
from .evaluation import Evaluator, summarise
from .feasible import check_kinds
from .observer import RoundClosed
from .state import Rules
from .store import CarriedBlobs, Identity, Store
from .task import Task, decode
from .tools import Tools, open_family, samples

FRESH = 3
"""Purpose of the draws of fresh parameters."""
SHA_BYTES = 32
SERVED = "served.safetensors"
"""In the run folder: the served model of the latest closed round."""


class Rounds:
    """An open run. Raises RunFolderError, BlobError when the disk fails, ModelError for a bad bundle."""

    def __init__(self, task: Task, folder: Path) -> None:
        """Opens the folder, as a new run or where the last life left it.

        Raises TaskError for kinds of update that the bundle has no graphs for, or evaluation data that does
        not fit, RunFolderError for another task's folder.
        """
        self.task = task
        self.bundle = Bundle.open(bundles.find(task.bundle))
        self.manifest = self.bundle.manifest
        family = open_family(task.family, self.manifest)
        self.manifests = {"": self.manifest, **{name: bundle.manifest for name, bundle in family.items()}}
        check_kinds(task, self.manifest, {name: bundle.manifest for name, bundle in family.items()})
        self._evaluator = Evaluator(self.bundle, task.eval_data)
        generic = samples(task.generic, self.manifest, "generic set") if task.generic else None
        self._tools = Tools({"": self.bundle, **family}, generic)
        self.store = Store(folder)
        try:
            put = self.store.models.put
            self._packed = put(self.bundle.packed())
            self._family = {name: put(bundle.packed()) for name, bundle in family.items()}
            weights, carried = first(task, {"": self.bundle, **family}, self._tools)
            self._first_base = merging.checkpoint(weights, self.store.models, self.manifest)
            self._first_carried = merging.keep(carried, self.store, self._tools)
            self.run, self.resumed = self._identify(folder)
        except BaseException:
            self.store.close()
            raise

    def _identify(self, folder: Path) -> tuple[str, bool]:
        shas = [blob.sha for blob in (self._packed, *self._family.values())]
        mine = Identity(self.task.json(), secrets.token_hex(4), b"".join(shas))
        found = self.store.identity()
        if found is None:
            self.store.found(mine)
            (folder / "task.json").write_bytes(mine.task + b"\n")
            return mine.run, False
        begun = decode(found.task)  # settings that are newer than the run have their defaults
        if begun.json() != mine.task:
            changed = ", ".join(differences(begun, decode(mine.task)))
            raise RunFolderError(
                f"run folder {folder} belongs to another task ({changed}): give another --run-dir, "
                "or the settings it was begun with"
            )
        begun_with = [found.bundles[at : at + SHA_BYTES] for at in range(0, len(mine.bundles), SHA_BYTES)]
        for path, old, new in zip((self.task.bundle, *self.task.family), begun_with, shas, strict=True):
            if old != new:
                raise RunFolderError(
                    f"run folder {folder} was begun with another bundle {path} "
                    f"({old.hex()[:8]}, now {new.hex()[:8]}): give another --run-dir"
                )
        return found.run, True

    @property
    def rules(self) -> Rules:
        return Rules.of(self.task)

    def open(self, number: int) -> None:
        """Keep that a round is open. The first one distributes the bundles' own weights."""
        if number == 1:
            self.store.open_round(number, self._first_base, self._first_carried)
        else:
            self.store.open_round(number, self.store.base(number), self.store.carried(number))

    def lobby(self, number: int = 0) -> Offer:
        """Round 0: what to get ready with, before there is a round, or while round `number` asks others."""
        return Offer(
            task=self.task.name,
            run=self.run,
            round=0,
            seed=0,
            deadline_s=self.task.round_deadline_s,
            remaining_s=self.task.round_deadline_s,
            bundle=self._packed,
            base=self.store.base(number) if number else self._first_base,
            kinds=(),
            family=self._members(self.store.carried(number) if number else self._first_carried),
        )

    def offer(self, number: int, remaining_s: float) -> Offer:
        """An open round as devices are told of it."""
        return Offer(
            task=self.task.name,
            run=self.run,
            round=number,
            seed=self.task.round_seed(number),
            deadline_s=self.rules.deadline_s(number),
            remaining_s=remaining_s,
            bundle=self._packed,
            base=self.store.base(number),
            kinds=self.task.offer_kinds(number),
            family=self._members(self.store.carried(number)),
            aside=self.store.carried(number).aside,
        )

    def _members(self, carried: CarriedBlobs) -> tuple[Member, ...]:
        return tuple(
            Member(name, bundle, carried.family[name])
            for name, bundle in self._family.items()
            if name in carried.family
        )

    def farewell(self) -> Offer:
        """The task is done; `base` is what the last round made."""
        last = self.task.rounds
        return Offer(
            task=self.task.name,
            run=self.run,
            round=last,
            seed=self.task.round_seed(last),
            deadline_s=self.task.round_deadline_s,
            remaining_s=0.0,
            bundle=self._packed,
            base=self.store.base(last + 1),
            kinds=(),
            done=True,
        )

    def weights(self, number: int, member: str = "") -> Tensors:
        """What round `number` distributes."""
        return merging.base_weights(self.store, number, self.manifests[member], member)

    def merge(self, number: int) -> None:
        self.store.begin_merge(number)
        self.store.merged(number, merging.merge_round(self.store, self.task, self._tools, number))
        self._tools.unload()

    def evaluate(self, number: int) -> None:
        served = tensors.decode(self.store.models.get(self.store.served(number)))
        self.store.evaluated(number, self._evaluator.figures(served, self.weights(number + 1)))

    def publish(self, number: int, traffic: Mapping[str, Bytes], duration_s: float) -> RoundClosed:
        """Close the round; its served model is what is deployed from now on."""
        self._deploy(self.store.served(number))
        self.store.contributions.save_traffic(number, traffic)
        contributions = self.store.contributions.records(number)
        figures = self.store.figures(number)
        self.store.close_round(summarise(figures, contributions, traffic, (number, duration_s)))
        self._prune(number)
        return self.store.closed(number)[0]

    def _prune(self, number: int) -> None:
        """Keep what is offered, what was until now (some may still fetch it), and the served model.

        Where late contributions count, also the bases that they may have been made for.
        """
        back = self.task.max_staleness - 1 if self.rules.counts_late else 0
        first = max(1, number - max(0, back))
        kept = range(first, number + 2)
        bases = (self._first_base, *(self.store.base(n) for n in kept))
        blobs = [part for base in bases for part in base.checkpoint]
        blobs += [base.log for base in bases if base.log]
        for carried in (self._first_carried, *(self.store.carried(n) for n in kept)):
            blobs += carried.blobs
        bundled = (self._packed, *self._family.values())
        self.store.models.prune([*bundled, self.store.served(number), *blobs])

    def _deploy(self, served: Blob) -> None:
        folder = self.store.folder
        beside = folder / f".{SERVED}"
        try:
            with beside.open("wb") as file:
                file.write(self.store.models.get(served))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(folder / SERVED)
            sync_folder(folder)
        except OSError as error:
            raise RunFolderError(f"cannot write {folder / SERVED}: {error.strerror or error}") from None


def first(task: Task, models: Mapping[str, Bundle], tools: Tools) -> tuple[Tensors, Carried]:
    """What round 1 distributes: the bundles' weights, or fresh ones, of the main model and its family."""
    weights = {member: started(bundle, task, place) for place, (member, bundle) in enumerate(models.items())}
    main = weights.pop("")
    model = RoundModel(models[""].manifest, main, 0, task.seed, tools=tools)
    cut = derived((kind.strategy for kind in task.kinds), main, model)
    return main, Carried(family={**weights, **cut})


def started(bundle: Bundle, task: Task, place: int) -> Tensors:
    """The weights of one model at the start; `place` makes its draws its own."""
    weights = bundle.weights()
    if task.start == "bundle":
        return weights
    rng = np.random.default_rng([task.seed, FRESH, place])
    return {**weights, **fresh(bundle.manifest, weights, rng)}


def differences(old: Task, new: Task) -> list[str]:
    """Settings that differ, with both values where they are short."""
    texts = []
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            texts.append(field if field == "kinds" else f"{field} {before}, now {after}")
    return texts
