"""Errors of simulations, each with a message of one line."""


class SimulationError(Exception):
    """Base of all errors of simulations; the command line shows each as one line."""


class ScenarioError(SimulationError):
    """A scenario file, preset or flag that is not valid."""


class DataSetError(SimulationError):
    """Data that is missing or not in the expected format."""


class ExecutorError(SimulationError):
    """Workers that cannot be started or have died."""
