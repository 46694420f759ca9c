"""The settings of a task: what is learnt and by which rules, from a TOML file, flags, or code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from device_runtime.aggregator.errors import TaskError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import LONGEST_SENTENCE, LONGEST_TITLE, Kind
from device_runtime.broker.wire.step_log import round_seed
from device_runtime.content import explained, near, read_toml, source_near
from device_runtime.models.bundles.bundle import content_of, shipped_names
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.preference import by_gain
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer
from device_runtime.strategies.robust.rules import Byzantine, Clip, ClipFactor, Robust, Rule, Trim
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.statistics import kind_statistics

from .closing import (
    STRAGGLERS,
    AllDevices,
    Closing,
    FastDevices,
    FullBuffer,
    LearntDeadline,
    Metric,
    straggler_share,
    unknown_fleet,
)
from .drawing import UNIFORM, DrawingPolicy, drawing_named
from .kind_settings import KindSettings, kinds_named, tables_named, with_usual
from .mask_settings import MaskSettings
from .participants import Participants

Late = Literal["discard", "count"]
WaitFor = Literal["auto", "all", "fast"]
Start = Literal["bundle", "random"]
Head = Literal["auto", "trained", "closed-form"]
Rest = Literal["on", "off"]
Order = Literal["default", "listed", "gain"]

_STALENESS = 0.5


@cache
def _default_kinds() -> tuple[KindSettings, ...]:
    """The kinds of a task that names none: always the same object, which tells it from other tasks."""
    return kinds_named(registry.OFFERED_KINDS)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Settings of a task. Raises TaskError for invalid settings.

    Kinds. A task that names none has order "default", also after it was written and read; what it offers
    depends on the bundle (`feasible.with_members`). Where other kinds are put in, the order is "listed".

    Data. `eval_data` and `generic` are .npz files with `x` (raw inputs) and `y` (labels).

    Rounds. A round closes as `closing` says, which reads the keys of all ways to close one, or after
    `round_deadline_s` seconds if `min_contributions` devices have contributed; with fewer it is extended by
    the same time. `devices_per_round` are drawn again for each round from the devices that are ready; with a
    buffer as many are kept at work, on any rounds.

    Late updates. An update that arrives after its round is refused. With late="count" or a buffer it counts
    in the open round, if it is at most `max_staleness` rounds late: made tau rounds ago, it moves the model
    by (1 + tau) ** -staleness_weight of what it moved the model of its own round. With wait_for="fast" a
    round closes when the fast devices are done: of the devices that send the richest updates, those that
    need at most four times the median of their times in the last rounds (`pace.closing_s`). Devices still
    plan for `round_deadline_s`. Later updates count as with late="count", but each as many times as the
    number of rounds in which its device was at work (`stands_for`), not with (1 + tau) ** -staleness_weight.
    So that they can count, no round closes before `round_deadline_s` / `max_staleness`. Rounds 1 and 2 wait
    for all devices; with cohorts rounds 3 to 6 do too. Of several updates of one device in a round the
    newest counts. wait_for="auto" is "fast" where several kinds are offered, all of them may count late, and
    no other setting says when rounds end or how late updates count.

    Learnt deadlines. With `deadline_quantile` the deadline is the time in which this share of the devices
    would have been ready in the last rounds, times `deadline_margin`; `round_deadline_s` is then the deadline
    of the first round, and the longest. A learnt deadline that brought no contribution is doubled, up to the
    longest, before the run ends.

    Merging. A device counts as no more samples than its hello says. robust_trim is the `trim` of
    `strategies.robust.rules.Robust`, and so on.

    Served model. With `stop_after` the best model is served in the end. With head="closed-form" devices send
    class statistics with their updates, as `statistics` says, and the served model has a head in closed form,
    from the statistics of all rounds so far (`statistics.closed_form`). The trained head is served instead
    where it is better on the evaluation data or, where `statistics` has devices hold samples out, on those
    (`statistics.held_out`).

    Masked sums. With `masks` sums are of updates of one kind and round, and at least `masks.min_group`
    devices must contribute, whatever `min_contributions` is. Late updates count by `staleness_weight` also
    where rounds wait for the fast devices.
    """

    bundle: Annotated[
        str,
        Setting(
            "Learn this model: a bundle folder or zip, or the name of a shipped bundle.",
            "digits-wrn-10-1",
            metavar="BUNDLE",
        ),
    ]
    name: Annotated[
        str, Setting("Name the task, in topics and folders; in a file, it is named as the file.", "digits")
    ] = "task"
    title: Annotated[
        str,
        Setting(
            "Name the task for people: on devices, the page and the dashboard; empty: `name`.",
            "Read digits",
            longest=LONGEST_TITLE,
        ),
    ] = ""
    about: Annotated[
        str,
        Setting(
            "Say in a sentence what the task is for.",
            "We teach a model to read handwriting.",
            longest=LONGEST_SENTENCE,
        ),
    ] = ""
    ask: Annotated[
        str,
        Setting(
            "Say in a short sentence what people give.",
            "Draw a digit and tap what it is.",
            longest=LONGEST_SENTENCE,
        ),
    ] = ""
    rounds: Annotated[int, Setting("Run this many rounds.", 100, "rounds", at_least=1)] = 10
    round_deadline_s: Annotated[
        float,
        Setting(
            "Close a round after this time; a simulation finds it for a share of stragglers too.",
            120.0,
            "seconds",
            more_than=0,
            flag="deadline",
            or_text=STRAGGLERS,
            text_example="30% stragglers",
        ),
    ] = 60.0
    min_contributions: Annotated[
        int, Setting("Extend a round to which fewer devices have contributed.", 2, "devices", at_least=1)
    ] = 1
    min_devices: Annotated[
        int, Setting("Open round 1 when this many devices are online.", 2, "devices", at_least=1)
    ] = 1
    late: Annotated[Late, Setting("Discard or count updates that come after their round.", "count")] = (
        "discard"
    )
    wait_for: Annotated[
        WaitFor,
        Setting(
            "Wait for all devices or only for the fast ones. auto: fast if the task offers several kinds.",
            "all",
        ),
    ] = "auto"
    devices_per_round: Annotated[
        int | None,
        Setting("Draw this many devices for each round.", 10, "devices", at_least=1, none="all are asked"),
    ] = None
    draw: Annotated[
        str,
        Setting(
            "Draw a round's devices by this policy: uniform, or one of your own (--plugin FILE.py:CLASS).",
            "uniform",
            metavar="POLICY",
        ),
    ] = UNIFORM
    devices_with: Annotated[
        tuple[str, ...],
        Setting(
            "Ask only devices that meet all of these conditions.",
            ("tag=kitchen", "memory>=512MB"),
            metavar="CONDITION,..",
            none="all devices",
        ),
    ] = ()
    hold_out_devices: Annotated[
        tuple[str, ...],
        Setting(
            "Never train on these devices, but evaluate on them: a share of them, names, or conditions.",
            ("10%",),
            metavar="10%,..",
            none="all may be trained on",
        ),
    ] = ()
    ask_all_rounds: Annotated[
        int, Setting("Ask all devices in this many first rounds.", 1, "rounds", at_least=0)
    ] = 0
    buffer_size: Annotated[
        int,
        Setting(
            "Close a round after updates of this many devices, made for any round (FedBuff); 0: off.",
            5,
            "devices",
            at_least=0,
        ),
    ] = 0
    max_staleness: Annotated[
        int, Setting("Count an update that is at most this many rounds late.", 2, "rounds", at_least=0)
    ] = 5
    staleness_weight: Annotated[
        float, Setting("Weigh an update that is t rounds late by (1 + t)^-A.", 1.0, at_least=0, metavar="A")
    ] = _STALENESS
    untimed_rounds: Annotated[
        int, Setting("Run this many first rounds without a deadline.", 1, "rounds", at_least=0)
    ] = 0
    seed: Annotated[int, Setting("Draw what is random by this seed.", 7, at_least=0)] = 0
    kinds: Annotated[
        tuple[KindSettings, ...],
        Setting(
            "Kinds of update offered, the preferred first: names or [[kinds]] tables.", ({"name": "full"},)
        ),
    ] = msgspec.field(default_factory=_default_kinds)
    order: Annotated[
        Order,
        Setting(
            "Prefer kinds as listed, or forms of update by measured gain; default: what tasks have that name "
            "no kinds.",
            "gain",
        ),
    ] = "listed"
    max_num_examples: Annotated[
        int, Setting("Refuse an update that reports more samples.", 5000, "samples", at_least=1)
    ] = 1_000_000
    eval_data: Annotated[
        str | None,
        Setting(
            "Evaluate the served model on these samples.", "test.npz", none="no evaluation", metavar="PATH"
        ),
    ] = None
    metrics: Annotated[
        tuple[str, ...],
        Setting(
            "Evaluate by these metrics too: names, or functions as FILE.py:NAME.",
            ("f1-macro", "top-5"),
        ),
    ] = ()
    family: Annotated[
        tuple[str, ...],
        Setting(
            "Offer these bundles of smaller models too, for some kinds, the largest first.", ("smaller.zip",)
        ),
    ] = ()
    generic: Annotated[
        str | None,
        Setting(
            "Train on these samples, which belong to no device, in kinds that train on the aggregator.",
            "generic.npz",
            none="no such samples",
            metavar="PATH",
        ),
    ] = None
    server: Annotated[
        ServerOptimizer, Setting("How the base follows the mean of the updates.", {"name": "fedadam"})
    ] = msgspec.field(default_factory=ServerOptimizer)
    start: Annotated[
        Start, Setting("Start from the bundle's parameters, or from random ones by the seed.", "random")
    ] = "bundle"
    head: Annotated[
        Head,
        Setting(
            "Serve the head as trained or in closed form. auto: in closed form for several kinds.", "trained"
        ),
    ] = "auto"
    statistics: Annotated[
        ClassStatistics,
        Setting("Class statistics that devices send for a head in closed form.", {"numbers": "int8"}),
    ] = msgspec.field(default_factory=ClassStatistics)
    rest: Annotated[
        Rest,
        Setting("Let stragglers rest in rounds that want nothing of their classes.", "on"),
    ] = "off"
    robust: Annotated[
        Rule, Setting("Merge by this rule, which lying devices cannot steer; none: the mean.", "median")
    ] = "none"
    robust_trim: Trim = 0.2
    robust_clip: Clip = None
    robust_clip_factor: ClipFactor = 1.0
    robust_byzantine: Byzantine = None
    max_extensions: Annotated[
        int,
        Setting(
            "End after this many deadlines in a row without a contribution of devices online; 0: never.",
            10,
            "deadlines",
            at_least=0,
        ),
    ] = 5
    deadline_quantile: Annotated[
        float | None,
        Setting(
            "Learn the deadline by which this share of the devices is ready.",
            example=0.9,
            more_than=0,
            at_most=1,
            none="the deadline is fixed",
            metavar="SHARE",
        ),
    ] = None
    deadline_margin: Annotated[
        float, Setting("Multiply the time that this share needed by this factor.", 2.0, at_least=1)
    ] = 1.5
    deadline_least_s: Annotated[float, Setting("Learn no shorter deadline.", 5.0, "seconds", more_than=0)] = (
        1.0
    )
    stop_after: Annotated[
        int, Setting("End after this many rounds without a gain; 0: never.", 10, "rounds", at_least=0)
    ] = 0
    stop_gain: Annotated[float, Setting("Ignore improvements of at most X.", 0.001, at_least=0)] = 0.0
    stop_metric: Annotated[Metric, Setting("Measure gains by this metric.", "loss")] = "accuracy"
    keep_versions: Annotated[
        int,
        Setting("Keep this many served models, the latest, and the best; 0: all.", 3, "models", at_least=0),
    ] = 10
    masks: Annotated[
        MaskSettings | None,
        Setting(
            "Masked sums: the aggregator sees no single update.",
            {"helpers": ("site-a=" + "5b" * 32,)},
            none="updates are sent in the clear",
        ),
    ] = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if not isinstance(kind, KindSettings):
                raise TaskError(f"kinds has {kind!r}, expected KindSettings(name=.., settings=..)")
        _convert(self)
        names = [kind.name for kind in self.kinds]
        if self.kinds is _default_kinds():
            msgspec.structs.force_setattr(self, "order", "default")
        elif self.order == "default" and tuple(names) != registry.OFFERED_KINDS:
            msgspec.structs.force_setattr(self, "order", "listed")
        try:
            topics.check_task(self.name)
            ranges.check(self)
        except (topics.TopicError, ValueError) as error:
            raise TaskError(str(error)) from None
        if self.masks:
            _check_masks(self, self.masks)
            least = max(self.min_contributions, self.masks.min_group)
            msgspec.structs.force_setattr(self, "min_contributions", least)
        try:
            _ = self.screening
        except ValueError as error:
            raise TaskError(f"robust: {error}") from None
        try:
            _ = self.participants, self.drawing
        except ValueError as error:
            raise TaskError(str(error)) from None
        statistics = self.statistics if self.closed_form else None
        kinds = tuple(kind.with_statistics(statistics) for kind in self.kinds)
        msgspec.structs.force_setattr(self, "kinds", kinds)
        self._check_rounds()
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

    def _check_rounds(self) -> None:
        """Raises TaskError for settings that contradict each other in when a round ends."""
        size, closing = self.devices_per_round, self.closing
        buffered = isinstance(closing, FullBuffer)
        if size is not None and not buffered and size < self.min_contributions:
            raise TaskError(
                f"devices_per_round is {size}, min_contributions {self.min_contributions}: "
                "no round would have enough before its first deadline"
            )
        if self.ask_all_rounds and buffered:
            raise TaskError("ask_all_rounds and buffer_size: a buffered round does not wait for all devices")
        if isinstance(closing, LearntDeadline) and closing.least_s > self.round_deadline_s:
            most = f"round_deadline_s, the longest, is {self.round_deadline_s:g}"
            raise TaskError(f"deadline_least_s is {closing.least_s:g}, {most}")

    @cached_property
    def closing(self) -> Closing:
        """How a round closes. Raises TaskError for settings of several ways."""
        ways: dict[str, Closing] = {}
        if self.wait_for == "fast":
            ways['wait_for = "fast"'] = FastDevices()
        if self.buffer_size:
            ways["buffer_size"] = FullBuffer(self.buffer_size)
        if self.deadline_quantile is not None:
            learnt = LearntDeadline(self.deadline_quantile, self.deadline_margin, self.deadline_least_s)
            ways["deadline_quantile"] = learnt
        if len(ways) > 1:
            raise TaskError(f"{' and '.join(ways)}: a round closes in one way, give one of them")
        unfit = self._unfit_for_fast()
        if self.wait_for == "fast" and unfit:
            raise TaskError(f'wait_for is "fast" and {unfit}')
        for way in ways.values():
            return way
        own_round = any(kind.strategy.traits.own_round for kind in self.kinds)
        if self.wait_for == "all" or self.late == "count" or own_round or unfit or not self._mixed:
            return AllDevices()
        return FastDevices()

    def _unfit_for_fast(self) -> str:
        """Why rounds cannot wait for the fast devices only; empty if they can."""
        if self.staleness_weight != _STALENESS and self.masks is None:
            return (
                f"staleness_weight is {self.staleness_weight:g}: an update weighs as many times as the "
                "rounds that its device was at work, leave it out"
            )
        if not self.max_staleness:
            return "max_staleness is 0: what comes late could not count"
        if all(kind.strategy.traits.own_round for kind in self.kinds):
            kinds = ", ".join(kind.name for kind in self.kinds)
            return f"{kinds} counts in its own round only"
        return ""

    @property
    def counts_late(self) -> bool:
        """Whether an update to an earlier round may count in the open one."""
        return self.late == "count" or self.closing.counts_late

    def naming(self, kinds: tuple[KindSettings, ...]) -> Task:
        """The task with these kinds; one that named none has them as listed."""
        order = "listed" if self.order == "default" else self.order
        return msgspec.structs.replace(self, kinds=kinds, order=order)

    def offered(self, number: int) -> tuple[KindSettings, ...]:
        """The kinds offered in round `number`, in order of preference, with that round's settings."""
        return tuple(kind.of_round(number) for kind in self.kinds if kind.in_round(number))

    def preferred(self, number: int) -> tuple[AnyStrategy, ...]:
        """The kinds of round `number`, or their forms one by one, as devices are to prefer them."""
        kinds = tuple(kind.strategy for kind in self.offered(number))
        return by_gain(kinds) if self.order == "gain" else kinds

    def offer_kinds(self, number: int) -> tuple[Kind, ...]:
        """The kinds of round `number` as they are written in an offer."""
        return tuple(map(registry.write, self.preferred(number)))

    @property
    def _mixed(self) -> bool:
        return kind_statistics.serves_closed_form([kind.strategy for kind in self.kinds])

    @property
    def closed_form(self) -> bool:
        """Whether the served head is in closed form; not with noise, which class statistics have none of."""
        if self.masks and self.masks.noisy:
            return False
        return self._mixed if self.head == "auto" else self.head == "closed-form"

    @property
    def rests(self) -> bool:
        """Whether offers say what is wanted, so that stragglers may rest; only with class statistics."""
        return self.closed_form and self.rest == "on"

    @property
    def evaluation_judges(self) -> bool:
        """Whether evaluation data, if any, decide which of the two heads is served; else devices do."""
        return self.closed_form and not self.statistics.hold_out

    @cached_property
    def participants(self) -> Participants:
        """Which devices take part in training. Raises ValueError for conditions that are not understood."""
        return Participants.read(self.devices_with, self.hold_out_devices, self.seed)

    @cached_property
    def drawing(self) -> DrawingPolicy:
        """How devices are drawn. Raises ValueError for a policy that there is not."""
        return drawing_named(self.draw)

    @property
    def screening(self) -> Robust:
        """The robust rule and its numbers. Raises ValueError for invalid ones."""
        return Robust(
            self.robust, self.robust_trim, self.robust_clip, self.robust_clip_factor, self.robust_byzantine
        )

    def late_share(self, rounds: int) -> float:
        """The share of its change by which an update that is `rounds` rounds late moves the model.

        It is 1 where rounds wait for the fast devices, as `stands_for` weighs these.
        """
        if isinstance(self.closing, FastDevices) and self.masks is None:
            return 1.0
        return float((1 + rounds) ** -self.staleness_weight)

    def stands_for(self, rounds: int, since: float) -> float:
        """The factor on the samples of an update that is `rounds` rounds late.

        `since`: rounds since the round in which its device last counted, divided by the device's updates in
        this round. Where rounds wait for the fast, an update stands for all rounds in which its device was at
        work, so that each device has the same weight over time (by its participation interval: Wang and Ji
        2024). With `devices_per_round` the factor is 1: a device that works longer is not drawn less often.
        With `masks` it is 1 too: the aggregator cannot weigh single updates.
        """
        fast = isinstance(self.closing, FastDevices)
        if not fast or self.masks or self.devices_per_round is not None:
            return 1.0
        return min(1.0 + rounds, since)

    def round_seed(self, number: int) -> int:
        """The seed that all devices of a round share; below 2**53, exact in every language's numbers."""
        return round_seed(self.seed, number)

    @property
    def untitled(self) -> Task:
        """The task without its texts for people, which a run may change as it goes on."""
        return msgspec.structs.replace(self, title="", about="", ask="")

    def json(self) -> bytes:
        """Canonical JSON: equal tasks give equal bytes; default settings are written out too."""
        full = [
            msgspec.structs.replace(kind, settings=registry.settings(kind.strategy)) for kind in self.kinds
        ]
        return _encoder.encode(msgspec.structs.replace(self, kinds=tuple(full)))


