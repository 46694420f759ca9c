"""Bounds the length of each update by those of others and earlier rounds, or as a task says (`max_norm`).

It needs no setting, and is on where a task has no robust rule. Updates wait until the lengths of all are
known; those within the bounds are folded bit for bit and in the same order. A length is the Euclidean
norm of what an update changes in the base. It is compared within a group: updates of one kind and member
of the family that change as many values.

    group        at most TIMES times the upper quartile of its lengths, if it has LEAST devices or more
    alone        in a smaller group: TIMES times the median of its lengths in earlier merges, and OTHERS times
                 the upper quartile of all updates of the round; what is unknown is no bound

An update of more epochs than another may be longer by as many times. Running statistics of
normalisations, a few-shot classifier beside a full update, and each tensor that the base does not have
(prototypes, feature maps: their root mean square over rows) have a length of their own. Scalars vary more
than updates: their bound is SCALARS times the upper quartile. Lengths of 0 tell nothing, and are not
compared.

Norm clipping against false updates: Sun et al. 2019 (Can you really backdoor federated learning?). Ours:
the upper quartile, which devices of few samples do not move, and the memory.

`scalar_bounds` is for scalars along directions that not all devices of a round share, in rounds with late
ones: the sign of a scalar cannot be checked along directions that no other device measured, but its
length can: lengths along random directions are alike. A device chooses itself with which others it is
late or in time, so all devices that share directions may be lying. Such scalars are therefore bounded by
the lengths of all scalars of the round, the latest of each device. Rules that compare devices reject late
scalars of fewer than three devices, because a lying device could choose to be alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import hypot, inf, sqrt
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.names import RUNNING_STATISTICS
from device_runtime.models.bundles.stacked import Copies, StackedCopy, outline, squares
from device_runtime.models.bundles.tensors import Tensors, Vector
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import FEW_SHOT, Update
from device_runtime.strategies.interface.kind import AnyStrategy, variant_named
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.statistics.bounds import ROUNDS
from device_runtime.strategies.statistics.centres import LEAST, upper_quartile
from device_runtime.strategies.statistics.class_statistics import IN_MEMORY

from .groups import FROM_ZERO, device_list
from .rules import NORMAL, Robust, bound_of, clip_to_norm, length_of
from .spool import Spool

MEMORY = "lengths"
"""The key of earlier lengths in `CarriedState.memory`; its other keys are names of kinds."""
TIMES = 3.0
"""The largest length, in multiples of the group's upper quartile; honest ones reach 2.9."""
OTHERS = 20.0
"""The largest length in a small group, in multiples of the upper quartile of the round's updates."""
SCALARS = 10.0
"""The largest length of scalars, in the same multiples; honest ones reach 7.7."""

CHANGE, RUNNING = "", "running statistics"

Read = Callable[[], Update]
"""Reads an update again. May raise as the first time."""


class Group(NamedTuple):
    """Lengths that are compared: of one kind, member of the family, part of the update and number of values.

    part: CHANGE, RUNNING, FEW_SHOT, or the name of a tensor that the base does not have.
    """

    kind: str
    member: str
    part: str
    values: int

    @property
    def times(self) -> float:
        """The largest length, in multiples of the usual one."""
        return SCALARS if self.part in FROM_ZERO["scalars"] else TIMES


