"""What a kind of update is: facts that its class says once, as class keywords."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from device_runtime.strategies import settings as ranges


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