@cache
def _types() -> tuple[tuple[str, Any, tuple[Any, ...]], ...]:
    """Name, type and listed choices of each setting of a Task."""
    types = {entry.name: entry.type for entry in msgspec.structs.fields(Task)}
    return tuple((entry.name, types[entry.name], entry.choices) for entry in ranges.setting_fields(Task))


def _convert(task: Task) -> None:
    """Convert each setting to its type, as a task file's are. Raises TaskError for one that does not fit."""
    for name, expected_type, choices in _types():
        value = getattr(task, name)
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            typed = msgspec.convert(plain, expected_type)
        except msgspec.ValidationError as error:
            reason = str(error).replace("Expected", "expected", 1)
            expected = f"expected one of {', '.join(map(repr, choices))}" if choices else reason
            raise TaskError(f"{name} is {value!r}: {expected}") from None
        if type(typed) is not type(value):
            msgspec.structs.force_setattr(task, name, typed)


def _check_masks(task: Task, masks: MaskSettings) -> None:
    """Refuses what needs single updates, and rounds of too few devices for a sum."""
    if task.robust != "none":
        raise TaskError(f"masks and robust = {task.robust}: robust rules compare single updates")
    for name in ("devices_per_round", "buffer_size"):
        size = getattr(task, name)
        if size and size < masks.min_group:
            raise TaskError(f"{name} is {size}, masks.min_group {masks.min_group}: no sum would be opened")
    if masks.noisy and task.head == "closed-form":
        raise TaskError("masks.epsilon and head = closed-form: class statistics are sent without noise")
    for kind in task.kinds:
        why = masks.unmaskable_reason(kind.strategy)
        if kind.max_norm is not None:
            why = f"max_norm = {kind.max_norm:g} is checked on single updates, leave it out"
        if why:
            raise TaskError(f"{kind.name} cannot be masked: {why}")


