"""Makes the messages that report a device's plan and its contribution."""

from __future__ import annotations

from math import ceil, isnan, nan
from typing import TYPE_CHECKING

from device_runtime.broker.wire.messages import Blob, Contribution, Hello, Mask, Metrics, Offer, Plan

if TYPE_CHECKING:
    from device_runtime.device.training.work import Decision, WorkOutcome


def bare_hello(boot: int) -> Hello:
    """The hello before the task is known here: `num_examples` 0 says that the device is not ready."""
    return Hello(boot=boot, num_examples=0, profile="", memory_bytes=0, engine="")


def plan_message(offer: Offer, decision: Decision) -> Plan:
    """The decision and its reasons; kind "" when the device sits out."""
    chosen = decision.plan.chosen
    cost = chosen.cost if chosen else None
    return Plan(
        task=offer.task,
        round=offer.round,
        kind=chosen.label if chosen else "",
        seconds=cost.seconds if cost else 0.0,
        memory_bytes=cost.peak_memory_bytes if cost else 0,
        energy_j=cost.energy_j if cost else 0.0,
        reasons=decision.reasons,
    )


def sat_out_plan(task: str, number: int, reasons: tuple[str, ...]) -> Plan:
    """The plan of a device that trains nothing in a round, for these reasons."""
    return Plan(task=task, round=number, kind="", seconds=0.0, memory_bytes=0, energy_j=0.0, reasons=reasons)


def contribution_message(
    offer: Offer, outcome: WorkOutcome, body: bytes | Blob, mask: Mask | None = None
) -> Contribution:
    """The contribution with its content inline, or its blob; the sender fills in boot and seq.

    The loss of a masked update is part of its content. Raises ValueError for an outcome without an update.
    """
    update = outcome.update
    if update is None:
        raise ValueError("nothing was contributed")
    return Contribution(
        task=offer.task,
        run=offer.run,
        round=offer.round,
        boot=0,
        seq=0,
        kind=update.kind,
        num_examples=update.num_examples,
        metrics=Metrics(
            train_loss=update.train_loss if mask is None else nan,
            train_time_ms=round(1e3 * outcome.train_time_s),
            energy_mj=round(1e3 * outcome.energy_j),
            peak_memory_kib=outcome.peak_memory_bytes // 1024,
            energy_source=outcome.energy.source if outcome.energy.is_measured else "",
            energy_off_percent=max(1, round(100 * outcome.energy.uncertainty)),
            epsilon_milli=0 if isnan(outcome.epsilon) else ceil(1000 * outcome.epsilon),
        ),
        body=body if isinstance(body, bytes) else b"",
        blob=body if isinstance(body, Blob) else None,
        form=update.variant,
        mask=mask,
    )