@dataclass(frozen=True)
class Compared:
    """Compares updates of a kind and member with the member's base."""

    kind: AnyStrategy
    member: str
    base: Tensors
    _parts: dict[Hashable, dict[Group, dict[str, NDArray[Any]]]] = field(default_factory=dict)

    def comparable(self, update: Update) -> Update:
        with own_code(type(self.kind)):
            return capabilities.comparable(self.kind, update, self.base)

    def parts(self, content: Tensors) -> dict[Group, dict[str, NDArray[Any]]]:
        """The tensors of each group, by what they are measured from: the base's tensor, or 0."""
        shapes = outline(content)
        layout = tuple((name, value.dtype.char, value.shape) for name, value in shapes.items())
        if layout not in self._parts:
            self._parts[layout] = self._parts_of(shapes)
        return self._parts[layout]

    def _parts_of(self, content: Tensors) -> dict[Group, dict[str, NDArray[Any]]]:
        parts: dict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
        for name, value in content.items():
            if value.dtype != np.float32 or not value.size:  # counts, indices
                continue
            own = self.base.get(name.removeprefix(FEW_SHOT))
            if own is None or own.shape != value.shape:
                parts[name][name] = np.zeros((), np.float32)
            elif name.endswith(RUNNING_STATISTICS):
                parts[RUNNING][name] = own
            else:
                parts[FEW_SHOT if name.startswith(FEW_SHOT) else CHANGE][name] = own
        return {
            Group(self.kind.name, self.member, part, _values(content, starts)): starts
            for part, starts in parts.items()
        }


@dataclass(frozen=True)
class WaitingUpdate:
    """An update that waits: how to read it, what it is compared with, its epochs, its lengths by group."""

    read: Read
    compared: Compared
    weight: float
    epochs: int
    lengths: Mapping[Group, float]