_encoder = msgspec.json.Encoder(order="sorted")


def decode(data: bytes) -> Task:
    """A task from its JSON. Raises TaskError."""
    try:
        return msgspec.json.decode(data, type=Task)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TaskError(f"not a task: {error}") from None


def load(path: Path | None, flags: Mapping[str, object], kinds: Sequence[str] | None = None) -> Task:
    """Reads a task from a TOML file, if any, with `flags` over it. Raises TaskError.

    Paths in the file are relative to the file, those of flags to the working directory; all are absolute in
    the task, so that a run goes on from any directory. `kinds` names the kinds to offer, each as the file has
    it; None: all of the file.
    """
    settings = _read(path) if path else {}
    flags = _absolute(Path.cwd(), flags)
    if kinds is not None:
        settings["kinds"] = tables_named(kinds, settings.get("kinds"))
    for name in ("masks", "statistics"):  # tables of which single keys have flags
        if isinstance(table := flags.get(name), Mapping) and isinstance(settings.get(name, {}), Mapping):
            flags = {**flags, name: {**settings.get(name, {}), **table}}
    settings |= flags
    if (share := straggler_share(settings.get("round_deadline_s"))) is not None:
        raise TaskError(f"deadline is {settings['round_deadline_s']!r}: {unknown_fleet(share)}")
    if "kinds" in settings:
        settings["kinds"] = with_usual(settings["kinds"])
    if "bundle" not in settings:
        raise TaskError("which model is to be learnt? give --bundle, or bundle = ... in the task file")
    try:
        task = msgspec.convert(settings, Task)
    except msgspec.ValidationError as error:
        raise TaskError(f"task{f' {path}' if path else ''}: {explained(error, Task)}") from None
    check_effect(settings)
    return task


