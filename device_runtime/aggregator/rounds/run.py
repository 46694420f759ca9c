"""An open run: its task, its models, and its folder on the disk, without sockets or a clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_runtime.aggregator.errors import RollbackError
from device_runtime.aggregator.merging.evaluation import Evaluator
from device_runtime.aggregator.merging.merge_round import MergeTools, open_family, samples, store_carried
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.model_versions import ModelVersions
from device_runtime.aggregator.storage.run_files import check_identity
from device_runtime.aggregator.storage.store import RoundStart, Store
from device_runtime.aggregator.tasks.feasible import check_kinds, with_possible_head
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.blobs import BlobRoom
from device_runtime.broker.wire.messages import Blob
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.initial import initial_values
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.merging.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.merging.folding import derived_bases

from .given_rounds import SITE_ROLLBACK_TEXT, GivenRound, GivenRoundStore
from .progress import RunProgress

MERGED, SPARE_BYTES = 4, 16 * 1024**2
"""Uploads leave room on the disk for merging a round: MERGED times the bundles' size plus SPARE_BYTES."""
FRESH_WEIGHTS_DRAW = 3
"""Keeps the draws of fresh parameters apart from all others of the same seed."""


@dataclass(frozen=True)
class InitialModels:
    """What a run begins with: the bundle of each member of the family, "" for the main model, and round 1."""

    bundles: Mapping[str, Blob]
    start: RoundStart


class OpenRun:
    """An open run. Raises RunFolderError, BlobError when the disk fails, ModelError for a bad bundle."""

    def __init__(self, task: Task, folder: Path, given: bool = False, database: str = "") -> None:
        """Opens the folder, as a new run or where the last process left it.

        `given`: rounds come from outside (`given_rounds`). `database` as in Ports. Raises TaskError for kinds
        of update that the bundle has no graphs for, or evaluation data that do not fit, and RunFolderError
        for another task's folder.
        """
        main = Bundle.open(bundles.find_bundle(task.bundle))
        family = open_family(task.family, main.manifest)
        models = {"": main, **family}
        self.task = with_possible_head(task, main.manifest)
        check_kinds(task, main.manifest, {name: bundle.manifest for name, bundle in family.items()})
        self.evaluator = Evaluator(main, task.eval_data)
        generic = samples(task.generic, main, "generic set") if task.generic else None
        self.tools = MergeTools(models, generic)
        self.store = Store(folder, database=database)
        try:
            self.initial = self._initial(task, models)
            shas = tuple(blob.sha for blob in self.initial.bundles.values())
            self.run, self.resumed = check_identity(self.store, task, shas)
            self.registry = ModelVersions(self.store, task.keep_versions)
            self.outside = GivenRoundStore(folder) if given else None
            self.progress = RunProgress(self.task, self.store, self.outside)
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
        return self.outside.round(number) if self.outside else None

    def seed(self, number: int) -> int:
        """The seed that all devices of a round share."""
        return self.outside.seed(number) if self.outside else self.task.round_seed(number)

    def weights(self, number: int, member: str = "") -> Tensors:
        """The weights that round `number` distributes."""
        return bases.base_weights(self.store, number, self.tools.manifests[member], member)

    def go_back(self, to: int) -> None:
        """Serves the model of round `to` and continues from it; see `ModelVersions.go_back`.

        Raises RollbackError, also where rounds are given from outside.
        """
        if self.outside is not None:
            raise RollbackError(SITE_ROLLBACK_TEXT)
        self.registry.go_back(to)
        self.registry.deploy()


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
