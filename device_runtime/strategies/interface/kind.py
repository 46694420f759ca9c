"""A kind of update: one class with the half that a device runs and the half of the aggregator.

A kind of one's own is a frozen dataclass derived from `Strategy`: docs/own-kind.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.directions.directions import Projection, projection
from device_runtime.strategies.plugins import Plugin
from device_runtime.strategies.settings import MOST, Setting, SmallestCount

from .aggregator_half import KindResult, RoundModel
from .capabilities import EndsEarly, HasTraits, listed_variant
from .device_half import LocalData, Run, Update
from .former_names import FormerMethods, FormerNames

S = TypeVar("S")
K = TypeVar("K")
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class KindInfo:
    """A short description of a kind: what a device trains, what it sends, and its source."""

    trains: str
    sends: str
    source: str


@dataclass(frozen=True)
class ClassStatistics:
    """Settings of the class statistics that devices send with updates (`statistics.class_statistics`)."""

    numbers: Annotated[
        Literal["float16", "int8"],
        Setting(
            "How means are sent; in class-means and with scalars always int8.",
            "int8",
        ),
    ] = "float16"
    smallest_count: SmallestCount = 2
    samples: Annotated[
        int,
        Setting(
            "Most samples that a device measures whose kind of update trains no extractor; 0: all.",
            100,
            "samples",
            at_least=0,
            at_most=MOST,
        ),
    ] = 40
    most_classes: Annotated[
        int,
        Setting(
            "Most classes of which one update sends statistics; the others follow in later rounds; 0: all.",
            4,
            "classes",
            at_least=0,
            at_most=MOST,
        ),
    ] = 0
    moments: Annotated[
        bool,
        Setting("Whether second moments of features are sent too, by devices that can in time.", True),
    ] = True
    features: Annotated[
        int,
        Setting(
            "Most features that statistics are of; those of a wider head are projected at random.",
            128,
            "features",
            at_least=1,
            at_most=4096,
        ),
    ] = 512
    projection_seed: Annotated[
        int, Setting("Seed of that random projection.", 1, at_least=0, at_most=MOST)
    ] = 0
    hold_out: Annotated[
        float | None,
        Setting(
            "Share of its samples that a device does not train on, to test the served model and compare the "
            "closed-form head with the trained one; 0: none; by default 0.1 where `serve` has no eval_data.",
            0.1,
            at_least=0,
            at_most=0.5,
            flag="held-out",
            metavar="SHARE",
        ),
    ] = None

    def __post_init__(self) -> None:
        ranges.check(self)

    def projection(self, width: int, columns: int = 0) -> Projection:
        """The projection of a head's `width` features to those that statistics are of, beside `columns`."""
        return projection(width, self.features - columns, self.projection_seed)


@dataclass(frozen=True)
class Strategy(FormerNames, Plugin, HasTraits, ABC, Generic[S]):
    """Both halves of one kind of update: no I/O, no clock, no global randomness.

    A kind is a frozen dataclass. Its fields are its hyperparameters: they travel in the offer, and each has a
    `settings.Setting` in its annotation. `S` is what the aggregator sums up during a round.

    A kind has a `name` and six methods: `cost`, `train` and `expected` for the device, `start`, `fold` and
    `finish` for the aggregator. The other six have defaults. Class keywords say what it is (`Traits`), and it
    derives from what else it can do (`capabilities`).
    """

    statistics: Annotated[
        ClassStatistics | None,
        Setting(
            "Class statistics sent with updates; none: no statistics.", {"smallest_count": 5}, by_task=True
        ),
    ] = field(default=None, kw_only=True)

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[KindInfo] = KindInfo("as its code says", "as its code says", "own kind")
    mixed_round_settings: ClassVar[Settings] = {}
    """Default settings in rounds that offer several kinds, in place of the paper's."""

    # The device's half

    @abstractmethod
    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """The predicted cost of an update on a device."""

    @abstractmethod
    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        """On the device: train and return the update; `model` holds the base. Raises OutOfTime."""

    @abstractmethod
    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """The tensors that an update must consist of."""

    # The aggregator's half

    @abstractmethod
    def start(self, model: RoundModel) -> S:
        """The empty state of a round."""

    @abstractmethod
    def fold(self, state: S, update: Update, weight: float) -> S:
        """Add one update, which is not held afterwards: memory does not grow with the devices."""

    @abstractmethod
    def finish(self, state: S, model: RoundModel) -> KindResult:
        """The result of all folded contributions."""

    # Variants: forms of one kind that a device may choose from

    @property
    def variant(self) -> str:
        """The name of this variant among `variants`; empty for a kind that has only one."""
        return ""

    def variants(self: K) -> tuple[K, ...]:
        """The variants that a device may choose from, the richest first."""
        return (self,)

    @property
    def member(self) -> str:
        """The member of the task's family that this variant trains; empty for the main model.

        `cost`, `train` and `expected` are given that member's workload, model and manifest.
        """
        return ""

    # What a device and an aggregator ask about an update

    def infeasible_reason(self, workload: Workload) -> str:
        """Why this kind is of no use for the device's data; empty if it is."""
        return "" if workload.samples else "has no local data"

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Why the aggregator rejects an update whose tensors are as expected; empty if it accepts it."""
        return ""

    def weight(self, update: Update) -> float:
        """The update's weight in the mean, in samples; by default those that it was trained on."""
        return update.num_examples


AnyStrategy = Strategy[Any]


def inapplicable_reason(kind: AnyStrategy, manifest: Manifest) -> str:
    """Why a kind does not apply to the bundle's loss; empty if it does."""
    if isinstance(kind, FormerMethods):
        return kind.inapplicable_reason(manifest)
    return manifest.target.why_not_by_class if _needs_classes(kind) else ""


def _needs_classes(kind: AnyStrategy) -> bool:
    """Whether a kind works by class; one that consists of class statistics works by stratum."""
    return kind.traits.by_class and not (kind.traits.statistics_alone and kind.statistics is not None)


def unfit_reason(kind: AnyStrategy, workload: Workload) -> str:
    """Why a kind is of no use for the bundle's loss or the device's data; empty if it is."""
    if isinstance(kind, FormerMethods):
        return kind.unfit_reason(workload)
    if workload.no_classes and _needs_classes(kind):
        return workload.no_classes
    return kind.infeasible_reason(workload)


def variant_named(kind: AnyStrategy, name: str) -> AnyStrategy:
    """The variant that an update says, also one that ended early. Raises KindError if there is none."""
    if isinstance(kind, FormerMethods):
        own: AnyStrategy = kind.variant_named(name)
        return own
    ended = kind.ended_variant(name) if isinstance(kind, EndsEarly) else None
    variant: AnyStrategy = listed_variant(kind, name) if ended is None else ended
    return variant
