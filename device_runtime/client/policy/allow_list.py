"""What the owner of a device lets a task ask for: kinds of update, bundles, settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runtime.broker.wire.messages import Blob

if TYPE_CHECKING:
    from device_runtime.strategies.kind import AnyStrategy

SHORTEST = 16
"""Hex digits that name a bundle, at least: 64 bits."""


@dataclass(frozen=True)
class AllowList:
    """Empty, and None, where an owner allows whatever is asked for.

    kinds: names of kinds of update. bundles: of the sha256 of a bundle, the first hex digits at least.
    most_scalars: of a zeroth-order round. smallest_count: samples of a class, below which nothing may be sent
    by class; with it no feature maps of single samples are sent either.
    """

    kinds: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    most_scalars: int | None = None
    smallest_count: int | None = None

    def bars(self, strategy: AnyStrategy) -> str:
        """Why this form of an update must not be trained; empty when it may be."""
        if self.kinds and strategy.name not in self.kinds:
            return f"is not allowed by the owner, who allows {', '.join(self.kinds)}"
        if self.most_scalars is not None and strategy.scalars > self.most_scalars:
            return f"sends {strategy.scalars} scalars, the owner allows {self.most_scalars}"
        least = self.smallest_count
        if least is None:
            return ""
        if strategy.of_single_samples:
            return f"sends feature maps of single samples, the owner allows none of fewer than {least}"
        count = getattr(strategy, "smallest_count", least)
        if strategy.statistics is not None:  # which the owner's own count holds for
            count = max(count, strategy.statistics.smallest_count)
        return f"sends classes of {count} samples, the owner allows {least} or more" if count < least else ""

    def refuses(self, bundles: Iterable[Blob]) -> str:
        """Why nothing is done with these bundles; empty when they may be fetched and run."""
        for bundle in bundles if self.bundles else ():
            if not bundle.hex.startswith(self.bundles):
                return f"bundle {bundle.hex} is not among those that the owner allows"
        return ""

    def rules(self) -> Iterator[tuple[str, str]]:
        """Name and content of each, for people."""
        if self.kinds:
            yield "kinds", f"only {', '.join(self.kinds)}"
        if self.bundles:
            yield "bundles", f"only {', '.join(bundle[:SHORTEST] for bundle in self.bundles)}"
        if self.most_scalars is not None:
            yield "scalars", f"at most {self.most_scalars} in a zeroth-order round"
        if self.smallest_count is not None:
            yield "classes", f"nothing of classes with fewer than {self.smallest_count} samples"


ANYTHING = AllowList()
