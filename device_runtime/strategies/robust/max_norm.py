"""Refuses updates that are further from the base than a task allows for their kind (`max_norm`)."""

from __future__ import annotations

from math import sqrt

import numpy as np

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code


def rejection_reason(kind: AnyStrategy, update: Update, base: Tensors, most: float) -> str:
    """Why an update is refused that may be at most `most` away from the base; empty if it is accepted."""
    try:
        with own_code(type(kind)):
            distance = norm(capabilities.comparable(kind, update, base).tensors, base)
    except OwnCodeError as error:
        return f"it cannot be compared with the base: {error}"
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"it cannot be compared with the base: {type(error).__name__}: {error}"
    if distance <= most:
        return ""
    return f"it is {distance:.4g} away from the base, at most {most:g} is accepted"


def norm(update: Tensors, base: Tensors) -> float:
    """The Euclidean distance from the base; for tensors that the base does not have, from zero."""
    total = 0.0
    for key, value in update.items():
        change = value.astype(np.float64)
        if key in base and base[key].shape == value.shape:
            change = change - base[key]
        total += float(np.square(change).sum())
    return sqrt(total)
