"""Dividing a labelled data set among devices: every function gives, for each device, sorted indices int64.

All draws come from the generator that is passed in. No sample is given out twice, unless asked for.
"""

from .methods import Sizes, apportioned, classes, dirichlet, dirichlet_by_class, iid, natural, shards

__all__ = ["Sizes", "apportioned", "classes", "dirichlet", "dirichlet_by_class", "iid", "natural", "shards"]
