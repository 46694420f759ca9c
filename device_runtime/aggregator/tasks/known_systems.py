"""Definitions of all systems: the kinds of update, settings and rounds of each paper, and of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.registry import KINDS, settings_alone
from device_runtime.strategies.kinds.zeroth_order import FEDMEZO, MEASURED, SAMPLED_COHORT_LR
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer

from .closing import FullBuffer
from .kind_settings import KindSettings
from .task import Start, Task

Settings = Mapping[str, Any]
Rounds = Callable[[int], int]
"""From a task's number of rounds to a number of rounds."""

TRAINING = ("epochs", "lr", "momentum", "weight_decay", "batch", "terms.fedprox", "clip_norm", "codec")
"""Settings of full updates that kinds in WHOLE take over, where they have no value of their own."""
WHOLE = ("full+few-shot", "width-slice", "attention-transfer", "prototypes", "representatives")
"""Kinds that train a whole model locally, as full updates do."""


@dataclass(frozen=True)
class SystemKind:
    """One kind of a system. `defaults` are settings that a task may change, `fixed` those that it may not.

    It is offered in the rounds after `after(rounds)` up to `until(rounds)`, with `rounds` of the task. A kind
    that has a setting `rounds` gets its last round as the value.
    """

    kind: str
    fixed: Settings = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)
    after: Rounds = lambda rounds: 0
    until: Rounds = lambda rounds: rounds

    def of(self, task: Task) -> KindSettings:
        """The kind's settings in this task. Raises TaskError, ModelError."""
        own = _given(task, self.kind)
        settings = merged(self.defaults, _followed(task, self.kind), own.settings, self.fixed)
        if has_setting(self.kind, "members") and not settings.get("members"):
            settings["members"] = tuple(_name(path) for path in task.family)
        begin, until = self.after(task.rounds) + 1, self.until(task.rounds)
        if has_setting(self.kind, "rounds"):
            settings["rounds"] = until
        return KindSettings(
            name=self.kind,
            settings=settings,
            from_round=begin,
            until_round=until if until < task.rounds else None,
            weight=own.weight,
            max_norm=own.max_norm,
            first_epochs=own.first_epochs,
        )


@dataclass(frozen=True)
class System:
    """A system: its kinds of update with settings and rounds, and its other settings of a task.

    says: a one-line description.
    source: the paper.
    parts: the kinds; those that begin after a task's last round are ignored.
    drawn: the parts to use in place of `parts` where only some devices are asked in a round.
    rounds: the system's number of rounds, if fixed.
    untimed: the number of first rounds without a deadline.
    asking_all: the number of first rounds that ask all devices, also where the others ask only some.
    """

    says: str
    source: str
    parts: tuple[SystemKind, ...]
    server: str = "fedavg"
    start: Start = "bundle"
    rounds: int | None = None
    untimed: Rounds = lambda rounds: 0
    asking_all: Rounds = lambda rounds: 0
    drawn: tuple[SystemKind, ...] = ()

    def of(self, task: Task) -> Task:
        """The task with this system's settings. Raises TaskError, ModelError."""
        rounds = task.rounds if self.rounds is None else self.rounds
        task = msgspec.structs.replace(task, rounds=rounds)
        parts = self.parts if task.devices_per_round is None else self.drawn or self.parts
        return msgspec.structs.replace(
            task,
            kinds=tuple(part.of(task) for part in parts if part.after(rounds) < rounds),
            server=server_optimizer_for(task, self.server),
            start=self.start,
            head="trained" if task.head == "auto" else task.head,
            wait_for="all" if task.wait_for == "auto" else task.wait_for,
            untimed_rounds=max(task.untimed_rounds, self.untimed(rounds)),
            ask_all_rounds=self._asking_all(task, rounds),
        )

    def _asking_all(self, task: Task, rounds: int) -> int:
        drawn = task.devices_per_round is not None and not isinstance(task.closing, FullBuffer)
        return max(task.ask_all_rounds, self.asking_all(rounds) if drawn else 0)


def server_optimizer_for(task: Task, name: str) -> ServerOptimizer:
    """The server optimizer of this name: the task's own, if it has this name, else with default settings."""
    return task.server if task.server.name == name else msgspec.convert({"name": name}, ServerOptimizer)


