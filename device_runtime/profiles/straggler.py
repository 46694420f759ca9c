"""Who is a straggler: a property of device and task together (DESIGN, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import Cost
from .device import Memory


@dataclass(frozen=True)
class Verdict:
    """Whether a full update does not fit, and in what respect; no reasons for a device that keeps up."""

    straggler: bool
    reasons: tuple[str, ...]


def classify(full: Cost, memory: Memory, deadline_s: float) -> Verdict:
    """Judge the predicted cost of a *full* update against the deadline and the device's memory."""
    reasons = misfits(full, memory, deadline_s)
    return Verdict(bool(reasons), reasons)


def misfits(cost: Cost, memory: Memory, deadline_s: float) -> tuple[str, ...]:
    """Why an update of this cost does not fit: the time, the memory, both, or (empty) neither."""
    reasons = []
    if cost.seconds > deadline_s:
        transfer = cost.seconds - cost.compute_s
        where = "link" if transfer > cost.compute_s else "compute"
        reasons.append(f"needs {cost.seconds:.1f} s of {deadline_s:.1f} s ({where})")
    if cost.peak_memory_bytes > memory.limit_bytes:
        reasons.append(f"needs {_mb(cost.peak_memory_bytes)} MB of {_mb(memory.limit_bytes)} MB")
    return tuple(reasons)


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}"