class LengthBounds:
    """The updates of a round, until the lengths of all are known."""

    def __init__(self, before: Tensors, scratch: Path | None) -> None:
        """`before`: what `kept` gave in the last merge. `scratch`: folder for what cannot be read again."""
        self._before, self._waiting, self._end = before, list[WaitingUpdate](), 0
        self._copies: list[Copies] = []
        self._scratch = scratch
        self._shortened: dict[str, list[str]] = defaultdict(list)
        self._furthest = (0.0, 0.0)
        self._bound = cache(self._bound_of)

    @cached_property
    def _file(self) -> IO[bytes]:
        return TemporaryFile(dir=self._scratch, prefix="merge-")

    def close(self) -> None:
        """Delete the file, if there is one. May be called twice."""
        if "_file" in self.__dict__:
            self._file.close()

    def add(self, update: Update, weight: float, compared: Compared, again: Read | None = None) -> float:
        """Let an update wait; returns its length over all groups.

        `again` reads it once more; None: it is copied. Raises OSError.
        """
        content = compared.comparable(update).tensors
        lengths = {group: change_length(content, starts) for group, starts in compared.parts(content).items()}
        form = variant_named(compared.kind, update.variant)
        epochs = int(getattr(form, "epochs", 1))
        read = again or self._waiting_where_it_is(update) or self._stored(update)
        self._waiting.append(WaitingUpdate(read, compared, weight, epochs, lengths))
        return hypot(*lengths.values())

    def _waiting_where_it_is(self, update: Update) -> Read | None:
        """Lets tensors wait on the processor that trained them, as long as there is room."""
        if not isinstance(update.tensors, StackedCopy):
            return None
        copies = update.tensors.copies
        if copies not in self._copies:
            if sum(each.nbytes for each in self._copies) + copies.nbytes > copies.room:
                return None
            self._copies.append(copies)
        return lambda: update

    def _stored(self, update: Update) -> Read:
        """Copies an update, IN_MEMORY bytes of all into memory and the rest into a file, bit for bit."""
        kind, samples, loss = update.kind, update.num_examples, update.train_loss
        variant, late, device, place = update.variant, update.late, update.device, self._end
        size = sum(value.nbytes for value in update.tensors.values())
        self._end += size
        if self._end <= IN_MEMORY:
            copied = {name: value.copy() for name, value in update.tensors.items()}
            return lambda: Update(kind, copied, samples, loss, variant, None, late, device)
        layout = [(name, value.dtype, value.shape, value.nbytes) for name, value in update.tensors.items()]
        self._file.seek(place)
        for value in update.tensors.values():
            self._file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

        def read() -> Update:
            self._file.seek(place)
            content: Tensors = {
                name: np.ndarray(shape, dtype, bytearray(self._file.read(size)))
                for name, dtype, shape, size in layout
            }
            return Update(kind, content, samples, loss, variant, None, late, device)

        return read

    def __iter__(self) -> Iterator[WaitingUpdate]:
        """The updates in the order in which they were added."""
        return iter(self._waiting)

    def bounded(self, entry: WaitingUpdate, update: Update) -> tuple[Update, float]:
        """The update of an entry, within the bounds, and its weight; unchanged if it was already.

        One that is shortened weighs no more than usual: a false update would claim many samples too.
        """
        bounds = {group: self._bound(group, entry.epochs) for group in entry.lengths}
        far = {group: bound for group, bound in bounds.items() if entry.lengths[group] > bound}
        if not far:
            return update, entry.weight
        update = entry.compared.comparable(update)
        content, parts = dict(update.tensors), entry.compared.parts(update.tensors)
        for group, bound in far.items():
            length = entry.lengths[group]
            self._furthest = max(self._furthest, (length, bound))
            for name, start in parts[group].items():
                content[name] = clip_to_norm(content[name], start, length, bound)
        self._shortened[update.kind].append(update.device)
        weights = [each.weight for each in self._waiting if each.compared.kind is entry.compared.kind]
        return replace(update, tensors=content), min(entry.weight, usual(weights))

    @property
    def note(self) -> str:
        """What was bounded; empty for nothing."""
        if not self._shortened:
            return ""
        devices = ", ".join(device_list(names, kind) for kind, names in self._shortened.items())
        length, bound = self._furthest
        return (
            f"far longer than others' updates, shortened: {devices}, from at most {length:.3g} to {bound:.3g}"
        )

    def kept(self) -> dict[str, NDArray[np.float64]]:
        """The lengths to compare with in later merges, by group: rows of a length and its epochs, (n, 2).

        A group that is large enough adds its upper quartile, a smaller one its lengths within the bounds.
        """
        memory = {name: np.asarray(rows, np.float64) for name, rows in self._before.items()}
        for group, sent in self._groups.items():
            most = max(epochs for _, epochs in sent)
            rows = [(min(length, self._bound(group, epochs)), epochs) for length, epochs in sent]
            if len(sent) >= LEAST:
                rows = [(usual(_as_of(most, sent)), most)]
            before = memory.get(_name(group), np.empty((0, 2)))
            memory[_name(group)] = np.concatenate([before, rows])[-ROUNDS:]
        return memory

    @cached_property
    def _groups(self) -> dict[Group, list[tuple[float, int]]]:
        """The lengths of each group but those of 0, with their epochs; used once all updates are there."""
        groups: dict[Group, list[tuple[float, int]]] = defaultdict(list)
        for entry in self._waiting:
            for group, length in entry.lengths.items():
                if 0 < length < inf:
                    groups[group].append((length, entry.epochs))
        return groups

    def _bound_of(self, group: Group, epochs: int) -> float:
        """The largest length of an update of so many epochs in a group; inf for none."""
        own = self._groups.get(group, [])
        if len(own) >= LEAST:
            return group.times * usual(_as_of(epochs, own))
        every = [sent for other, sent in self._groups.items() if other.part == group.part]
        bound = OTHERS * usual([length for sent in every for length, _ in sent])
        before = [(float(length), int(trained)) for length, trained in self._before.get(_name(group), ())]
        if len(before) < LEAST:
            return bound
        return min(bound, group.times * float(np.median(_as_of(epochs, before))))


def _as_of(epochs: int, lengths: Iterable[tuple[float, int]]) -> list[float]:
    """The lengths that updates might have after so many epochs, from those after fewer or more."""
    return [length * max(1.0, epochs / trained) for length, trained in lengths]


def usual(lengths: Iterable[float]) -> float:
    """The upper quartile; inf for fewer than LEAST.

    The longest counts as at most TIMES the next: of three or four it would be a measure of itself.
    """
    ordered = sorted(lengths)
    if len(ordered) < LEAST:
        return inf
    return upper_quartile([*ordered[:-1], min(ordered[-1], TIMES * ordered[-2])])