def has_setting(kind: str, setting: str) -> bool:
    """Whether the kind exists and takes the setting, or the term "terms.NAME"."""
    strategy = KINDS.get(kind) or registry.kinds().get(kind)
    if strategy is None or setting in strategy.traits.refused:
        return False
    return setting.partition(".")[0] in getattr(strategy, "__dataclass_fields__", {})


def merged(*settings: Settings) -> dict[str, Any]:
    """Settings of a kind, the later ones over the earlier ones; so are those of each of its terms."""
    whole: dict[str, Any] = {}
    terms: dict[str, Any] = {}
    for each in settings:
        whole |= each
        for name, table in each.get("terms", {}).items():
            terms[name] = {**terms.get(name, {}), **table}
    return {**whole, "terms": terms} if terms else whole


def _given(task: Task, name: str) -> KindSettings:
    own = next((kind for kind in task.kinds if kind.name == name), KindSettings(name=name))
    return msgspec.structs.replace(own, settings=settings_alone(name, own.settings))


def _followed(task: Task, name: str) -> Settings:
    """The task's settings of full updates that the kind takes over (TRAINING, WHOLE)."""
    if name not in WHOLE:
        return {}
    full = _given(task, "full").settings
    inherited = {key: value for key, value in full.items() if key in TRAINING and has_setting(name, key)}
    terms = {
        key: value
        for key, value in full.get("terms", {}).items()
        if f"terms.{key}" in TRAINING and has_setting(name, f"terms.{key}")
    }
    return {**inherited, "terms": terms} if terms else inherited


@lru_cache
def _name(path: str) -> str:
    """The name of a bundle, from its manifest. Raises ModelError."""
    return Bundle.open(bundles.find_bundle(path)).manifest.name


def _first(rounds: int) -> int:
    return 1


