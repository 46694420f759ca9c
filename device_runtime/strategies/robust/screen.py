"""Screens a round's updates before they are folded: applies the robust rule to each group of updates.

Without a rule, updates far longer than others are shortened (`lengths`), and none counts for far more samples
than others. With a rule:

Updates of one kind, of one member of the family and with the same tensors are a group: they are compared with
each other. Other tensors of a kind (feature maps, prototypes) are not changed. Claimed numbers of samples
give no device more influence:

- Within a group, a weight above the median counts as the median.
- No device weighs more than it would with as many samples as the round's median device, even if it is alone
  in its group.
- If a device has several updates in a group because some are late, only the latest counts.

In a group that is too small to compare, the length of updates is bounded (`groups`). Class statistics of all
kinds are compared with each other (`statistics`), in the same way under every rule. Folding still gets one
update for each device, so that each kind's own merging does not change.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import Comparable
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.merge import Merged
from device_runtime.strategies.statistics.kind_statistics import most_samples

from . import groups, lengths
from .groups import FAR, RobustRule, Screened, UpdateGroup, device_list, group_update
from .lengths import BY_LENGTH, Compared, LengthBounds, Read, ScalarBounds, scalar_bounds
from .rules import LEAST_DEVICES, Robust
from .spool import Spool
from .statistics import StatisticsOfDevices


class Screen:
    """Screens one round's updates before `folding`.

    failures: why own code could not go on with an update that was left out, by device and kind.
    norms: how far updates are from their base, by device and kind, where they are compared by their length.

    A context manager: temporary files are deleted at its end.
    """

    def __init__(
        self,
        folding: Folding,
        robust: Robust,
        scratch: Path | None = None,
        sizes: Sequence[float] | None = (),
    ) -> None:
        """`scratch`: folder with room on disk for all updates; None: the system's temporary folder.

        sizes: the samples of the device of each update to come (`kind_statistics.most_samples`), empty for no
        bound. Without a rule, no update counts for more of them than `Folding.largest_size` of these. None:
        the updates are parts of sums, of which nothing can be seen or bounded.
        """
        self._folding, self._robust, self._scratch = folding, robust, scratch
        folding.keep_in(scratch)
        self._summed, self._largest = sizes is None, folding.largest_size(sizes or ())
        self._spools: dict[Hashable, Spool] = {}
        self._bases: dict[Hashable, tuple[str, Tensors]] = {}
        self._samples: dict[str, float] = {}
        self._lengths: dict[str, float] = {}
        self._comparisons: dict[tuple[str, str], Compared] = {}
        self._notes: list[str] = []
        self._rule = RobustRule(robust, self._note)
        self._statistics = StatisticsOfDevices(scratch, self._note)
        self._bounds = LengthBounds(folding.remembered(lengths.MEMORY), scratch)
        self.failures: dict[tuple[str, str], str] = {}
        self.norms: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for spool in self._spools.values():
            spool.close()
        self._statistics.close()
        self._bounds.close()

    def add(self, update: Update, weight: float, device: str, again: Read | None = None) -> None:
        """Add one update, in a fixed order, as in Folding; it is not held in memory. Raises OSError.

        again: reads it once more, with its device; without it, updates whose length is compared go to a
        temporary file.
        """
        named = update if update.device == device else replace(update, device=device)
        update, sent = self._folding.parted(named)
        if self._robust.rule == "none":
            self._folding.pool(sent, update.late)
            weight *= self._share(update)
            if (compared := self._compared(update)) is None:
                self._folding.add(update, weight)
            else:
                self.norms[device, update.kind] = self._bounds.add(update, weight, compared, again)
            return
        if sent is not None:
            self._statistics.add(sent, update)
        # an update of class statistics alone has no tensors left
        if not update.tensors or self._spooled(update, weight, device):
            counted = self._folding.counted(update)
            self._samples[device] = max(self._samples.get(device, 0.0), counted)

    def _compared(self, update: Update) -> Compared | None:
        """What the length of an update is measured by; None for class means, which have bounds of their own.

        None too for an update without tensors, of a kind that cannot be compared, or in a sum.
        """
        kind = self._folding.strategy(update.kind)
        if self._summed or not update.tensors or capabilities.compared_as(kind) in (None, "class-means"):
            return None
        member, base = self._folding.trained(update)
        return self._comparisons.setdefault((update.kind, member), Compared(kind, member, base))

    def _fold_bounded(self) -> None:
        """Fold the updates that wait for the lengths of others, shortened to the bounds."""
        for entry in self._bounds:
            update, _ = self._folding.parted(entry.read())
            try:
                self._folding.add(*self._bounds.bounded(entry, update))
            except OwnCodeError as error:
                self.failures[update.device, update.kind] = str(error)
                self._note(f"{update.device} ({update.kind}) is left out: {error}")
        if note := self._bounds.note:
            self._note(note)

    def _share(self, update: Update) -> float:
        """The share of its samples that an update counts for; 1 unless these are too many."""
        form = variant_named(self._folding.strategy(update.kind), update.variant)
        size = most_samples(form, update.num_examples)
        return 1.0 if size <= self._largest else self._largest / size

    def _spooled(self, update: Update, weight: float, device: str) -> bool:
        """Keep an update with those of its group; returns whether it is finite, and so was kept."""
        trained = self._folding.trained(update)
        member = group_update(update, self._folding.strategy(update.kind), *trained)
        if member.group not in self._spools:
            compared_as = capabilities.compared_as(self._folding.strategy(update.kind))
            self._spools[member.group] = Spool(
                member.update.tensors, member.start, self._scratch, compared_as
            )
            self._bases[member.group] = trained
        if self._spools[member.group].add(member.update, weight, device):
            return True
        self._note(f"{device} ({update.kind}) is not finite, rejected")
        return False

    def merged(self) -> tuple[Merged, str]:
        """As `Folding.merged`; the note also says what the rule rejected or could not do. Raises OSError."""
        for key, spool in self._spools.items():
            if len(spool) and (done := self._bound_small_group(spool, *self._bases[key])):
                self._note(f"too few to compare: {done}")
        for spool in self._spools.values():
            for update, weight in self._screened(spool) if len(spool) else ():
                self._folding.add(update, weight)
        for statistics, late in self._statistics.held(self._median_samples) if self._samples else ():
            self._folding.pool(statistics, late)
        self._fold_bounded()
        merged, odd = self._folding.merged()
        if usual := self._bounds.kept():
            memory = {**merged.carried.memory, lengths.MEMORY: usual}
            merged = replace(merged, carried=replace(merged.carried, memory=memory))
        return merged, "; ".join([*self._notes, odd] if odd else self._notes)

    def _bound_small_group(self, spool: Spool, member: str, base: Tensors) -> str:
        """Bound the updates of a group that is too small to compare (`groups`); returns a note, or ""."""
        kind = self._folding.strategy(spool.rows[0].metadata.kind)
        if spool.compared_as == "class-means":
            return groups.shorten_class_means(spool)
        if spool.compared_as == "scalars" and isinstance(kind, Comparable):
            devices = {row.device for other in self._spools_of(kind.name) for row in other.rows}
            if len(devices) >= LEAST_DEVICES:
                return ""
            values = sum(value.size for value in base.values())
            return groups.shorten(spool, kind.longest_scalars(self._base_length(member, base), values))
        if len(spool) >= LEAST_DEVICES:
            return ""
        return groups.shorten(spool, min(groups.TIMES * self._median_length, self._base_length(member, base)))

    def _base_length(self, member: str, base: Tensors) -> float:
        if member not in self._lengths:
            self._lengths[member] = groups.length_of_base(base)
        return self._lengths[member]

    @cached_property
    def _median_length(self) -> float:
        """The median length of the round's changes of the base, before any is shortened."""
        return groups.median_length(
            spool for spool in self._spools.values() if spool.rows and groups.is_change(spool)
        )

    def _screened(self, spool: Spool) -> Screened:
        metadata, rule = spool.rows[0].metadata, self._robust.rule
        if spool.earlier:
            self._note(f"{spool.earlier} {metadata.kind} do not count: their devices sent a later one too")
        scalars = spool.compared_as == "scalars"
        late = scalars and metadata.late is not None
        rejected = late and rule not in BY_LENGTH
        if len(spool) < LEAST_DEVICES and (rejected or not late):
            of = f" of round {metadata.late.round}" if metadata.late else ""
            text = f"{len(spool)} {metadata.kind}{of} too few for {rule} to detect false updates"
            self._note(f"{text}, rejected" if rejected else text)
            if rejected:
                return iter(())
        beside = scalars and len(self._spools_of(metadata.kind)) > 1
        group = self._group(spool)
        return self._bounded_scalars(group) if late or beside else self._rule.apply(group)

    def _spools_of(self, kind: str) -> list[Spool]:
        return [each for each in self._spools.values() if each.rows and each.rows[0].metadata.kind == kind]

    def _bounded_scalars(self, group: UpdateGroup) -> Screened:
        """Bound scalars of a round that has other scalars, along other directions."""
        rule = self._robust.rule
        by_length = rule == "norm-clip" or (rule == "value-clip" and len(group.spool) < LEAST_DEVICES)
        far = []
        for update, weight in group.unchanged() if by_length else self._rule.apply(group):
            far += [update.device] if self._scalar_bounds.is_far(update, FAR) else []
            yield self._scalar_bounds.held(update, 1.0 if by_length else FAR), weight
        if far:
            self._note(f"{rule} shortened {device_list(far, group.kind)}, longer than others of the round")

    @cached_property
    def _scalar_bounds(self) -> ScalarBounds:
        """The bounds from all scalars of the round; used once all have come."""
        spools = [each for each in self._spools.values() if each.rows and each.compared_as == "scalars"]
        bounds = scalar_bounds(spools, self._robust)
        if bounds.devices < LEAST_DEVICES:
            rule, kind = self._robust.rule, spools[0].rows[0].metadata.kind
            self._note(f"{bounds.devices} {kind} too few for {rule} to detect false updates")
        return bounds

    def _group(self, spool: Spool) -> UpdateGroup:
        """The group of a spool, with limited weights.

        No update weighs more than the group's median, nor more than it would with as many samples as the
        round's median device has.
        """
        most = float(np.median([row.weight for row in spool.rows]))
        samples = self._median_samples
        counted = [max(1.0, self._folding.counted(row.metadata)) for row in spool.rows]
        weights = [
            min(row.weight, most, row.weight * samples / own)
            for row, own in zip(spool.rows, counted, strict=True)
        ]
        return UpdateGroup(spool, weights, samples)

    @property
    def _median_samples(self) -> float:
        """The number of samples of the round's median device."""
        return float(np.median(list(self._samples.values())))

    def _note(self, text: str) -> None:
        self._notes.append(text)
