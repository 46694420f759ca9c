"""Divides a labelled data set among devices: IID, Dirichlet, shards, few classes, or natural clients.

Every function returns sorted indices int64 for each device. All draws come from the generator that is passed
in. No sample is given to two devices, unless `reuse` asks for it.
"""

from .methods import Sizes, apportioned, classes, dirichlet, dirichlet_by_class, iid, natural, shards

__all__ = ["Sizes", "apportioned", "classes", "dirichlet", "dirichlet_by_class", "iid", "natural", "shards"]
