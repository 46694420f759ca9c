"""The gate before a bundle is written: every graph computes what torch computes."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import ParityError, one_line
from .manifest import Graph
from .onnx_session import Loaded, SessionSettings, load_session
from .torch_graph import external_names
from .torch_trace import Subject, forward_with_features, loss_and_gradients, losses_of, stored_tensors

BATCHES = (1, 3, 8)  # none of them the batch that was traced
SEEDS = (0, 1, 2)
ABSOLUTE = 2e-6
RELATIVE = 1e-4  # of the largest value of the tensor


_BRANCH = "look for Python code of the module that depends on the batch size, and for randomness"


@dataclass(frozen=True)
class Candidate:
    """A graph that wants into a bundle."""

    name: str
    onnx: bytes
    trainable: tuple[str, ...]

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the tensors that are initialisers."""
        return external_names(self.onnx)


def check_parity(subject: Subject, candidate: Candidate, classes: int) -> float:
    """The worst difference found, relative to each tensor's largest value.

    Inputs are standard normal, labels uniform; seed 0 has the module's own weights, the others weights with
    noise, since norm weights that are all 1 would hide mistakes. Raises ParityError with graph, tensor,
    batch, seed and difference if a difference exceeds ABSOLUTE + RELATIVE * largest.
    """
    worst = 0.0
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        tensors = _disturbed(subject, generator) if seed else stored_tensors(subject.module)
        loaded = _loaded(candidate, tensors)
        for batch in BATCHES:
            x = torch.randn((batch, *subject.example.shape[1:]), generator=generator)
            y = torch.randint(classes, (batch,), generator=generator)
            where = f"graph {candidate.name}, batch {batch}, seed {seed}"
            try:
                expected = _torch_outputs(subject, candidate, (x, y), tensors)
                found = _onnx_outputs(loaded, x, y, tensors)
            except Exception as error:  # the module's own code runs here
                raise ParityError(f"{where}: {one_line(error)}; {_BRANCH}") from error
            worst = max(worst, _compare(where, found, expected))
    return worst


def _disturbed(subject: Subject, generator: torch.Generator) -> dict[str, Tensor]:
    parameters = dict(subject.module.named_parameters())
    result = {}
    for name, tensor in stored_tensors(subject.module).items():
        if name in parameters:
            result[name] = tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        else:  # running statistics: a variance must stay positive
            result[name] = tensor * (1 + 0.1 * torch.rand(tensor.shape, generator=generator))
    return result


def _loaded(candidate: Candidate, tensors: Mapping[str, Tensor]) -> Loaded:
    frozen = {name: tensors[name].contiguous().numpy() for name in candidate.frozen}
    nothing_known = Graph("", "", 0, candidate.trainable, 0, 0, 0)
    return load_session(candidate.name, nothing_known, candidate.onnx, frozen, SessionSettings())


def _onnx_outputs(
    loaded: Loaded, x: Tensor, y: Tensor, tensors: Mapping[str, Tensor]
) -> dict[str, NDArray[Any]]:
    inputs = {"x": x.numpy()} | {name: tensors[name].numpy() for name in loaded.graph.trainable}
    if loaded.name != "forward":
        inputs["y"] = y.numpy()
    names = [output.name for output in loaded.session.get_outputs()]
    return dict(zip(names, loaded.run(names, inputs), strict=True))


def _torch_outputs(
    subject: Subject, candidate: Candidate, batch: tuple[Tensor, Tensor], tensors: Mapping[str, Tensor]
) -> dict[str, NDArray[Any]]:
    x, y = batch
    values: Sequence[Tensor]
    with torch.no_grad():
        if candidate.name == "forward":
            values = forward_with_features(subject, x, tensors)
            return dict(zip(("logits", "features"), (v.numpy() for v in values), strict=True))
        if candidate.name.startswith("loss."):
            return {"losses": losses_of(subject, x, y, tensors).numpy()}
        loss, grads = loss_and_gradients(subject, x, y, candidate.trainable, tensors)
    named = {f"grad.{name}": g.numpy() for name, g in zip(candidate.trainable, grads, strict=True)}
    return {"loss": loss.numpy(), **named}


def _compare(where: str, found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> float:
    if found.keys() != expected.keys():
        raise ParityError(f"{where}: outputs are {sorted(found)}, expected {sorted(expected)}")
    worst = {name: _difference(where, name, found[name], value) for name, value in expected.items()}
    name = max(worst, key=lambda n: worst[n] if np.isfinite(worst[n]) else np.inf)
    if not worst[name] <= 1:
        largest = float(np.abs(expected[name]).max())
        off = float(np.abs(found[name].astype(np.float64) - expected[name]).max())
        raise ParityError(
            f"{where}: {name} differs from torch by {off:.2g} where the largest value is {largest:.2g}; "
            f"at most {ABSOLUTE:g} + {RELATIVE:g} of it is accepted; {_BRANCH}"
        )
    return worst[name] * RELATIVE


def _difference(where: str, name: str, found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference in units of what is accepted."""
    if found.shape != expected.shape:
        raise ParityError(f"{where}: {name} is {found.shape}, torch gives {expected.shape}; {_BRANCH}")
    if expected.size == 0:
        return 0.0
    off = float(np.abs(found.astype(np.float64) - expected).max())
    return off / (ABSOLUTE + RELATIVE * float(np.abs(expected).max()))