def _name(group: Group) -> str:
    return "/".join(map(str, group))


def _rows(value: NDArray[Any], start: NDArray[Any]) -> int:
    """The rows over which a tensor that the base does not have is averaged; 1 for one that it has."""
    return len(value) if start.ndim < value.ndim > 1 else 1


def _values(content: Tensors, starts: Tensors) -> int:
    """The number of values; of a tensor that the base does not have, in a row."""
    return sum(content[name].size // _rows(content[name], start) for name, start in starts.items())


def change_length(content: Tensors, starts: Tensors) -> float:
    """The Euclidean norm; of a tensor that the base does not have, its root mean square over rows."""
    shapes = outline(content)
    total = sum(
        square / _rows(shapes[name], starts[name]) for name, square in squares(content, starts).items()
    )
    return float(np.float32(sqrt(total)))  # the last bits of a sum depend on where it lies in memory


BY_LENGTH = frozenset({"norm-clip", "value-clip"})
"""Rules that bound lengths, and so need no other device along the same directions."""


@dataclass(frozen=True)
class ScalarBounds:
    """The largest size of a round's scalars: of each value (`by_value`), or of a device's Euclidean norm.

    devices: how many devices the bound was found from.
    """

    bound: float
    by_value: bool
    devices: int

    def held(self, update: Update, times: float) -> Update:
        """The update clipped to `times` the bound."""
        g, bound = update.tensors["g"], times * self.bound
        if self.by_value:
            return replace(update, tensors={"g": np.clip(g, np.float32(-bound), np.float32(bound))})
        return replace(update, tensors={"g": clip_to_norm(g, np.zeros_like(g), length_of(g), bound)})

    def is_far(self, update: Update, times: float) -> bool:
        """Whether an update exceeds `times` the bound; by value, whether half of its values or more do."""
        g, bound = update.tensors["g"], times * self.bound
        return bool(np.mean(np.abs(g) > bound) >= 0.5) if self.by_value else length_of(g) > bound


def scalar_bounds(every: Iterable[Spool], robust: Robust) -> ScalarBounds:
    """The bounds that `robust` gives for a round, from the latest scalars of each device."""
    latest: dict[str, Vector] = {}
    for spool in sorted(every, key=_round):
        latest |= {row.device: spool.values(row) for row in spool.rows}
    by_value, lengths = robust.rule == "value-clip", [length_of(values) for values in latest.values()]
    if not by_value:
        return ScalarBounds(bound_of(lengths, None, robust.clip_factor), by_value, len(latest))
    spread = NORMAL * float(np.median(np.abs(np.concatenate(list(latest.values())))))
    bound = robust.clip_factor * spread if robust.clip is None else robust.clip
    return ScalarBounds(bound, by_value, len(latest))


def _round(spool: Spool) -> float:
    """The round that a spool's scalars were made for; infinite for the open round."""
    late = spool.rows[0].metadata.late
    return inf if late is None else late.round


def rejection_reason(kind: AnyStrategy, update: Update, base: Tensors, most: float) -> str:
    """Why an update is refused that may be at most `most` away from the base; empty if it is accepted."""
    try:
        with own_code(type(kind)):
            distance = norm(capabilities.comparable(kind, update, base).tensors, base)
    except OwnCodeError as error:
        return f"it cannot be compared with the base: {error}"
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"it cannot be compared with the base: {type(error).__name__}: {error}"
    if distance <= most:
        return ""
    return f"it is {distance:.4g} away from the base, at most {most:g} is accepted"


def norm(update: Tensors, base: Tensors) -> float:
    """The Euclidean distance from the base; for tensors that the base does not have, from zero."""
    fits = {name: name in base and base[name].shape == value.shape for name, value in outline(update).items()}
    starts = {name: base[name] if fits[name] else np.zeros((), np.float32) for name in fits}
    return sqrt(sum(squares(update, starts).values()))
