"""An own choice policy: a device on a small battery sends the update that costs least energy.

    device-runtime simulate phones --plugin examples/own_policy.py:Frugal --compare kinds=mixed,frugal

On a device: `device-runtime join .. --plugin own_policy.py:Frugal --choose frugal`. docs/own-policy.md
explains each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from device_runtime.kinds import Candidate, ChoicePolicy, DeviceProfile

BUDGET_J = 2.0
"""Joules that a round may cost."""


@dataclass(frozen=True)
class Frugal(ChoicePolicy):
    """The first update in the task's order that costs at most BUDGET_J; if none does, the cheapest."""

    name: ClassVar[str] = "frugal"
    about: ClassVar[str] = "the richest update of at most 2 J, else the one of least energy"

    def pick(self, fitting: Sequence[Candidate], profile: DeviceProfile) -> Candidate | None:
        cheap = [plan for plan in fitting if plan.cost.energy_j <= BUDGET_J]
        return cheap[0] if cheap else min(fitting, key=lambda plan: plan.cost.energy_j)
