"""Data sets for simulated fleets: sources by name, and their division among devices."""

from .dataset import DataSet
from .loading import among, divide, load
from .spec import DataSpec, GroupData

__all__ = ["DataSet", "DataSpec", "GroupData", "among", "divide", "load"]
