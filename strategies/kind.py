"""What every kind of update is: the interface of a strategy, and what passes between its two halves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from broker.messages import Step
from models.engine import DeviceModel
from models.manifest import Manifest
from models.tensors import Tensors, TensorSpec
from profiles import Cost, DeviceProfile, Workload

from .tensor_mean import TensorMean

NOTHING: Tensors = MappingProxyType({})
ALONE: Mapping[str, Tensors] = MappingProxyType({})
MOST_LOSS = 1e6
"""No mean loss is above this: training has diverged."""


class OutOfTime(Exception):
    """The device's own clock says that this update cannot be finished before its deadline.

    `whole_s` is how many seconds all of the work would have taken, as far as is seen.
    """

    def __init__(self, text: str, whole_s: float) -> None:
        super().__init__(text)
        self.whole_s = whole_s


@dataclass(frozen=True)
class LocalData:
    """What a device holds: prepared inputs float32 (n, *input), labels int64 (n,)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def class_counts(self, labels: int) -> tuple[int, ...]:
        """Samples of each class, shape (labels,)."""
        return tuple(int(n) for n in np.bincount(self.y, minlength=labels))


@dataclass(frozen=True)
class Run:
    """One device's work in one round. `seed` is the round's, shared by all; times are in seconds.

    `memory` is what this kind kept on this device when it last trained in this run; `aside` what the
    aggregator sent for it beside the base. `noise` gives the randomness of private training, which nobody
    may repeat: the operating system's, but in a simulation. `clock` stands still while the work does; `lost`
    is how long it has, of what there was until the deadline.
    """

    seed: int
    device: str
    clock: Callable[[], float]
    deadline: float
    progress: Callable[[float], None] = field(default=lambda _: None)
    memory: Tensors = field(default_factory=lambda: NOTHING)
    aside: Tensors = field(default_factory=lambda: NOTHING)
    noise: Callable[[], np.random.Generator] = np.random.default_rng
    lost: Callable[[], float] = field(default=lambda: 0.0)

    def rng(self) -> np.random.Generator:
        """The device's own randomness: the same for the same round seed and device name."""
        digest = hashlib.sha256(f"{self.seed}:{self.device}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))

    def pace(self, began: float, done: float, of: float = 1.0) -> None:
        """Report `done`, the share of the work that is finished (0 to 1), that began at clock time `began`.

        Raises OutOfTime when the deadline has passed, or as soon as the rest is seen to miss it: a first
        tenth, which may have been slow to start, must miss it by three times. It tells of all that was
        planned, of which the work is the share `of`.
        """
        self.progress(done)
        elapsed = self.clock() - began
        projected = elapsed / done / (1.0 if done >= 0.1 else 3.0)
        whole = max(elapsed, projected)
        over = began + whole + self.lost() - self.deadline
        if done < 1 and over > 0:
            raise OutOfTime(f"{done:.0%} done, would end {over:.1f} s after the deadline", whole / of)


@dataclass(frozen=True)
class Late:
    """That an update was made for an earlier round: its number and seed, and the share of its change that
    counts in this one.
    """

    round: int
    seed: int
    share: float


@dataclass(frozen=True)
class Contribution:
    """What a device sends back. `train_loss` is the mean over what it trained on; nan where nothing was.

    `form` is that of the strategy that made it, by which `fold` knows the member of the family. `memory` is
    not sent: the device keeps it for the next time that it trains this kind, in place of what it kept before
    (None: that stays). `device` and `late` are set on the aggregator; tensors of a late one that the base has
    were moved to this round's.
    """

    kind: str
    tensors: Tensors
    num_examples: int
    train_loss: float
    form: str = ""
    memory: Tensors | None = None
    late: Late | None = None
    device: str = ""


class ServerTools(Protocol):
    """What only an aggregator has: the models of the task, on an engine, and its generic data."""

    @property
    def generic(self) -> LocalData | None:
        """Prepared samples that are nobody's own (thesis 002, 5.3 and 5.5); None where there are none."""

    def model(self, member: str = "") -> DeviceModel:
        """The main model, or that member of the family, opened once: load weights before each use.

        Raises ModelError.
        """

    def manifest(self, member: str = "") -> Manifest:
        """Of the same. Raises KeyError for a member that the task does not have."""


@dataclass(frozen=True)
class RoundModel:
    """On the aggregator: the model that was distributed in a round, and the round's seed.

    `family` has the weights of the smaller models that were distributed beside it, by their names; `memory`
    what this kind kept here after an earlier round.
    """

    manifest: Manifest
    weights: Tensors
    round: int
    seed: int
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    memory: Tensors = field(default_factory=lambda: NOTHING)
    tools: ServerTools | None = None


@dataclass(frozen=True)
class Effect:
    """What one kind's contributions of a round do to the model; `merge` joins the effects of all kinds.

    `mean` is averaged per tensor with the other kinds' by weight, and what the server optimiser then steps
    towards. `steps` are taken along known directions, beside it. `assigned` is put into the base as it is.
    `refine` is called with the base that all of this made, and gives the tensors to put in their place.
    `served` replaces tensors of the *distributed* model to give the served one; so does `served_mean`, joined
    over all kinds that have one. `family` has what becomes of smaller models, `teach` makes that of the next
    base, when nothing changes it any more. `memory` is kept here for the kind's next round, `aside` sent to
    its devices beside the next base; None: what was there stays.
    """

    mean: TensorMean | None = None
    steps: tuple[Step, ...] = ()
    served: Tensors | None = None
    served_mean: TensorMean | None = None
    num_examples: float = 0.0
    assigned: Tensors | None = None
    refine: Callable[[Tensors], Tensors] | None = None
    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    teach: Callable[[Tensors], Mapping[str, Tensors]] | None = None
    memory: Tensors | None = None
    aside: Tensors | None = None


@dataclass(frozen=True)
class Carried:
    """What a round hands to the next beside the base model.

    `family` has the base of each smaller model, `memory` what each kind keeps on the aggregator (and the
    server optimiser, under its own name), `aside` what devices are sent beside the base.
    """

    family: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    memory: Mapping[str, Tensors] = field(default_factory=lambda: ALONE)
    aside: Tensors = field(default_factory=lambda: NOTHING)

    def all(self) -> Iterator[Tensors]:
        """Every set of tensors in it."""
        yield from (*self.family.values(), *self.memory.values(), self.aside)


S = TypeVar("S")


class Strategy(Protocol[S]):
    """Both halves of one kind of update: no I/O, no clock, no global randomness.

    A frozen dataclass whose fields are its hyperparameters: they travel in the offer.
    """

    name: ClassVar[str]
    own_round: ClassVar[bool]
    """Whether a contribution means nothing outside the round that it was made for."""
    generic: ClassVar[bool]
    """Whether the aggregator needs a generic set for it."""

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

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        """On the device. Raises OutOfTime."""

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        """What a contribution must consist of, to be believed."""

    def doubt(self, update: Tensors, num_examples: int) -> str:
        """What is wrong with an update whose tensors are as expected; empty when nothing is."""

    def counted(self, contribution: Contribution) -> float:
        """As how many samples an update counts in a mean."""

    def again(self, first: int) -> int:
        """Bytes on the wire of another contribution like one that was accepted, and took so many."""

    def start(self, model: RoundModel) -> S:
        """On the aggregator: an empty state of one round."""

    def fold(self, state: S, contribution: Contribution, weight: float) -> S:
        """Add one contribution, which then may be forgotten: memory does not grow with the devices."""

    def finish(self, state: S, model: RoundModel) -> Effect:
        """What the folded contributions do to the model."""


AnyStrategy = Strategy[Any]
K = TypeVar("K")


@dataclass(frozen=True)
class Coded:
    """Kinds that have the setting `codec`: they send parameters, in which a little loss does no harm.

    Others must arrive exactly as they are, and refuse it as a setting that they do not have: the scalars of
    `zeroth-order`, which every device replays, and the sums and counts of `class-means`.
    """

    codec: str = field(default="", kw_only=True)


class Usual:
    """What most kinds do: one form, sensible for any data, nothing to doubt, bound to no round, no codec,
    counted by the samples trained on.
    """

    own_round: ClassVar[bool] = False
    generic: ClassVar[bool] = False

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

    def counted(self, contribution: Contribution) -> float:
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
