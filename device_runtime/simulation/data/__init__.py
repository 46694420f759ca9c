"""Data sets for simulated fleets: loads them by source name and divides them among devices."""

from .dataset import DataSet
from .loading import among, divide, load
from .spec import DataSpec, GroupData

__all__ = ["DataSet", "DataSpec", "GroupData", "among", "divide", "load"]
