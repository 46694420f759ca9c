"""What is to be learnt and by which rules: the settings of a task, from TOML, flags or code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec

from broker import topics
from broker.messages import Kind
from broker.steps import round_seed
from strategies import registry
from strategies.device_half import Contribution
from strategies.kind import AnyStrategy, Settings
from strategies.robust.settings import Robust, Rule
from strategies.server_optimizer import ServerOptimizer

from .errors import TaskError
from .pace import Pace
from .progress import Metric

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Late = Literal["discard", "count"]
Start = Literal["bundle", "random"]

_BESIDE_OTHERS: dict[str, Settings] = {"few-shot": {"join_base": True}, "class-means": {"head": "trained"}}
"""Settings with which a kind joins the common base, for rounds in which other kinds come too."""


class KindSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """One kind of update that is offered, from round `from_round` to `until_round` (None: to the end).

    `weight` multiplies the samples that updates count as when they are averaged. `max_norm` bounds the
    distance of an update from the base, the Euclidean norm over all its tensors; tensors that the base does
    not have count whole.
    """

    name: str
    settings: Settings = {}
    from_round: int = 1
    until_round: int | None = None
    weight: float = 1.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        try:
            registry.make(self.name, self.settings)
        except ValueError as error:
            raise TaskError(str(error)) from None
        _positive(f"weight of {self.name}", self.weight)
        _at_least(f"from_round of {self.name}", self.from_round, 1)
        if self.until_round is not None:
            _at_least(f"until_round of {self.name}", self.until_round, self.from_round)
        if self.max_norm is not None:
            _positive(f"max_norm of {self.name}", self.max_norm)

    @cached_property
    def strategy(self) -> AnyStrategy:
        return registry.make(self.name, self.settings)

    def weight_of(self, contribution: Contribution) -> float:
        """Of an update of this kind in a mean."""
        return self.weight * self.strategy.counted(contribution)

    def in_round(self, number: int) -> bool:
        """Whether it is offered in this round."""
        return self.from_round <= number and (self.until_round is None or number <= self.until_round)


def kinds_named(names: Iterable[str]) -> tuple[KindSettings, ...]:
    """Kinds in this order of preference; when there are several, with settings that join one base."""
    chosen = tuple(names)
    beside: Mapping[str, Settings] = _BESIDE_OTHERS if len(chosen) > 1 else {}
    return tuple(KindSettings(name=name, settings=beside.get(name, {})) for name in chosen)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a task; raises TaskError for those that cannot be meant.

    A round closes when every device that is online has answered, or after `round_deadline_s` seconds if
    there are `min_contributions`; with fewer it is extended by as much. Round 1 waits for `min_devices`.
    The first `untimed_rounds` have no deadline.
    With `devices_per_round` only so many are asked, drawn anew for each round from those that are ready.
    With `buffer_size` B > 0 a round closes as soon as B contributions have come, whoever still works
    (FedBuff, Nguyen et al. 2022); of a cohort so many are kept at work, whatever rounds they work on.

    What comes after its round is refused, or with late="count" or a buffer goes into the open one, if it is
    not more than `max_staleness` rounds late: made tau rounds ago, it moves the model by
    (1 + tau) ** -staleness_weight of what it moved its own round's. `eval_data` is an .npz with `x` (raw
    inputs) and `y` (labels), and so is `generic`, samples that are nobody's own, which some kinds need here;
    `bundle` a path or the name of a shipped bundle, `family` those of smaller models that some kinds train.
    `server` is how the base follows the mean of the updates. With start="random" round 1 distributes fresh
    parameters, drawn by `seed`, in place of the bundle's.

    With `deadline_quantile` the deadline is learnt: so long that this share of the devices would have been
    ready in the last rounds, times `deadline_margin`, at least `deadline_least_s`; `round_deadline_s` is that
    of the first round then, and the longest. After `stop_after` rounds (0: never) in which `stop_metric` was
    not better than the best so far by more than `stop_gain`, the task is done; the best model is served then.
    Of the served models the latest `keep_versions` are kept (0: all), and the best.
    `robust` is the rule by which updates are merged where some devices may lie, with the numbers of
    `strategies.robust.Robust` (robust_trim is its `trim`, and so on).
    """

    bundle: str
    name: str = "task"
    rounds: int = 10
    round_deadline_s: float = 60.0
    min_contributions: int = 1
    min_devices: int = 1
    late: Late = "discard"
    devices_per_round: int | None = None
    buffer_size: int = 0
    max_staleness: int = 5
    staleness_weight: float = 0.5
    untimed_rounds: int = 0
    seed: int = 0
    kinds: tuple[KindSettings, ...] = msgspec.field(default_factory=lambda: kinds_named(registry.USUAL))
    max_num_examples: int = 1_000_000
    eval_data: str | None = None
    family: tuple[str, ...] = ()
    generic: str | None = None
    server: ServerOptimizer = msgspec.field(default_factory=ServerOptimizer)
    start: Start = "bundle"
    robust: Rule = "none"
    robust_trim: float = 0.2
    robust_clip: float | None = None
    robust_clip_factor: float = 1.0
    robust_byzantine: int | None = None
    deadline_quantile: float | None = None
    deadline_margin: float = 1.5
    deadline_least_s: float = 1.0
    stop_after: int = 0
    stop_gain: float = 0.0
    stop_metric: Metric = "accuracy"
    keep_versions: int = 10

    def __post_init__(self) -> None:
        try:
            topics.check_task(self.name)
        except topics.TopicError as error:
            raise TaskError(str(error)) from None
        for name in ("rounds", "min_contributions", "min_devices", "max_num_examples"):
            _at_least(name, getattr(self, name), 1)
        for name in ("buffer_size", "max_staleness", "untimed_rounds", "seed", "stop_after", "keep_versions"):
            _at_least(name, getattr(self, name), 0)
        if self.devices_per_round is not None:
            _at_least("devices_per_round", self.devices_per_round, 1)
            if not self.buffer_size:
                self._check_enough_are_asked(self.devices_per_round)
        _positive("round_deadline_s", self.round_deadline_s)
        if not (isfinite(self.staleness_weight) and self.staleness_weight >= 0):
            raise TaskError(f"staleness_weight is {self.staleness_weight}, expected 0 or more")
        self._check_pace()
        if not (isfinite(self.stop_gain) and self.stop_gain >= 0):
            raise TaskError(f"stop_gain is {self.stop_gain}, expected 0 or more")
        try:
            _ = self.screening
        except ValueError as error:
            raise TaskError(f"robust: {error}") from None
        names = [kind.name for kind in self.kinds]
        if len(set(names)) != len(names):
            raise TaskError(f"kinds are {', '.join(names)}: each can be offered once")
        if len(set(self.family)) != len(self.family):
            raise TaskError(f"family is {', '.join(self.family)}: each can be named once")
        changes = {1, *(kind.until_round + 1 for kind in self.kinds if kind.until_round is not None)}
        for number in sorted(change for change in changes if change <= self.rounds):
            if not self.offered(number):
                raise TaskError(
                    f"round {number} offers no kind of update: look at from_round and until_round"
                )

    def _check_pace(self) -> None:
        quantile, margin, least_s = self.deadline_quantile, self.deadline_margin, self.deadline_least_s
        if not (isfinite(margin) and margin >= 1):
            raise TaskError(f"deadline_margin is {margin}, expected 1 or more")
        _positive("deadline_least_s", least_s)
        if quantile is None:
            return
        if not 0 < quantile <= 1:
            raise TaskError(f"deadline_quantile is {quantile}, expected more than 0 to 1")
        if self.buffer_size:
            raise TaskError(
                "deadline_quantile and buffer_size: a buffered round does not end at its deadline"
            )
        if least_s > self.round_deadline_s:
            most = f"round_deadline_s, the longest, is {self.round_deadline_s:g}"
            raise TaskError(f"deadline_least_s is {least_s:g}, {most}")

    def _check_enough_are_asked(self, size: int) -> None:
        if size < self.min_contributions:
            raise TaskError(
                f"devices_per_round is {size}, min_contributions {self.min_contributions}: "
                "no round would have enough before its first deadline"
            )

    def offered(self, number: int) -> tuple[KindSettings, ...]:
        """The kinds of round `number`, in order of preference."""
        return tuple(kind for kind in self.kinds if kind.in_round(number))

    def offer_kinds(self, number: int) -> tuple[Kind, ...]:
        """The same as they stand in an offer."""
        return tuple(registry.write(kind.strategy) for kind in self.offered(number))

    @property
    def pace(self) -> Pace | None:
        """How the deadline is learnt; None where it is fixed."""
        if self.deadline_quantile is None:
            return None
        return Pace(self.deadline_quantile, self.deadline_margin, self.deadline_least_s)

    @property
    def screening(self) -> Robust:
        """The rule of merging and its numbers. Raises ValueError for those that cannot be meant."""
        return Robust(
            self.robust,
            self.robust_trim,
            self.robust_clip,
            self.robust_clip_factor,
            self.robust_byzantine,
        )

    def late_share(self, rounds: int) -> float:
        """How much of its change an update moves the model by that is so many rounds late."""
        return float((1 + rounds) ** -self.staleness_weight)

    def round_seed(self, number: int) -> int:
        """The seed that all devices of a round share; below 2**53, exact in every language's numbers."""
        return round_seed(self.seed, number)

    def json(self) -> bytes:
        """Canonical: equal tasks give equal bytes, settings that are defaults are written out too."""
        full = [
            msgspec.structs.replace(kind, settings=msgspec.to_builtins(kind.strategy)) for kind in self.kinds
        ]
        return _encoder.encode(msgspec.structs.replace(self, kinds=tuple(full)))


