"""An own local term: decays the weights towards zero by their sign, as in L1 regularisation.

    device-runtime simulate my-scenario.toml --plugin examples/own_term.py:Sparse

with `settings = { terms.sparse.weight = 1e-4 }` in a kind of the task. docs/own-term.md explains each part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from device_runtime.kinds import Flat, LocalTerm, Run, Setting, TrainingPlan


@dataclass(frozen=True)
class Sparse(LocalTerm):
    """weight * ||w||_1 over all trained parameters (Tibshirani 1996): gradient weight * sign(w)."""

    name: ClassVar[str] = "sparse"
    about: ClassVar[str] = "draws small weights to zero (L1: Tibshirani 1996)"
    weight: Annotated[float, Setting("Weight of the term.", 1e-3, more_than=0)] = 1e-4

    def apply(self, plan: TrainingPlan, model: Any, data: Any, run: Run) -> TrainingPlan:
        return replace(plan, gradients=(*plan.gradients, self))

    def start(self, params: Flat) -> Sparse:
        """The term for one training; it keeps nothing between steps."""
        return self

    def add(self, params: Flat, grads: Flat) -> None:
        """Add the term's gradient to that of the step."""
        grads.vector += np.float32(self.weight) * np.sign(params.vector)
