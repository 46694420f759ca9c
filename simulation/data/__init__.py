"""Data sets for simulated fleets: sources by name, and their division among devices."""

from .dataset import DataSet
from .divide import divide
from .loading import load
from .spec import DataSpec

__all__ = ["DataSet", "DataSpec", "divide", "load"]
