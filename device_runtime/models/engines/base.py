"""What an engine offers, whatever it runs on; `available` says which there are."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Graph, Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors

Inputs = NDArray[Any]  # (n, *manifest.input.shape), prepared: float32, or int64 token ids
Labels = NDArray[np.integer[Any]]  # (n,), 0 <= y < len(manifest.labels)
Matrix = NDArray[np.float32]
NO_EXTRAS: Tensors = MappingProxyType({})


@dataclass(frozen=True)
class Forward:
    """One pass: logits (n, classes) and the features the head takes (n, width)."""

    logits: Matrix
    features: Matrix


class Watch(Protocol):
    """Told of what an engine does; may refuse it, or take time over it."""

    def will_load(self, name: str, graph: Graph) -> None:
        """Before a session of graph `name` is made; whatever it raises goes to the caller."""

    def ran(self, name: str, graph: Graph, samples: int, seconds: float) -> None:
        """After each run of a batch of `samples`, which took `seconds` of wall time."""


class LossProbe(Protocol):
    """The loss as a function of parameters that are changed in place, for zeroth-order work."""

    @property
    def params(self) -> Flat:
        """This probe's own parameters; a change in place is seen by the next call."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """Mean cross-entropy in nats over all samples. Raises EngineError for wrong arrays."""


class Gradients(Protocol):
    """Back-propagation; the optimiser is the caller's, on the two flat vectors."""

    @property
    def params(self) -> Flat:
        """This trainer's own parameters; a change in place is seen by the next call."""

    @property
    def grads(self) -> Flat:
        """Gradient of the mean loss at the last call, laid out as `params`; overwritten by the next."""

    @property
    def statistics(self) -> Flat:
        """Running statistics, where training moves any; each call of `loss_and_grads` does."""

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """Mean loss over all samples; `extras` are the objective's inputs beside x and y.

        Raises EngineError for wrong arrays.
        """


class DeviceModel(Protocol):
    """A bundle ready to run. Equal inputs and weights give equal results, bit for bit, on one machine."""

    @property
    def manifest(self) -> Manifest:
        """Of the bundle."""

    @property
    def weights(self) -> Tensors:
        """Every tensor of the model; read-only."""

    def load(self, weights: Tensors) -> None:
        """New values for some or all tensors, copied; probes and trainers handed out keep theirs."""

    def unload(self) -> None:
        """Give back the memory of everything made to run the graphs; the next use makes it again."""

    def forward(self, x: Inputs) -> Forward:
        """Logits and features in one pass."""

    def logits(self, x: Inputs) -> Matrix:
        """(n, classes)."""

    def features(self, x: Inputs) -> Matrix:
        """(n, width): what the head takes."""

    def level_features(self, x: Inputs, level: str) -> NDArray[np.float32]:
        """(n, *manifest.features[level]): the feature map at the end of a level."""

    def probe(self, tunable: str = "all") -> LossProbe:
        """The loss with the parameters of a tunable set free, starting at `weights`."""

    def trainer(self, tunable: str = "all", objective: str = "train") -> Gradients:
        """The gradients of the parameters of a tunable set, starting at `weights`.

        `objective` is one of manifest.TRAINING; `train` is cross-entropy in nats.
        """
