"""Errors of simulations, each with a message of one line."""

from collections.abc import Mapping


class SimulationError(Exception):
    """Base of all errors of simulations; the command line shows each as one line."""


class RunsFailed(SimulationError):
    """Raised when runs of a comparison fail. `whys`: the reason of each, by (policy, seed)."""

    def __init__(self, whys: Mapping[tuple[str, int], str]) -> None:
        (policy, seed), why = next(iter(whys.items()))
        more = f" (and {len(whys) - 1} more)" if len(whys) > 1 else ""
        super().__init__(f"{policy}-{seed}: {why}{more}")
        self.whys = whys


class ScenarioError(SimulationError):
    """A scenario file, preset or flag that is not valid."""


class DataSetError(SimulationError):
    """Data that is missing or not in the expected format."""


class ExecutorError(SimulationError):
    """Workers that cannot be started or have died."""
