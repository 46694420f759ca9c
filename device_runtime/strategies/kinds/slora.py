"""SLoRA: sparse fine-tuning, then LoRA that starts from its result.

Babakniya et al. 2023; thesis 000, section 4.2. Stage 2 begins with the best low-rank approximation of what
stage 1 changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import TensorError
from device_runtime.profiles import Work, Workload
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import MERGES_MORE
from device_runtime.strategies.interface.kind import KindInfo, Settings
from device_runtime.strategies.settings import MOST, LearningRate, Momentum, Setting, WeightDecay

from .fedavg import FedAvg

VALUES = "sparse_values"
"""The end of the name of a layer's trained values; its other tensors have the same name before it."""


@dataclass(frozen=True)
class SparseStage(FedAvg):
    """Stage 1: trains the tunable set `sparse`, with one random mask for all devices, until round `rounds`.

    In that round the change of each layer becomes LoRA's factors; stage 2 is `peft` with tunable = "lora"
    from the next round on. The thesis runs stage 1 for 20 % of the rounds at 10 % density, the set's default;
    LoRA has rank 16 there, a setting of the set. It names neither learning rate nor epochs: they are those of
    `peft`. In stage 2 only LoRA and the head differ from the pre-trained model: what a layer without LoRA
    changed in stage 1 is taken back, unless `without_lora` = "kept" (ours). Give LoRA to all layers
    (`targets` = "all"), and nothing is lost but what is beyond its rank.
    """

    name: ClassVar[str] = "sparse"
    about: ClassVar[KindInfo] = KindInfo(
        "one random tenth of the parameters",
        "these, and the classifier",
        "SLoRA: Babakniya et al. 2023",
    )
    mixed_round_settings: ClassVar[Settings] = {}
    lr: LearningRate = 0.01
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 1e-4
    rounds: Annotated[
        int,
        Setting("The round after which `peft` goes on with LoRA.", 5, "rounds", at_least=1, at_most=MOST),
    ] = 10
    without_lora: Annotated[
        Literal["reset", "kept"],
        Setting("Whether layers without LoRA keep their change when `peft` begins.", example="kept"),
    ] = "reset"

    @property
    def trained(self) -> str:
        return "sparse"

    def work(self, workload: Workload) -> Work:
        """The work of training. Raises MissingGraph for a bundle without stage 2's set `lora`."""
        workload.values("lora")
        return super().work(workload)

    def site_refusal(self) -> str:
        return MERGES_MORE

    def finish(self, state: TensorMean, model: RoundModel) -> KindResult:
        result = super().finish(state, model)
        if model.round != self.rounds:
            return result
        return replace(result, refine=partial(lora_start, manifest=model.manifest, others=self.without_lora))


def lora_start(
    base: Tensors, manifest: Manifest, others: Literal["reset", "kept"] = "reset"
) -> dict[str, NDArray[Any]]:
    """The tensors that stage 2 starts from: factors nearest to what both sets changed, sparse values of 0.

    A layer with LoRA computes the same as before, up to the rank. `others`: what becomes of the sparse values
    of layers without LoRA.
    """
    settings = manifest.sets["lora"]
    scale = float(settings["alpha"]) / int(settings["rank"])
    handed: dict[str, NDArray[Any]] = {}
    for name in manifest.names("sparse"):
        layer = name.removesuffix(VALUES)
        if name == layer:
            continue
        if f"{layer}lora_a" not in base:
            handed |= {name: np.zeros_like(base[name])} if others == "reset" else {}
            continue
        a, b = base[f"{layer}lora_a"], base[f"{layer}lora_b"]
        change = scale * product(a, b)
        change.reshape(-1)[base[f"{layer}sparse_indices"]] += base[name]
        a, b = factors((change / scale).astype(np.float32), len(a))
        handed |= {f"{layer}lora_a": a, f"{layer}lora_b": b, name: np.zeros_like(base[name])}
    return handed


def factors(change: NDArray[np.float32], rank: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """LoRA factors a and b of a rank, with b @ a nearest to `change` (Eckart, Young 1936).

    change: (out, in), or a convolution's (out, in, ...), taken as `out` rows; a: (rank, in, ...),
    b: (out, rank, ...), as in a LoRA layer. Each is scaled by the roots of the singular values; places beyond
    the rank of `change` are 0. Where alpha is not the rank, give change * rank / alpha. Raises TensorError
    for a change of other dimensions or that is not finite, and for a rank below 1. Babakniya et al. 2023,
    section 4.
    """
    if change.ndim not in (2, 3, 4) or change.size == 0:
        raise TensorError(f"a change of shape {change.shape} has no factors, expected (out, in[, ...])")
    if rank < 1:
        raise TensorError(f"rank is {rank}, expected at least 1")
    if not np.isfinite(change).all():
        raise TensorError("the change holds values that are not finite")
    out, *inner = change.shape
    left, values, right = np.linalg.svd(change.reshape(out, -1).astype(np.float64), full_matrices=False)
    places = min(rank, len(values))
    roots = np.sqrt(values[:places])
    a = np.zeros((rank, right.shape[1]), np.float32)
    b = np.zeros((out, rank), np.float32)
    a[:places] = roots[:, None] * right[:places]
    b[:, :places] = left[:, :places] * roots
    return a.reshape(rank, *inner), b.reshape(out, rank, *(1 for _ in inner[1:]))


def product(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """b @ a, float64, in the shape of the layer's weight; a and b have the shapes that `factors` gives."""
    out, rank = b.shape[:2]
    both = b.reshape(out, rank).astype(np.float64) @ a.reshape(rank, -1)
    return both.reshape(out, *a.shape[1:])
