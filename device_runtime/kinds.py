"""Imports for own kinds of update, local terms, merge rules, choice policies and drawing policies.

docs/own-kind.md, docs/own-term.md and docs/own-policy.md explain it by an example each.
"""

import warnings
from typing import Any

from device_runtime.aggregator.tasks.drawing import DrawCandidate, DrawingPolicy, EarlierUpdates
from device_runtime.aggregator.tasks.participants import DeviceTraits
from device_runtime.device.selection.choose import Candidate, ChoicePolicy
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.optimizer import Adam, Sgd
from device_runtime.profiles import Cost, DeviceProfile, GraphPass, Work, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel, TensorMean
from device_runtime.strategies.interface.capabilities import (
    Comparable,
    EndsEarly,
    MergedAtSite,
    SelectsSamples,
    SendsScalars,
    Summable,
    TakesCodec,
    Traits,
)
from device_runtime.strategies.interface.device_half import LocalData, OutOfTime, Run, Update
from device_runtime.strategies.interface.kind import ClassStatistics, KindInfo, Strategy
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.registry import load, make, register
from device_runtime.strategies.merging.server_optimizer import MergeRule
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.terms.local_term import LocalTerm
from device_runtime.strategies.training.local_training import (
    GradientTerm,
    PartialEpochs,
    StartedTerm,
    TrainingPlan,
    train,
)
from device_runtime.strategies.training.workload import Training, upload_bytes, work_of_training

__all__ = [
    "Adam",
    "Candidate",
    "ChoicePolicy",
    "ClassStatistics",
    "Comparable",
    "Cost",
    "DeviceModel",
    "DeviceProfile",
    "DeviceTraits",
    "DrawCandidate",
    "DrawingPolicy",
    "EarlierUpdates",
    "EndsEarly",
    "FedAvg",
    "Flat",
    "GradientTerm",
    "GraphPass",
    "KindInfo",
    "KindResult",
    "LocalData",
    "LocalTerm",
    "Manifest",
    "MergeRule",
    "MergedAtSite",
    "OutOfTime",
    "PartialEpochs",
    "RoundModel",
    "Run",
    "SelectsSamples",
    "SendsScalars",
    "Setting",
    "Sgd",
    "StartedTerm",
    "Strategy",
    "Summable",
    "TakesCodec",
    "TensorMean",
    "TensorSpec",
    "Tensors",
    "Training",
    "TrainingPlan",
    "Traits",
    "Update",
    "Work",
    "Workload",
    "load",
    "make",
    "predict",
    "register",
    "train",
    "upload_bytes",
    "work_of_training",
]


def __getattr__(name: str) -> Any:
    """The names of the release before, each with a warning."""
    if name != "TrainedUpdate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.TrainedUpdate is called Update now", DeprecationWarning, stacklevel=2)
    return Update
