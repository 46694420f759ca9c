"""FedSplit: devices send representative feature maps, on which the aggregator trains a new upper part.

Thesis 002, algorithm 5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import weights
from device_runtime.models.bundles.manifest import ABOVE, Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Cost, DeviceProfile, GraphPass, Workload, predict
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import MERGES_MORE
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import (
    MOST,
    BatchSize,
    ClipNorm,
    Level,
    LocalEpochs,
    ServerBatchSize,
    ServerEpochs,
    ServerLearningRate,
    Setting,
)
from device_runtime.strategies.training import clustering, teaching
from device_runtime.strategies.training.local_training import TrainingPlan
from device_runtime.strategies.training.teaching import ServerTraining
from device_runtime.strategies.training.workload import upload_bytes

from .fedavg import FedAvg

log = logging.getLogger(__name__)

MAPS, COUNTS = "representatives.maps", "representatives.counts"


@dataclass(frozen=True)
class MapPool:
    """Feature maps of a round and their labels: at most `most`, drawn evenly from all that came."""

    most: int
    rng: np.random.Generator
    maps: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)

    def add(self, maps: NDArray[np.float32], counts: NDArray[Any], total: int) -> int:
        """Add maps (n, ...) in the order of classes, `counts` of each; returns `total` plus their number.

        Vitter 1985, algorithm R: the i-th map replaces another with probability most / i.
        """
        for feature_map, label in zip(maps, np.repeat(np.arange(len(counts)), counts), strict=True):
            total += 1
            if len(self.maps) < self.most:
                self.maps.append(feature_map.copy())
                self.labels.append(int(label))
            elif (place := int(self.rng.integers(total))) < self.most:
                self.maps[place], self.labels[place] = feature_map.copy(), int(label)
        return total


@dataclass(frozen=True)
class RepresentativesState:
    """The state of a round: the mean of the updates, and the feature maps that came with them.

    total: maps so far, of which the pool holds some.
    """

    mean: TensorMean
    pool: MapPool
    total: int = 0


@dataclass(frozen=True)
class Representatives(
    FedAvg,
    own_round=True,
    by_class=True,
    of_single_samples=True,
    reveals="weights; feature maps of single samples",
    refused=(
        "reduced_epochs", "graded", "drawn_epochs", "least_epochs",
        "terms.moon", "terms.fscprox", "terms.dp-sgd",
    ),
):  # fmt: skip
    """Devices send a full update, and feature maps at `level` by the *distributed* extractor, with labels.

    For each class, maps are reduced to `components` principal components and grouped into `clusters` by
    k-means; of each cluster the map nearest to the centroid is sent (equation 6.4). `select="all"` sends
    every map, at most `most_maps`: the upper bound of table 6.3. The aggregator trains the part above
    `level` on all maps (equation 6.5), in every round from the same initial weights, which are drawn in the
    first round (algorithm 5, line 1); the served model is that part on the distributed extractor. The base is
    the mean of full updates, as in FedAvg. If more than `pool_maps` maps come, that many are drawn.
    Defaults: section 6.3; it leaves momentum open (0.5 as in table 4.1) and the batch on the aggregator.
    """

    name: ClassVar[str] = "representatives"
    mixed_round_settings: ClassVar[Settings] = {}
    about: ClassVar[KindInfo] = KindInfo(
        "everything",
        "all parameters, and feature maps that stand for many",
        "FedSplit: Shi 2025 (PhD thesis, Sheffield), section 6.2",
    )
    epochs: LocalEpochs = 1
    batch: BatchSize = 50
    clip_norm: ClipNorm = 0.0
    level: Level = "low"
    select: Annotated[
        Literal["clusters", "all"],
        Setting("Which feature maps are sent: one for each cluster, or all.", example="all"),
    ] = "clusters"
    components: Annotated[
        int,
        Setting("Principal components before clustering.", 100, "components", at_least=1, at_most=MOST),
    ] = 200
    clusters: Annotated[int, Setting("Clusters of each class.", 10, "clusters", at_least=1, at_most=MOST)] = (
        20
    )
    most_maps: Annotated[
        int, Setting("The most feature maps a device sends.", 5000, "samples", at_least=1, at_most=MOST)
    ] = 10_000
    server_epochs: ServerEpochs = 100
    server_lr: ServerLearningRate = 0.1
    server_momentum: Annotated[
        float, Setting("Momentum of training on the aggregator.", 0.9, at_least=0, less_than=1)
    ] = 0.5
    server_batch: ServerBatchSize = 50
    pool_maps: Annotated[
        int,
        Setting(
            "The most feature maps the aggregator trains on.", 20_000, "samples", at_least=1, at_most=MOST
        ),
    ] = 50_000

    def infeasible_reason(self, workload: Workload) -> str:
        if self.select == "all" and workload.samples > self.most_maps:
            return f"sends at most {self.most_maps} maps, there are {workload.samples} samples"
        return super().infeasible_reason(workload)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """The cost; maps of one class at a time are in memory.

        During training, the maps that are sent and the graph that computed them are in memory too.
        """
        work, values = self.work(workload), workload.map_values(self.level)
        graph, counts = f"features.{self.level}", workload.class_counts
        rows = sum(self._rows(count) for count in counts)
        largest = max(counts, default=0)
        choosing = 2 * workload.weights_bytes + workload.samples * workload.sample_bytes
        choosing += activation_bytes(workload, graph) + 8 * largest * values
        flops = 0.0
        if self.select == "clusters":
            flops = sum(clustering.flops(n, values, self.components, self.clusters) for n in counts)
            choosing += 8 * largest * (3 * min(largest, values) + self.components)
        selection = GraphPass("clusters", workload.samples, flops / max(workload.samples, 1))
        work = replace(
            work,
            passes=(*work.passes, GraphPass(graph, workload.samples, workload.graph(graph).flops), selection),
            peak_bytes=max(work.peak_bytes + activation_bytes(workload, graph), choosing) + 4 * rows * values,
            bytes_up=upload_bytes(
                workload.values("all"),
                workload.tensors["all"] + 2,
                self.codec,
                exact=rows * values + workload.labels,
            ),
        )
        return predict(profile, work, self.name)

    def _rows(self, samples: int) -> int:
        """The number of maps that are sent of a class with `samples` samples."""
        return samples if self.select == "all" else min(samples, self.clusters)

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> TrainingPlan:
        maps, counts = self.metadata(model, data, run.rng())
        return replace(super().plan(model, data, run), beside={MAPS: maps, COUNTS: counts})

    def metadata(
        self, model: DeviceModel, data: LocalData, rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The feature maps to send (rows, *map) in the order of classes, and their counts (classes,)."""
        counts = np.zeros(len(model.manifest.labels), np.int32)
        parts = [np.zeros((0, *teaching.map_shape(model.manifest, self.level)), np.float32)]
        for label in np.unique(data.y):
            maps = model.level_features(data.x[data.y == label], self.level)
            if self.select == "clusters":
                flat = maps.reshape(len(maps), -1)
                maps = maps[clustering.representatives(flat, self.components, self.clusters, rng)]
            counts[label] = len(maps)
            parts.append(maps)
        return np.concatenate(parts), counts

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """The tensors of a contribution: feature maps are in the order of classes, counts are by class."""
        labels = len(manifest.labels)
        rows = self.most_maps if self.select == "all" else self.clusters * labels
        maps = TensorSpec(MAPS, (rows, *teaching.map_shape(manifest, self.level)), variable=True)
        return (*super().expected(manifest), maps, TensorSpec(COUNTS, (labels,), "int32"))

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        counts, rows = update[COUNTS].astype(np.int64), len(update[MAPS])
        if counts.min(initial=0) < 0 or int(counts.sum()) != rows:
            return f"{rows} maps, but the counts by class are {', '.join(map(str, counts))}"
        return f"{rows} maps, but only {num_examples} samples" if rows > num_examples else ""

    def check_bundles(self, manifests: Mapping[str, Manifest]) -> None:
        """Check that the main model's bundle, by "", has the graphs that are needed. Raises BundleError."""
        teaching.need_graphs(manifests[""], (f"features.{self.level}", f"{self._objective}.{self._upper}"))

    @property
    def _objective(self) -> str:
        return f"above-{self.level}"

    @property
    def _upper(self) -> str:
        return ABOVE[self._objective]

    def site_refusal(self) -> str:
        return MERGES_MORE

    def start(self, model: RoundModel) -> RepresentativesState:  # type: ignore[override]
        """Raises as `check_bundles`."""
        self.check_bundles({"": model.manifest})
        return RepresentativesState(
            TensorMean(), MapPool(self.pool_maps, teaching.generator(model.seed, self.name, 0))
        )

    def fold(  # type: ignore[override]
        self, state: RepresentativesState, update: Update, weight: float
    ) -> RepresentativesState:
        sent = dict(update.tensors)
        total = state.pool.add(sent.pop(MAPS), sent.pop(COUNTS), state.total)
        return replace(state, mean=state.mean.add(sent, weight), total=total)

    def finish(self, state: RepresentativesState, model: RoundModel) -> KindResult:  # type: ignore[override]
        begin = self._initial(model) if state.total else None
        served = self.upper_part(state.pool, model, begin) if begin else None
        return KindResult(mean=state.mean, num_examples=state.mean.most, served=served, memory=begin)

    def _initial(self, model: RoundModel) -> Tensors:
        """theta_ini: the initial values of the tensors above the level, the same in every round."""
        if model.memory:
            return model.memory
        rng = teaching.generator(model.seed, self.name, 1)
        graph = model.manifest.graphs[f"{self._objective}.{self._upper}"]
        return weights.initial_values(model.manifest, (*graph.trainable, *graph.statistics), rng)

    def upper_part(self, pool: MapPool, model: RoundModel, begin: Tensors) -> dict[str, NDArray[Any]] | None:
        """theta_meta: the tensors above the level, trained on the maps from their values in `begin`.

        None if training diverges. Raises ValueError without an engine, and as `check_bundles`.
        """
        if model.tools is None:
            raise ValueError(f"{self.name} trains on the aggregator, and there is no engine")
        main, rng = model.tools.model(), teaching.generator(model.seed, self.name, 2)
        zero = np.zeros((), main.manifest.input.dtype)
        data = LocalData(
            np.broadcast_to(zero, (len(pool.labels), *main.manifest.input.shape)), np.array(pool.labels)
        )
        training = ServerTraining(
            Sgd(self.server_lr, self.server_momentum), self.server_epochs, self.server_batch, self._upper,
            self._objective, lambda batch: {"maps": np.stack([pool.maps[i] for i in batch])},
        )  # fmt: skip
        try:
            trained = teaching.teach(main, {**model.weights, **begin}, data, training, rng)
        except teaching.Diverged as error:
            log.warning("the upper part of round %d is ignored: %s", model.round, error)
            return None
        return {name: trained[name] for name in begin}
