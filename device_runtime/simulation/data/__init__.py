"""Data sets for simulated fleets: loads them by source name and divides them among devices."""

from .dataset import DataSet
from .loading import divide, divide_fleet, load
from .spec import DataSpec, GroupData

__all__ = ["DataSet", "DataSpec", "GroupData", "divide", "divide_fleet", "load"]
