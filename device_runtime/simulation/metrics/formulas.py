"""The formulas by which thesis 000 counts bytes and compute, beside what a simulation counts.

They ignore headers, hashes, repeats and the first download of the model. Compute is in F, one forward pass of
one sample; a backward pass is 2 F.
"""

from __future__ import annotations

import msgspec

from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.kinds.slora import SparseStage
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

VALUE_BYTES = 4
"""Bytes of a parameter (float32); seeds and scalars have one byte (section 4.2.1)."""
ONE_PASS, FORWARD_AND_BACKWARD = 1, 3
"""Compute of one sample in F: a forward pass, which is all that a head needs, and full training."""


class PaperCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one update of a kind costs: bytes, and passes (F) of each sample; None: no paper has a formula."""

    update_bytes: float
    sample_passes: float | None = None


def paper_cost(kind: AnyStrategy, values: int) -> PaperCost:
    """The cost of an update of this kind, whose tensors have this many float32 values."""
    return PaperCost(update_bytes(kind, values), sample_passes(kind))


def update_bytes(kind: AnyStrategy, values: int) -> float:
    """Bytes of one device and round.

    Zeroth-order scalars: 1 + 2 num_z (equation 6). Both stages of SLoRA: 4 for each value, which travels one
    way (equation 7: density times the model's size, then LoRA's). All others: 2 * 4 for each value, which
    travels both ways (equations 8 and 9).
    """
    if isinstance(kind, ZerothOrder):
        return 1 + 2 * kind.num_z
    one_way = isinstance(kind, SparseStage) or (isinstance(kind, Peft) and kind.trained == "lora")
    return (1 if one_way else 2) * VALUE_BYTES * values


def sample_passes(kind: AnyStrategy) -> float | None:
    """Passes of each local sample in a round: 3 E, or E if only the head is trained (equations 10 and 11).

    Class means take one. None for kinds that the thesis does not have.
    """
    if isinstance(kind, ClassMeans):
        return ONE_PASS
    if not isinstance(kind, FedAvg) or type(kind) not in (FedAvg, Peft):
        return None
    return kind.epochs * (ONE_PASS if kind.trained == "head" else FORWARD_AND_BACKWARD)
