"""What every kind of update is: the interface of both its halves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.profiles import Cost, DeviceProfile, Workload

from . import settings as ranges
from .merging.aggregator_half import Effect, RoundModel
from .settings import MOST, Setting, SmallestCount
from .statistics.class_sums import Projection, projection
from .training.device_half import LocalData, Run, TrainedUpdate

S = TypeVar("S")


@dataclass(frozen=True)
class KindInfo:
    """A kind of update in a few words: what a device does, what it sends, whose method it is."""

    trains: str
    sends: str
    source: str


@dataclass(frozen=True)
class ClassStatistics:
    """How devices send the class statistics of their features beside an update (`class_statistics`)."""

    numbers: Annotated[
        Literal["float16", "int8"],
        Setting(
            "How means are sent; in class-means and beside scalars always int8.",
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
        """Of a head's features to those that statistics are of."""
        return projection(width, self.features, self.projection_seed)


class Strategy(Protocol[S]):
    """Both halves of one kind of update: no I/O, no clock, no global randomness.

    A frozen dataclass whose fields are its hyperparameters: they travel in the offer, and each has a
    `settings.Setting` in its annotation.
    """

    name: ClassVar[str]
    about: ClassVar[KindInfo]
    refused: ClassVar[tuple[str, ...]]
    """Settings that it has from a class that it builds on, and does not take; dotted within a table."""
    own_round: ClassVar[bool]
    """Whether a contribution means nothing outside the round that it was made for."""
    generic: ClassVar[bool]
    """Whether the aggregator needs a generic set for it."""
    of_single_samples: ClassVar[bool]
    """Whether feature maps of single samples are sent."""
    trains_extractor: ClassVar[bool]
    """Whether its device back-propagates through the network."""

    @property
    def statistics(self) -> ClassStatistics | None:
        """The class statistics that go with its updates; None: there are none."""

    @property
    def scalars(self) -> int:
        """Scalars along directions that are sent in a round; 0 for a kind that sends something else."""

    @property
    def form(self) -> str:
        """Which of its forms this is, in a word; empty for a kind that has one."""

    @property
    def codec(self) -> str:
        """The word of the codec that its tensors are sent by (`codecs.chain`); empty for none."""

    @property
    def member(self) -> str:
        """The member of the task's family that this form trains; empty for the main model.

        `cost`, `train` and `expected` are given that member's workload, model and manifest. `form` is its
        name then.
        """

    def variants(self) -> tuple[Strategy[S], ...]:
        """The forms a device may choose from, the richest first."""

    def stopped(self, share: float) -> Strategy[S] | None:
        """What it is worth when the clock stops it after this share of its work: the form that was done.

        None where nothing of it can be sent.
        """

    def unfit(self, workload: Workload) -> str:
        """Why this kind makes no sense for the device's data; empty when it does."""

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        """Predicted, before anything runs."""

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> TrainedUpdate:
        """On the device. Raises OutOfTime."""

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """What a contribution must consist of, to be believed."""

    def doubt(self, update: Tensors, num_examples: int) -> str:
        """What is wrong with an update whose tensors are as expected; empty when nothing is."""

    def counted(self, contribution: TrainedUpdate) -> float:
        """As how many samples an update counts in a mean."""

    def again(self, first: int) -> int:
        """Bytes on the wire of another contribution like one that was accepted, and took so many."""

    def start(self, model: RoundModel) -> S:
        """On the aggregator: an empty state of one round."""

    def fold(self, state: S, contribution: TrainedUpdate, weight: float) -> S:
        """Add one contribution, which then may be forgotten: memory does not grow with the devices."""

    def finish(self, state: S, model: RoundModel) -> Effect:
        """What the folded contributions do to the model."""


AnyStrategy = Strategy[Any]
K = TypeVar("K")


@dataclass(frozen=True)
class Coded:
    """Kinds that have the setting `codec`: they send parameters, in which a little loss does no harm.

    Others must arrive exactly as they are, and refuse it as a setting that they do not have: the scalars of
    `zeroth-order`, which every device replays, and the sums and counts of `class-means`; class statistics are
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
    """What most kinds do: one form, sensible for any data, nothing to doubt, bound to no round, no codec,
    counted by the samples trained on.
    """

    statistics: Annotated[
        ClassStatistics | None,
        Setting("Class statistics sent beside updates; none: without.", {"every": 20}, by_task=True),
    ] = field(default=None, kw_only=True)
    trains_extractor: ClassVar[bool] = False
    own_round: ClassVar[bool] = False
    generic: ClassVar[bool] = False
    of_single_samples: ClassVar[bool] = False
    refused: ClassVar[tuple[str, ...]] = ()

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

    def doubt(self, update: Tensors, num_examples: int) -> str:
        return ""

    def counted(self, contribution: TrainedUpdate) -> float:
        return contribution.num_examples

    def again(self, first: int) -> int:
        return first


def formed(strategy: AnyStrategy, form: str) -> AnyStrategy:
    """The form of a kind that a contribution says it is; the first for one that is not among them."""
    forms = strategy.variants()
    return next((one for one in forms if one.form == form), forms[0])


@runtime_checkable
class NeedsModels(Protocol):
    """A kind for which the aggregator trains: it needs graphs of the models there."""

    def lacks(self, manifests: Mapping[str, Manifest]) -> None:
        """`manifests` by member, the main model's by "".

        Raises ModelError for what they do not have, and KeyError for a member that is not there.
        """


@runtime_checkable
class Derives(Protocol):
    """A kind whose members are parts of the main model: their bases follow from its base."""

    def derive(self, base: Tensors, manifests: Mapping[str, Manifest]) -> Mapping[str, Tensors]:
        """The base of each of its members. `manifests` by member, the main model's by ""."""


Settings = Mapping[str, Any]
