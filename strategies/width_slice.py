"""HeteroFL: a slow device trains a narrower part of the main model (Diao et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from models.engine import DeviceModel
from models.manifest import Manifest
from models.slices import Slices
from models.tensors import Tensors, TensorSpec
from profiles import Cost, DeviceProfile, Workload, predict

from . import local_training
from .full import Full
from .kind import Contribution, Effect, LocalData, RoundModel, Run, Usual
from .tensor_mean import TensorMean
from .workload import training_work


@dataclass(frozen=True)
class SliceMean:
    """The mean of a round by element; `base` is the main model that was distributed."""

    mean: TensorMean
    base: Tensors


@dataclass(frozen=True)
class WidthSlice(Usual):
    """Every parameter of a narrower network, whose tensors are the leading part of the main model's.

    `members` of the task's family, the richest first; "", or none, is the main model itself. Each element of
    the main model becomes the mean over those who trained it, full updates of the round included, and stays
    where nobody did. The members' next bases are cut out of the next main base.
    Different from the paper: means are by samples, as in FedAvg, not by devices. Group norm normalises the
    same groups of channels in every width and undoes any scale, so that neither static batch norm nor the
    Scaler is needed. Classes that a device lacks are not masked. Other settings and defaults: as of `full`.
    """

    name: ClassVar[str] = "width-slice"
    members: tuple[str, ...] = ()
    epochs: int = 10
    lr: float = 0.1
    momentum: float = 0.5
    weight_decay: float = 1e-5
    batch: int = 64
    mu: float = 0.0

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members):
            raise ValueError(f"members are {', '.join(self.members)}: each can be named once")
        _ = self._full

    @property
    def _full(self) -> Full:
        """The same training of whatever model it is given. Raises ValueError for what it does not take."""
        return Full(self.epochs, self.lr, self.momentum, self.weight_decay, self.batch, self.mu)

    @property
    def member(self) -> str:
        return self.members[0] if self.members else ""

    @property
    def form(self) -> str:
        return self.member

    def variants(self) -> tuple[WidthSlice, ...]:
        return tuple(replace(self, members=(member,)) for member in self.members) or (self,)

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        trained = workload.samples * self.epochs
        return predict(profile, training_work(workload, "all", trained, batch=self.batch), self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Contribution:
        trained = local_training.train(model, data, self.plan(model, data, run), run)
        return Contribution(self.name, trained.tensors, len(data), trained.loss, self.form)

    def plan(self, model: DeviceModel, data: LocalData, run: Run) -> local_training.Epochs:
        return self._full.plan(model, data, run)

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        return self._full.expected(manifest)

    def derive(self, base: Tensors, manifests: Mapping[str, Manifest]) -> dict[str, Tensors]:
        """The base of each member, cut out of the main one; `manifests` by member, the main model's by "".

        Raises TensorError for a member that is no part of the main model, KeyError for one without manifest.
        """
        main = manifests[""]
        return {member: Slices.of(main, manifests[member]).cut(base) for member in self.members if member}

    def start(self, model: RoundModel) -> SliceMean:
        return SliceMean(TensorMean(), model.weights)

    def fold(self, state: SliceMean, contribution: Contribution, weight: float) -> SliceMean:
        return replace(state, mean=state.mean.add_leading(contribution.tensors, weight, state.base))

    def finish(self, state: SliceMean, model: RoundModel) -> Effect:
        return Effect(mean=state.mean, num_examples=state.mean.most)
