"""What a kind of update is (its traits), and what it can do beside training and merging (its capabilities).

Each class of a capability is what one feature asks of a kind, and each function asks it of any kind, with
the answer for those that lack the capability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.codecs.chain import Chain, codec_named
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.settings import Setting

from .device_half import Update

K = TypeVar("K")
ComparedAs = Literal["change", "scalars", "class-means"]
"""How robust rules compare updates: by their change of the base, as scalars, or as means by class."""
FOLDS_OTHERWISE = "its updates do not fold as a sum"
MERGES_MORE = "its merge changes more than the base model"


class Comparable:
    """A kind whose updates are compared, by robust rules and bounds on lengths."""

    compared_as: ClassVar[ComparedAs | None] = "change"
    """None takes the capability back that a class inherits."""

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


def compared_as(kind: object) -> ComparedAs | None:
    """How robust rules compare the updates of a kind; None: they cannot."""
    return kind.compared_as if isinstance(kind, Comparable) else None


def comparable(kind: object, update: Update, base: Tensors) -> Update:
    """The update of a kind as robust rules compare it."""
    return kind.comparable(update, base) if isinstance(kind, Comparable) else update


class Summable:
    """A kind of which a weighted mean of updates folds as the updates do; only then can they be masked.

    A class that overrides `expected` or `fold` of one that has this loses it, unless it says `adds_up`.
    """

    adds_up: ClassVar[bool] = True
    summed: ClassVar[tuple[str, ...]] = ()
    """Tensors of an update that add up without a weight."""

    def __init_subclass__(cls, **traits: Any) -> None:
        super().__init_subclass__(**traits)
        body = vars(cls)
        if Summable not in cls.__bases__ and "adds_up" not in body and {"expected", "fold"} & body.keys():
            cls.adds_up = False

    def unsummable_reason(self) -> str:
        """Why its updates cannot be masked and added up; empty if they can."""
        return "" if self.adds_up else FOLDS_OTHERWISE


def unsummable_reason(kind: object) -> str:
    """Why updates of a kind cannot be masked and added up; empty if they can."""
    return kind.unsummable_reason() if isinstance(kind, Summable) else FOLDS_OTHERWISE


def summed(kind: object) -> tuple[str, ...]:
    """The tensors of an update that add up without a weight."""
    return kind.summed if isinstance(kind, Summable) else ()


class MergedAtSite:
    """A kind whose updates a site can merge into one full update, or forward as scalars."""

    @property
    def forwarded_as(self) -> Literal["update", "scalars", ""]:
        """What a site sends above of this kind for all its devices; empty: nothing."""
        return ""

    def at_site(self: K, base: Tensors, manifest: Manifest) -> tuple[K, float]:
        """The kind that a site offers where it forwards scalars, and the factor for the site's scalars."""
        return self, 1.0

    def site_refusal(self) -> str:
        """Why a site cannot merge its devices' updates into one full update; empty if it can."""
        return ""

    def changes(self: Any, manifest: Manifest) -> tuple[str, ...]:
        """The tensors of the base that its merge changes; asked only where a site can merge it."""
        return tuple(spec.name for spec in self.expected(manifest))


def forwarded_as(kind: object) -> Literal["update", "scalars", ""]:
    """What a site sends above of a kind for all its devices; empty: nothing."""
    return kind.forwarded_as if isinstance(kind, MergedAtSite) else ""


class SendsScalars:
    """A kind whose contribution is zeroth-order scalars."""

    @property
    def scalars(self) -> int:
        """The number of scalars in a contribution."""
        return 0

    def repeat_upload_bytes(self, first: int) -> int:
        """Bytes on the wire of a repeated contribution, if the accepted one before it took `first` bytes."""
        return first


def scalars(kind: object) -> int:
    """The number of zeroth-order scalars in a contribution; 0 for a kind that sends something else."""
    return kind.scalars if isinstance(kind, SendsScalars) else 0


class EndsEarly:
    """A kind whose training may end early, with an update that is worth sending."""

    def stopped(self: K, share: float) -> K | None:
        """The variant to send if training stops after this share of its work (0 to 1).

        None if nothing can be sent then.
        """
        return None

    def ended_variant(self: K, name: str) -> K | None:
        """The variant of this name that `stopped` may give; None if there is none."""
        return None


