"""HeteroFL: slow devices train a narrower part of the main model (Diao et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.bundles.weights import Slices
from device_runtime.models.errors import BundleError
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import MERGES_MORE
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import Members

from .fedavg import FedAvg


@dataclass(frozen=True)
class SliceMean:
    """The state of a round: the mean by element; `base` is the main model that was distributed."""

    mean: TensorMean
    base: Tensors


@dataclass(frozen=True)
class WidthSlice(FedAvg):
    """Trains every parameter of a narrower network, whose tensors are the leading parts of the main model's.

    members: names in the task's family or, without a family, of the bundle's parts, the richest first; "", or
    no members, is the main model itself. Each element of the main model becomes the mean over the devices
    that trained it, those with full updates included, and stays if none did. The members' next bases are cut
    out of the next main base.
    Different from the paper: means are weighted by samples, as in FedAvg, not by devices. Group norm
    normalises the same groups of channels in every width and undoes any scale, so that neither static batch
    norm nor the Scaler is needed. Classes that a device lacks are not masked.
    """

    name: ClassVar[str] = "width-slice"
    about: ClassVar[KindInfo] = KindInfo(
        "a narrower part of the network", "that part", "HeteroFL: Diao et al. 2021"
    )
    mixed_round_settings: ClassVar[Settings] = {"graded": True, "weigh_epochs": True}
    adds_up: ClassVar[bool] = True
    members: Members = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.members)) != len(self.members):
            raise ValueError(f"members are {', '.join(self.members)}: each can be named once")

    @property
    def member(self) -> str:
        return self.members[0] if self.members else ""

    @property
    def variant(self) -> str:
        return f"{self.member} {super().variant}".strip()

    def variants(self) -> tuple[WidthSlice, ...]:
        by_member = [replace(self, members=(member,)) for member in self.members] or [self]
        return tuple(variant for kind in by_member for variant in super(WidthSlice, kind).variants())

    def site_refusal(self) -> str:
        return MERGES_MORE

    def derive(self, base: Tensors, manifests: Mapping[str, Manifest]) -> dict[str, Tensors]:
        """The base of each member, cut out of the main base; `manifests` is by member, the main one by "".

        Raises TensorError for a member that is no part of the main model, KeyError for one without manifest.
        """
        return {member: slices.cut(base) for member, slices in self._slices(manifests).items()}

    def check_bundles(self, manifests: Mapping[str, Manifest]) -> None:
        """Check that all members are parts of the main model.

        A member of a pre-trained model has to say so too, since its devices see its manifest alone. Raises as
        `derive`, and BundleError without members.
        """
        if not self.members:
            raise BundleError(
                "it has no narrower models: export the network with its parts (export --narrower 0.5), "
                "or give the task a family (serve --family A,B)"
            )
        self._slices(manifests)
        for member in self.members:
            if manifests[""].pretrained and not manifests[member].pretrained:
                raise BundleError(
                    f"the main model is pre-trained, and its part {member} does not say so: "
                    "export the part with --pretrained"
                )

    def _slices(self, manifests: Mapping[str, Manifest]) -> dict[str, Slices]:
        members = filter(None, self.members)
        return {member: Slices.of(manifests[""], manifests[member]) for member in members}

    def start(self, model: RoundModel) -> SliceMean:  # type: ignore[override]
        return SliceMean(TensorMean(), model.weights)

    def fold(self, state: SliceMean, update: Update, weight: float) -> SliceMean:  # type: ignore[override]
        return replace(state, mean=state.mean.add_leading(update.tensors, weight, state.base))

    def finish(self, state: SliceMean, model: RoundModel) -> KindResult:  # type: ignore[override]
        return KindResult(mean=state.mean, num_examples=state.mean.most)