def _probing(rounds: int) -> int:
    """Rounds of linear probing in LP+FT: 5 (Bernier 2024, table A.3), or half of fewer than 10 rounds."""
    return max(1, min(5, rounds // 2))


def _gathering(rounds: int) -> int:
    """Rounds in which class means are gathered from drawn devices: 10, or half of fewer than 20 rounds."""
    return max(1, min(10, rounds // 2))


def _share(share: float) -> Rounds:
    return lambda rounds: ceil(share * rounds)


def _fifth_after_first(rounds: int) -> int:
    """A fifth of the rounds, and at least one after the first."""
    return max(2, FIFTH(rounds))


FULL = SystemKind("full")
AS_PUBLISHED = {"head": "normalised-means", "smallest_count": 1}
"""Settings of class means in FedNCM: every class that a device has, even with a single sample."""
ONE_EPOCH = {"reduced_epochs": 1}
FIFTH = _share(0.2)
FULL_ONCE = SystemKind("full", until=_first)


def _fedft(says: str, **fixed: Any) -> System:
    """A FedFT system, from pre-trained parameters.

    One round of full updates without a deadline, then the upper part is trained on selected samples.
    """
    parts = (FULL_ONCE, SystemKind("entropy-subset", fixed, after=_first))
    source = "Shi 2025 (PhD thesis, Sheffield), section 6.4"
    return System(says, source, parts, untimed=_first, asking_all=_first)


def _fedfsc_plus_with(says: str, anchor: str) -> System:
    """FedFSC+ whose full updates have a term that holds the classifier near `anchor` (equation 4.3)."""
    full = SystemKind("full", {"terms": {"fscprox": {"anchor": anchor}}})
    few = SystemKind("few-shot", {"send_mean": anchor == "few-shot"}, after=_first)
    return System(says, "Shi 2025 (PhD thesis, Sheffield), section 4.5.3", (full, few))


def _fedpeft(tunable: str) -> System:
    says = f"the tunable set {tunable} and the head alone are trained and sent"
    return System(says, "Sun et al. 2022", (SystemKind("peft", {"tunable": tunable, "tunables": ()}),))


SYSTEMS: dict[str, System] = {
    "fedavg": System("full updates; stragglers are dropped", "McMahan et al. 2017", (FULL,)),
    "fedprox": System(
        "full updates that stay near the base",
        "Li et al. 2020",
        (SystemKind("full", defaults={"terms": {"fedprox": {}}}),),
    ),
    "moon": System(
        "full updates, contrasted with the device's last",
        "Li et al. 2021",
        (SystemKind("full", defaults={"terms": {"moon": {}}}),),
    ),
    "fedadam": System("full updates, Adam on the aggregator", "Reddi et al. 2021", (FULL,), "fedadam"),
    "fedyogi": System("full updates, Yogi on the aggregator", "Reddi et al. 2021", (FULL,), "fedyogi"),
    "fedadagrad": System(
        "full updates, Adagrad on the aggregator", "Reddi et al. 2021", (FULL,), "fedadagrad"
    ),
    "fedavgm": System("full updates, momentum on the aggregator", "Hsu et al. 2019", (FULL,), "fedavgm"),
    "fedexp": System(
        "full updates, extrapolation on the aggregator", "Jhunjhunwala et al. 2023", (FULL,), "fedexp"
    ),
    "random": System(
        "FedAvg from fresh parameters",
        "Bernier 2024 (MSc thesis, Concordia), chapter 3",
        (FULL,),
        start="random",
    ),
    "no-stragglers": System(
        "FedAvg without a deadline: the hypothetical fleet without stragglers",
        "ours",
        (FULL,),
        untimed=lambda rounds: rounds,
    ),
    "lp": System(
        "the linear head alone (linear probing, head-tuning)",
        "Bernier 2024 (MSc thesis, Concordia), chapter 3",
        (SystemKind("peft", {"tunable": "head", "tunables": ()}),),
    ),
    "ft": System(
        "FedAvg from the bundle's pre-trained parameters",
        "Bernier 2024 (MSc thesis, Concordia), chapter 3",
        (FULL,),
    ),
    "lp+ft": System(
        "the linear head for five rounds, then everything",
        "Bernier 2024 (MSc thesis, Concordia), section 3.1.3",
        (
            SystemKind("peft", {"tunable": "head", "tunables": ()}, until=_probing),
            SystemKind("full", after=_probing),
        ),
    ),
    "fedfsc": System(
        "every device sends a full and a few-shot update",
        "Shi 2025 (PhD thesis, Sheffield), algorithm 1",
        (FULL_ONCE, SystemKind("full+few-shot", {"reduced_epochs": 0}, after=_first)),
    ),
    "fedfsc+": System(
        "full updates; stragglers send few-shot updates",
        "Shi 2025 (PhD thesis, Sheffield), section 4.4",
        (FULL, SystemKind("few-shot", after=_first)),
    ),
    "fedfsc+(fedavg+)": System(
        "a straggler trains what it can, falls back to few-shot, and sends both",
        "Shi 2025 (PhD thesis, Sheffield), section 4.4",
        (
            SystemKind("full", {**ONE_EPOCH}, until=_first),
            SystemKind("full+few-shot", {**ONE_EPOCH}, after=_first),
            SystemKind("few-shot", after=_first),
        ),
    ),
    "fscprox": System(
        "FedFSC whose full updates stay near the few-shot classifier",
        "Shi 2025 (PhD thesis, Sheffield), equation 4.3",
        (
            FULL_ONCE,
            SystemKind("full+few-shot", {"terms": {"fscprox": {"anchor": "few-shot"}}}, after=_first),
        ),
    ),
    "fedfsc++fscprox": _fedfsc_plus_with(
        "FedFSC+ whose full updates stay near the few-shot classifier", "few-shot"
    ),
    "fedfsc++baseprox": _fedfsc_plus_with(
        "FedFSC+ whose full updates stay near the base's classifier", "base"
    ),
    "baseprox": System(
        "FedFSC whose full updates stay near the base's classifier",
        "Shi 2025 (PhD thesis, Sheffield), section 4.4",
        (FULL_ONCE, SystemKind("full+few-shot", {"terms": {"fscprox": {"anchor": "base"}}}, after=_first)),
    ),
    "fedat": System(
        "custom-size models and metadata, joined by attention transfer",
        "Shi 2025 (PhD thesis, Sheffield), section 5.3",
        (SystemKind("attention-transfer"),),
    ),
    "fedmd": System(
        "custom-size models, joined by distillation",
        "Shi 2025 (PhD thesis, Sheffield), section 5.5",
        (SystemKind("prototypes", {"beta": 0.0}),),
    ),
    "fedkad": System(
        "custom-size models, joined by distillation and prototypes",
        "Shi 2025 (PhD thesis, Sheffield), section 5.5",
        (SystemKind("prototypes", {"smallest_count": 1}),),
    ),
    "fedsplit": System(
        "representative feature maps train a new upper part",
        "Shi 2025 (PhD thesis, Sheffield), section 6.2",
        (SystemKind("representatives"),),
    ),
    "fedft-all": _fedft("the upper part on all local samples", shares=(1.0,), select="entropy"),
    "fedavg-rds": _fedft("everything, on samples drawn at random", tunable="all", select="random"),
    "fedft-rds": _fedft("the upper part on samples drawn at random", select="random"),
    "fedft-eds": _fedft("the upper part on the samples of highest entropy", select="entropy"),
    "fedncm": System(
        "class means make the classifier, in one round",
        "Legate et al. 2023; Bernier 2024 (MSc thesis, Concordia), algorithm 1",
        (SystemKind("class-means", AS_PUBLISHED),),
        rounds=1,
        asking_all=_first,
    ),
    "fedncm+ft": System(
        "that classifier first, then everything",
        "Legate et al. 2023; Bernier 2024 (MSc thesis, Concordia), section 3.1.3",
        (SystemKind("class-means", AS_PUBLISHED, until=_first), SystemKind("full", after=_first)),
        asking_all=_first,
    ),
    "fedmezo": System(
        "scalars along directions that all share",
        "Bernier 2024 (MSc thesis, Concordia), chapter 4",
        (SystemKind("zeroth-order", FEDMEZO),),
    ),
    "fedncm+mezo": System(
        "the classifier of class means first, then scalars, by relative steps",
        "ours, on Legate et al. 2023 and Bernier 2024",
        (
            SystemKind("class-means", AS_PUBLISHED, until=_first),
            SystemKind("zeroth-order", defaults={**MEASURED, "tunable": "head"}, after=_first),
        ),
        drawn=(
            SystemKind("class-means", {**AS_PUBLISHED, "gathered": True}, until=_gathering),
            SystemKind(
                "zeroth-order",
                defaults={**MEASURED, "lr": SAMPLED_COHORT_LR, "tunable": "head"},
                after=_gathering,
            ),
        ),
    ),
    "distmezo-naive": System(
        "zeroth-order steps by each device's own seeds, averaged weights",
        "Bernier 2024 (MSc thesis, Concordia), chapter 4",
        (SystemKind("local-zeroth-order"),),
    ),
    "fedncm+distmezo-naive": System(
        "the classifier of class means first, then zeroth-order steps by each device's own seeds",
        "ours, on Legate et al. 2023 and Bernier 2024",
        (
            SystemKind("class-means", AS_PUBLISHED, until=_first),
            SystemKind("local-zeroth-order", after=_first),
        ),
        asking_all=_first,
    ),
    "slora": System(
        "a sparse set first, then LoRA that begins with what it learnt",
        "Babakniya et al. 2023",
        (
            SystemKind("sparse", until=FIFTH),
            SystemKind("peft", {"tunable": "lora", "tunables": ()}, after=FIFTH),
        ),
    ),
    "fedncm+slora": System(
        "the classifier of class means first, then SLoRA",
        "ours, on Legate et al. 2023 and Babakniya et al. 2023",
        (
            SystemKind("class-means", AS_PUBLISHED, until=_first),
            SystemKind("sparse", after=_first, until=_fifth_after_first),
            SystemKind("peft", {"tunable": "lora", "tunables": ()}, after=_fifth_after_first),
        ),
        asking_all=_first,
    ),
    **{f"fedpeft-{name}": _fedpeft(name) for name in ("head", "bias", "adapter", "prompt", "prefix", "lora")},
    "heterofl": System(
        "stragglers train a narrower part of the model",
        "Diao et al. 2021",
        (FULL, SystemKind("width-slice")),
    ),
}
