"""The interface of an own merge rule: how the base follows the mean of a round's updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.plugins import Plugin


class MergeRule(Plugin, ABC):
    """A frozen dataclass whose fields are its settings, given in the `settings` of a task's `server`."""

    registry: ClassVar[dict[str, Any]] = {}
    about: ClassVar[str] = "own merge rule"

    @abstractmethod
    def step(self, base: Tensors, mean: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        """The tensors of `mean` after a step from `base` towards it, and the memory for the next round.

        Arguments are not changed. `memory` is what the last step returned, {} in the first round.
        """
