"""A kind of update: one class with the half that a device runs and the half of the aggregator.

A kind of one's own is a frozen dataclass derived from `Strategy`: docs/own-kind.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.directions.projection import Projection, projection
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.plugins import Plugin
from device_runtime.strategies.settings import MOST, Setting, SmallestCount

from .aggregator_half import KindResult, RoundModel
from .device_half import LocalData, Run, Update

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
        float,
        Setting(
            "Share of its samples that a device does not train on, to compare the closed-form head with the "
            "trained one; 0: none.",
            0.1,
            at_least=0,
            at_most=0.5,
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        ranges.check(self)

    def projection(self, width: int) -> Projection:
        """The projection of a head's `width` features to those that statistics are of."""
        return projection(width, self.features, self.projection_seed)


Codec = Annotated[
    str,
    Setting(
        "Codec that updates are sent by: delta, half or int8, deflate, joined by +; empty: as they are.",
        example="delta+int8+deflate",
    ),
]


@dataclass(frozen=True)
class TakesCodec:
    """Base of kinds with the setting `codec`: they send parameters, which a little rounding does not harm.

    Other kinds do not have the setting, because their updates must arrive exactly: the scalars of
    `zeroth-order`, which every device replays, and the sums and counts of `class-means`. Class statistics are
    short already.
    """

    codec: Codec = field(default="", kw_only=True)


ComparedAs = Literal["change", "scalars", "class-means"]
"""How robust rules compare updates: by their change of the base, as scalars, or as means by class."""