def stopped(kind: K, share: float) -> K | None:
    """The variant to send if training stops after this share of its work (0 to 1); None: nothing."""
    return kind.stopped(share) if isinstance(kind, EndsEarly) else None


def listed_variant(kind: Any, name: str) -> Any:
    """The variant of this name among a kind's `variants`. Raises KindError if there is none."""
    match = next((variant for variant in kind.variants() if variant.variant == name), None)
    if match is None:
        names = ", ".join(repr(variant.variant) for variant in kind.variants())
        text = name if len(name) <= 40 else f"{name[:40]}..."
        raise KindError(f"{kind.name} has no variant {text!r}, expected one of {names}")
    return match


class SelectsSamples:
    """A kind that counts only some of a device's samples."""

    @property
    def selected_share(self) -> float:
        """The share of a device's samples that `num_examples` counts."""
        return 1.0


def selected_share(kind: object) -> float:
    """The share of a device's samples that `num_examples` counts."""
    return kind.selected_share if isinstance(kind, SelectsSamples) else 1.0


def smallest_class(kind: object) -> int | None:
    """The fewest samples of a class that the update tells anything about; None: no such limit.

    It is the kind's `smallest_class`, or its setting `smallest_count`.
    """
    count: int | None = getattr(kind, "smallest_class", None)
    return getattr(kind, "smallest_count", None) if count is None else count


Codec = Annotated[
    str,
    Setting(
        "Codec that updates are sent by: delta, half or int8, deflate, joined by +; empty: as they are.",
        example="delta+int8+deflate",
    ),
]


@dataclass(frozen=True)
class TakesCodec:
    """A kind with the setting `codec`: it sends parameters, which a little rounding does not harm.

    Other kinds do not have the setting, because their updates must arrive exactly: the scalars of
    `zeroth-order`, which every device replays, and the sums and counts of `class-means`. Class statistics are
    short already.
    """

    codec: Codec = field(default="", kw_only=True)


def codec_of(kind: object) -> Chain:
    """The codec of a kind's tensors; its `word` is empty for none. Raises CodecError."""
    return codec_named(kind.codec if isinstance(kind, TakesCodec) else "")


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


@dataclass(frozen=True)
class Traits:
    """Facts of a kind that hold for all its settings: `class Mine(FedAvg, by_class=True)`.

    A class has those of the class that it derives from, and changes the ones that it names.

    own_round: a contribution is useless outside the round that it was made for.
    generic: the aggregator needs a generic set, of samples that belong to no device.
    by_class: it works by class, so that it applies only to bundles whose loss is cross-entropy.
    trains_extractor: the device back-propagates through the network.
    computes_features: `train` computes the features of all samples, which class statistics then reuse.
    statistics_alone: an update consists of class statistics where the task asks for these.
    of_single_samples: feature maps of single samples are sent.
    reveals: what an update in the clear tells of the samples, for their owner; empty: what it sends.
    refused: inherited settings that this kind does not take; dotted within a table.
    """

    own_round: bool = False
    generic: bool = False
    by_class: bool = False
    trains_extractor: bool = False
    computes_features: bool = False
    statistics_alone: bool = False
    of_single_samples: bool = False
    reveals: str = ""
    refused: tuple[str, ...] = ()


class HasTraits:
    """Base of kinds: takes traits as class keywords, and checks settings."""

    name: ClassVar[str]
    traits: ClassVar[Traits] = Traits()

    def __init_subclass__(cls, **traits: Any) -> None:
        """Raises TypeError for a keyword that is no trait."""
        super().__init_subclass__()
        cls.traits = replace(cls.traits, **traits)

    def __post_init__(self) -> None:
        """Raises ValueError for a setting outside its limits, or one that this kind does not take."""
        ranges.check(self)
        for name in self.traits.refused:
            default = getattr(type(self), name, None)
            if "." not in name and getattr(self, name) != default:
                raise ValueError(f"{self.name} does not take the setting {name}")
