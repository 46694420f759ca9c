"""Dividing a labelled data set among devices: every function gives, for each device, sorted indices int64.

All draws come from the generator that is passed in. No sample is given out twice, unless asked for.
"""

from .mixtures import dirichlet, dirichlet_by_class, iid
from .natural import natural
from .quantity import Sizes, apportioned
from .shards import classes, shards

__all__ = ["Sizes", "apportioned", "classes", "dirichlet", "dirichlet_by_class", "iid", "natural", "shards"]