_encoder = msgspec.json.Encoder(order="sorted")


def decode(data: bytes) -> Task:
    """A task from its JSON. Raises TaskError."""
    try:
        return msgspec.json.decode(data, type=Task)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TaskError(f"not a task: {error}") from None


def load(path: Path | None, flags: Mapping[str, object]) -> Task:
    """A task from a TOML file, if any, with `flags` over it. Raises TaskError.

    Paths in the file are relative to the file.
    """
    settings = {**(_read(path) if path else {}), **flags}
    if "bundle" not in settings:
        raise TaskError("which model is to be learnt? give --bundle, or bundle = ... in the task file")
    try:
        return msgspec.convert(settings, Task)
    except msgspec.ValidationError as error:
        raise TaskError(f"task{f' {path}' if path else ''}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TaskError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise TaskError(f"{path} is not TOML: {error}") from None
    for name in ("bundle", "eval_data", "generic"):
        settings |= {name: _near(path.parent, settings[name])} if name in settings else {}
    if isinstance(family := settings.get("family"), list):
        settings["family"] = [_near(path.parent, member) for member in family]
    return {"name": path.stem, **settings}


def _near(folder: Path, value: object) -> object:
    """The path of what lies in the folder; anything else as it is."""
    return str(folder / value) if isinstance(value, str) and (folder / value).exists() else value


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise TaskError(f"{name} is {value}, expected {least} or more")


def _positive(name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise TaskError(f"{name} is {value}, expected a finite number above 0")
