"""The interface of a kind of update: the half that a device runs and the half of the aggregator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload

from . import settings as ranges
from .merging.aggregator_half import KindResult, RoundModel
from .settings import MOST, Setting, SmallestCount
from .statistics.class_sums import Projection, projection
from .training.device_half import LocalData, Run, TrainedUpdate

S = TypeVar("S")


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


class Strategy(Protocol[S]):
    """Both halves of one kind of update: no I/O, no clock, no global randomness.

    Implemented by a frozen dataclass whose fields are its hyperparameters: they travel in the offer, and each
    has a `settings.Setting` in its annotation. `S` is what the aggregator sums up during a round.
    """

    name: ClassVar[str]
    about: ClassVar[KindInfo]
    refused: ClassVar[tuple[str, ...]]
    """Inherited settings that this kind does not take; dotted within a table."""
    own_round: ClassVar[bool]
    """Whether a contribution is useless outside the round that it was made for."""
    generic: ClassVar[bool]
    """Whether the aggregator needs a generic set: samples that belong to no device."""
    of_single_samples: ClassVar[bool]
    """Whether feature maps of single samples are sent."""
    trains_extractor: ClassVar[bool]
    """Whether the device back-propagates through the network."""

    @property
    def statistics(self) -> ClassStatistics | None:
        """The class statistics that are sent with its updates; None: no statistics."""

    @property
    def smallest_class(self) -> int | None:
        """The fewest samples of a class that the update tells anything about; None: no such limit."""

    @property
    def scalars(self) -> int:
        """The number of zeroth-order scalars in a contribution; 0 for a kind that sends something else."""

    @property
    def form(self) -> str:
        """The name of this form among `variants`; empty for a kind that has only one form."""

    @property
    def codec(self) -> str:
        """The codec of its tensors, as `codecs.chain.codec_named` takes it; empty for none."""

    @property
    def member(self) -> str:
        """The member of the task's family that this form trains; empty for the main model.

        `cost`, `train` and `expected` are given that member's workload, model and manifest, and `form` is the
        member's name.
        """

    def variants(self) -> tuple[Strategy[S], ...]:
        """The forms that a device may choose from, the richest first."""

    def stopped(self, share: float) -> Strategy[S] | None:
        """The form that was done if the clock stops training after this share of its work (0 to 1).

        None if nothing can be sent then.
        """

    def unfit(self, workload: Workload) -> str:
        """Why this kind is of no use for the device's data; empty if it is."""

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """The predicted cost of an update on a device."""

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> TrainedUpdate:
        """On the device: train and return the update. Raises OutOfTime."""

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """The tensors that a contribution must consist of."""

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Why the aggregator rejects an update whose tensors are as expected; empty if it accepts it."""

    def counted(self, contribution: TrainedUpdate) -> float:
        """The update's weight in the mean, in samples."""

    def again(self, first: int) -> int:
        """Bytes on the wire of a repeated contribution, if the accepted one before it took `first` bytes."""

    def start(self, model: RoundModel) -> S:
        """On the aggregator: the empty state of a round."""

    def fold(self, state: S, contribution: TrainedUpdate, weight: float) -> S:
        """Add one contribution, which is not held afterwards: memory does not grow with the devices."""

    def finish(self, state: S, model: RoundModel) -> KindResult:
        """The result of all folded contributions."""


AnyStrategy = Strategy[Any]
K = TypeVar("K")


@dataclass(frozen=True)
class TakesCodec:
    """Base of kinds with the setting `codec`: they send parameters, which a little rounding does not harm.

    Other kinds do not have the setting, because their updates must arrive exactly: the scalars of
    `zeroth-order`, which every device replays, and the sums and counts of `class-means`. Class statistics are
    short already.
    """

    codec: Annotated[
        str,
        Setting(
            "Codec that updates are sent by: delta, half or int8, deflate, joined by +; empty: as they are.",
            example="delta+int8+deflate",
        ),
    ] = field(default="", kw_only=True)


@dataclass(frozen=True)
class StrategyDefaults:
    """Defaults for kinds: one form, of use for any data, no checks, not bound to a round, no codec.

    An update's weight is the number of samples that it was trained on.
    """

    statistics: Annotated[
        ClassStatistics | None,
        Setting(
            "Class statistics sent with updates; none: no statistics.", {"smallest_count": 5}, by_task=True
        ),
    ] = field(default=None, kw_only=True)
    trains_extractor: ClassVar[bool] = False
    own_round: ClassVar[bool] = False
    generic: ClassVar[bool] = False
    of_single_samples: ClassVar[bool] = False
    refused: ClassVar[tuple[str, ...]] = ()

    @property
    def smallest_class(self) -> int | None:
        return getattr(self, "smallest_count", None)

    @property
    def scalars(self) -> int:
        return 0

    @property
    def form(self) -> str:
        return ""

    @property
    def codec(self) -> str:
        return ""

    @property
    def member(self) -> str:
        return ""

    def variants(self: K) -> tuple[K, ...]:
        return (self,)

    def stopped(self: K, share: float) -> K | None:
        return None

    def unfit(self, workload: Workload) -> str:
        return "" if workload.samples else "there is no local data"

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        return ""

    def counted(self, contribution: TrainedUpdate) -> float:
        return contribution.num_examples

    def again(self, first: int) -> int:
        return first


def form_named(strategy: AnyStrategy, form: str) -> AnyStrategy:
    """The form of a kind with this name; the first form if the kind has none of that name."""
    forms = strategy.variants()
    return next((one for one in forms if one.form == form), forms[0])


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


Settings = Mapping[str, Any]
