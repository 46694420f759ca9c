"""What can be wrong with a simulation, always said in one line."""


class SimulationError(Exception):
    """Base of the errors here; each becomes one line on the command line."""


class ScenarioError(SimulationError):
    """A scenario file, preset or flag that cannot be meant."""


class DataSetError(SimulationError):
    """Data that is not there, or does not read as what it is said to be."""


class ExecutorError(SimulationError):
    """Workers that cannot be started, or are gone."""