@dataclass(frozen=True)
class Strategy(Plugin, ABC, Generic[S]):
    """Both halves of one kind of update: no I/O, no clock, no global randomness.

    A kind is a frozen dataclass. Its fields are its hyperparameters: they travel in the offer, and each has a
    `settings.Setting` in its annotation. `S` is what the aggregator sums up during a round.

    A kind has a `name` and six methods: `cost`, `train` and `expected` for the device, `start`, `fold` and
    `finish` for the aggregator. All others have defaults.
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
    refused: ClassVar[tuple[str, ...]] = ()
    """Inherited settings that this kind does not take; dotted within a table."""
    own_round: ClassVar[bool] = False
    """Whether a contribution is useless outside the round that it was made for."""
    generic: ClassVar[bool] = False
    """Whether the aggregator needs a generic set: samples that belong to no device."""
    of_single_samples: ClassVar[bool] = False
    """Whether feature maps of single samples are sent."""
    reveals: ClassVar[str] = ""
    """What an update in the clear tells of the samples, for their owner; empty: what it sends."""
    trains_extractor: ClassVar[bool] = False
    """Whether the device back-propagates through the network."""
    computes_features: ClassVar[bool] = False
    """Whether `train` computes the features of all samples, which class statistics then reuse."""
    by_class: ClassVar[bool] = False
    """Whether it works by class, so that it applies only to bundles whose loss is cross-entropy."""
    statistics_alone: ClassVar[bool] = False
    """Whether an update consists of class statistics where the task asks for these."""
    compared_as: ClassVar[ComparedAs | None] = None
    """How robust rules compare its updates; None: a task with a robust rule cannot offer this kind."""
    adds_up: ClassVar[bool] = False
    """Whether a weighted mean of updates folds as the updates do; only then can they be masked."""
    summed: ClassVar[tuple[str, ...]] = ()
    """Tensors of an update that add up without a weight."""

    def __post_init__(self) -> None:
        """Raises ValueError for a setting outside its limits, or one that this kind does not take."""
        ranges.check(self)
        for name in self.refused:
            default = getattr(type(self), name, None)
            if "." not in name and getattr(self, name) != default:
                raise ValueError(f"{self.name} does not take the setting {name}")

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

    def variant_named(self, name: str) -> Strategy[S]:
        """The variant that an update says. Raises KindError if the kind has none of that name."""
        match = next((variant for variant in self.variants() if variant.variant == name), None)
        if match is None:
            names = ", ".join(repr(variant.variant) for variant in self.variants())
            text = name if len(name) <= 40 else f"{name[:40]}..."
            raise KindError(f"{self.name} has no variant {text!r}, expected one of {names}")
        return match

    def stopped(self: K, share: float) -> K | None:
        """The variant to send if training stops after this share of its work (0 to 1).

        None if nothing can be sent then.
        """
        return None

    @property
    def member(self) -> str:
        """The member of the task's family that this variant trains; empty for the main model.

        `cost`, `train` and `expected` are given that member's workload, model and manifest.
        """
        return ""

    # What a device and an aggregator may ask about an update

    def inapplicable_reason(self, manifest: Manifest) -> str:
        """Why this kind does not apply to the bundle's loss; empty if it does."""
        return manifest.target.why_not_by_class if self.by_class else ""

    def unfit_reason(self, workload: Workload) -> str:
        """Why this kind is of no use for the bundle's loss or the device's data; empty if it is."""
        if self.by_class and workload.no_classes:
            return workload.no_classes
        return self.infeasible_reason(workload)

    def infeasible_reason(self, workload: Workload) -> str:
        """Why this kind is of no use for the device's data; empty if it is."""
        return "" if workload.samples else "there is no local data"

    def unsummable_reason(self) -> str:
        """Why its updates cannot be masked and added up; empty if they can."""
        return "" if self.adds_up else "its updates do not fold as a sum"

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Why the aggregator rejects an update whose tensors are as expected; empty if it accepts it."""
        return ""

    def weight(self, update: Update) -> float:
        """The update's weight in the mean, in samples; by default those that it was trained on."""
        return update.num_examples

    @property
    def selected_share(self) -> float:
        """The share of a device's samples that `num_examples` counts."""
        return 1.0

    @property
    def smallest_class(self) -> int | None:
        """The fewest samples of a class that the update tells anything about; None: no such limit."""
        return getattr(self, "smallest_count", None)

    @property
    def scalars(self) -> int:
        """The number of zeroth-order scalars in a contribution; 0 for a kind that sends something else."""
        return 0

    @property
    def codec(self) -> str:
        """The codec of its tensors, as `codecs.chain.codec_named` takes it; empty for none."""
        return ""

    def repeat_upload_bytes(self, first: int) -> int:
        """Bytes on the wire of a repeated contribution, if the accepted one before it took `first` bytes."""
        return first

    # What robust rules and sites ask

    def comparable(self, update: Update, base: Tensors) -> Update:
        """The update as robust rules compare it, which `fold` then gets; `base` is its member's.

        Tensors that the base has in the same shape are compared, others stay as they are.
        """
        return update

    def longest_scalars(self, base_length: float, values: int) -> float:
        """The length of scalars whose step is as long as the base; inf if that is unknown.

        `values` is the number of weights. Asked for kinds compared as "scalars".
        """
        return inf

    @property
    def forwarded_as(self) -> Literal["update", "scalars", ""]:
        """What a site sends above of this kind for all its devices; empty: nothing."""
        return ""

    def at_site(self, base: Tensors, manifest: Manifest) -> tuple[Strategy[S], float]:
        """The kind that a site offers where it forwards scalars, and the factor for the site's scalars."""
        return self, 1.0

    def site_refusal(self) -> str:
        """Why a site cannot merge its devices' updates into one full update; empty if it can."""
        return "its merge changes more than the base model"

    def changes(self, manifest: Manifest) -> tuple[str, ...]:
        """The tensors of the base that its merge changes; asked only where a site can merge it."""
        return tuple(spec.name for spec in self.expected(manifest))


AnyStrategy = Strategy[Any]


@runtime_checkable
class NeedsModels(Protocol):
    """A kind for which the aggregator trains models: it needs their training graphs."""

    def check_bundles(self, manifests: Mapping[str, Manifest]) -> None:
        """Check that the bundles have all that the aggregator needs.

        `manifests` is by member, the main model's by "". Raises ModelError for what they lack, and KeyError
        for a member that is not among them.
        """


@runtime_checkable
class DerivesMembers(Protocol):
    """A kind whose family members are parts of the main model: their bases are cut out of its base."""

    def derive(self, base: Tensors, manifests: Mapping[str, Manifest]) -> Mapping[str, Tensors]:
        """The base of each of its members; `manifests` is by member, the main model's by ""."""