def _read(path: Path) -> dict[str, Any]:
    settings = with_one_deadline(read_toml(path, TaskError))
    return {"name": path.stem, **_absolute(path.parent.resolve(), settings)}


def _absolute(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with full paths in place of those of files in `folder`; names of shipped bundles stay."""

    def full(name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [full(name, each) for each in value]
        if name == "metrics":
            return source_near(folder, value)
        path = near(folder, value)
        return value if value in shipped_names() and content_of(Path(path)) != "bundle" else path

    files = {"bundle", "family", "eval_data", "generic", "metrics"}
    return {name: full(name, value) if name in files else value for name, value in settings.items()}


def with_one_deadline(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `round_deadline_s` in place of `deadline`, its flag. Raises TaskError for both."""
    if "deadline" not in settings:
        return dict(settings)
    if "round_deadline_s" in settings:
        raise TaskError("deadline and round_deadline_s are the same setting: give one of them")
    return {"round_deadline_s" if name == "deadline" else name: value for name, value in settings.items()}


NEEDS = {
    "robust": ("robust_trim", "robust_byzantine", "robust_clip", "robust_clip_factor"),
    "stop_after": ("stop_gain", "stop_metric"),
    "deadline_quantile": ("deadline_margin", "deadline_least_s"),
    "kinds": ("order",),
    "devices_per_round": ("draw",),
}
"""Settings without which others have no effect."""


def check_effect(settings: Mapping[str, object]) -> None:
    """Raises TaskError for settings that have no effect without another one, but for defaults."""
    usual = {field.name: field.default for field in msgspec.structs.fields(Task)}
    for needed, names in NEEDS.items():
        if settings.get(needed, "none") in (0, "none"):
            for name in (name for name in names if settings.get(name, usual[name]) != usual[name]):
                raise TaskError(f"{name} has no effect without {needed}: give both, or neither")
