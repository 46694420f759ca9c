"""Checks that every graph computes what torch computes, before a bundle is written."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_runtime.models.bundles.manifest import ORT_TRAINING, Extra, Graph
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.engines.blocked.layers import load_blocked
from device_runtime.models.engines.onnx_session import LoadedGraph, SessionSettings, load_session
from device_runtime.models.errors import BundleError, EngineError, ParityError, one_line
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    run,
    statistics,
    stored_tensors,
    with_batch_statistics,
)
from device_runtime.models.torch_modules.objectives import (
    GraphInputs,
    loss_and_gradients,
    losses_of,
    output_sizes,
)

from .graph import external_names

BATCHES = (1, 5)  # other sizes than the batch that was traced
BATCHES_OF_STATISTICS = (2, 5)  # with batch statistics: one sample alone may have no variance
SEEDS = (0, 1, 2, 3, 4)
SEEDS_BLOCKED = (1, 2)
NOISE = 0.05  # noise on weights, as a fraction of the tensor's root mean square, or absolute if that is 0
ABSOLUTE = 2e-6  # accepted difference, as a fraction of the output's largest value, or of all gradients'
RELATIVE = 1e-4  # accepted difference, as a fraction of the tensor's largest value

NUDGE = 1e-6  # relative change of the weights, about the effect of rounding over a few layers
# Accepted difference on top, over torch's own mean change under a nudge: a value next to the kink of a ReLU
# may fall on either side.
KINKS = 4
FEWEST_NUDGES, MOST_NUDGES = 4, 32  # a nudge moves such a value across with chance 1/2, so four may miss it
TINY = float(np.finfo(np.float32).tiny)  # so that zeros can be compared

Outputs = Mapping[str, NDArray[Any]]

_BRANCH = "look for Python code of the module that depends on the batch size"


@dataclass(frozen=True)
class GraphCandidate:
    """A graph to be checked for a bundle; `norms` are its layers that use batch statistics."""

    name: str
    onnx: bytes
    trainable: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    norms: tuple[str, ...] = ()

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the model's tensors that are initialisers."""
        return external_names(self.onnx)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics that the graph updates."""
        return statistics(self.norms)


def check_parity(subject: FunctionalModule, candidate: GraphCandidate) -> float:
    """Compares a graph with torch; returns the worst difference that there is.

    It is a fraction of the tensor's largest value; of a gradient, with 2% of the largest gradient added.

    Inputs and targets are standard normal (token ids, labels and flags uniform). Seed 0 has the module's own
    weights, the other seeds weights with noise, since norm weights that are all 1 would hide mistakes. torch
    computes with its own operators. Accepted is a difference of ABSOLUTE + RELATIVE, plus KINKS times the
    change of torch's own result when the weights change by about a rounding. Raises ParityError, with graph,
    tensor, batch, seed and difference, for a larger one.
    """
    worst = 0.0
    subject = with_batch_statistics(subject, candidate.norms)
    classes = output_sizes(subject).classes
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        tensors = _noisy_weights(subject, generator) if seed else stored_tensors(subject.module)
        loaded = load_session(
            candidate.name, _graph(candidate), candidate.onnx, _frozen(candidate, tensors), SessionSettings()
        )
        for batch in BATCHES_OF_STATISTICS if candidate.norms else BATCHES:
            y = random_targets(subject.loss.target, classes, batch, generator)
            extras = _random_extras(candidate.extras, batch, generator)
            inputs = GraphInputs(random_inputs(subject.example, batch, generator), y, extras, tensors)
            where = f"graph {candidate.name}, batch {batch}, seed {seed}"
            try:
                expected = _torch_outputs(subject, candidate, inputs)
                outputs = _onnx_outputs(loaded, candidate, inputs)
            except Exception as error:  # the module's own code runs here
                raise ParityError(f"{where}: {one_line(error)}; {_BRANCH}") from error
            worst = max(worst, _compare(where, outputs, expected, _shaken(subject, candidate, inputs)))
    return worst


def check_blocked(subject: FunctionalModule, candidate: GraphCandidate) -> None:
    """Compares a training graph with torch in the blocked layout, if the ONNX Runtime at hand has it.

    Raises ParityError as `check_parity` does.
    """
    batch = BATCHES[-1]
    subject = with_batch_statistics(subject, candidate.norms)
    classes = output_sizes(subject).classes
    for seed in SEEDS_BLOCKED:
        generator = torch.Generator().manual_seed(seed)
        tensors = _noisy_weights(subject, generator)
        where = f"graph {candidate.name} in the blocked layout, batch {batch}, seed {seed}"
        try:
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            shapes["x"] = tuple(subject.example.shape[1:])
            state = _frozen(candidate, tensors), shapes
            loaded = load_blocked(
                candidate.name, _graph(candidate), candidate.onnx, state, batch, SessionSettings()
            )
            if loaded is None:
                return
            y = random_targets(subject.loss.target, classes, batch, generator)
            extras = _random_extras(candidate.extras, batch, generator)
            inputs = GraphInputs(random_inputs(subject.example, batch, generator), y, extras, tensors)
            outputs = _onnx_outputs(loaded, candidate, inputs)
        except (BundleError, EngineError) as error:
            raise ParityError(f"{where}: {error}") from error
        expected = _torch_outputs(subject, candidate, inputs)
        _compare(where, outputs, expected, _shaken(subject, candidate, inputs))


def random_inputs(example: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """A random input of this batch size; token ids are drawn from those of the example."""
    if example.dtype == torch.int64:
        ids = example.flatten()
        return ids[torch.randint(len(ids), (batch, *example.shape[1:]), generator=generator)]
    return torch.randn((batch, *example.shape[1:]), generator=generator)


def random_targets(target: TargetSpec, classes: int, batch: int, generator: torch.Generator) -> Tensor:
    """Random targets y of this batch size."""
    shape = (batch, *target.shape)
    if target.compared == "values":
        return torch.randn(shape, generator=generator)
    if target.compared == "flags":
        return torch.randint(2, shape, generator=generator).to(torch.float32)
    return torch.randint(classes, shape, generator=generator)


def _random_extras(extras: Sequence[Extra], batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random extra inputs: tensors are standard normal, scalars between 0.5 and 1."""
    drawn = {}
    for extra in extras:
        shape = (batch, *extra.shape) if extra.per_sample else extra.shape
        normal = torch.randn(shape, generator=generator)
        drawn[extra.name] = normal if shape else 0.5 + 0.5 * torch.rand(shape, generator=generator)
    return drawn


def _noisy_weights(subject: FunctionalModule, generator: torch.Generator) -> dict[str, Tensor]:
    parameters = dict(subject.module.named_parameters())
    result = {}
    for name, tensor in stored_tensors(subject.module).items():
        if name in parameters:
            size = float(tensor.square().mean().sqrt()) or 1.0
            result[name] = tensor + NOISE * size * torch.randn(tensor.shape, generator=generator)
        elif tensor.dtype == torch.float32:  # running statistics: a variance must stay positive
            result[name] = tensor * (1 + 0.1 * torch.rand(tensor.shape, generator=generator))
        else:
            result[name] = tensor
    return result


def _graph(candidate: GraphCandidate) -> Graph:
    return Graph("", "", 0, candidate.trainable, 0, 0, 0, candidate.frozen, candidate.statistics)


def _frozen(candidate: GraphCandidate, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensors[name].contiguous().numpy() for name in candidate.frozen}


def _onnx_outputs(loaded: LoadedGraph, candidate: GraphCandidate, inputs: GraphInputs) -> Outputs:
    """The graph's outputs by name. ONNX Runtime refuses a graph with other inputs than these."""
    tensors = {name: inputs.tensors[name] for name in (*candidate.trainable, *candidate.statistics)}
    labels = {} if candidate.name.startswith(("forward", "features")) else {"y": inputs.y}
    tensors |= {"x": inputs.x, **labels, **inputs.extras}
    feed = {name: value.numpy() for name, value in tensors.items()}
    names = [output.name for output in loaded.session.get_outputs()]
    return dict(zip(names, loaded.run(names, feed), strict=True))


def _torch_outputs(subject: FunctionalModule, candidate: GraphCandidate, inputs: GraphInputs) -> Outputs:
    kind, _, of = candidate.name.partition(".")
    with torch.no_grad():
        if kind in ("forward", "features"):
            passed = run(subject, inputs.x, inputs.tensors)
            if of:
                return {"features": passed.maps[of].numpy()}
            return {"logits": passed.logits.numpy(), "features": passed.features.numpy()}
        if kind == "loss":
            return {"losses": losses_of(subject, inputs).numpy()}
        moving = {name: inputs.tensors[name].clone() for name in candidate.statistics}
        inputs = replace(inputs, tensors={**inputs.tensors, **moving})
        objective = "train" if kind == ORT_TRAINING else kind
        loss, grads = loss_and_gradients(subject, objective, inputs, candidate.trainable)
    named = {f"grad.{name}": g.numpy() for name, g in zip(candidate.trainable, grads, strict=True)}
    return {"loss": loss.numpy(), **named, **{f"next.{name}": t.numpy() for name, t in moving.items()}}


def _compare(where: str, graph: Outputs, expected: Outputs, nudged: Iterator[Outputs]) -> float:
    """The worst relative difference.

    `nudged` are torch's results once more, then with weights changed by about a rounding. Raises ParityError
    if a difference is not accepted.
    """
    if graph.keys() != expected.keys():
        raise ParityError(f"{where}: outputs are {sorted(graph)}, expected {sorted(expected)}")
    for name, value in expected.items():
        if graph[name].shape != value.shape:
            raise ParityError(f"{where}: {name} is {graph[name].shape}, torch gives {value.shape}; {_BRANCH}")
    rounding = {
        name: max(TINY, ABSOLUTE * scale + RELATIVE * _largest(expected[name]))
        for name, scale in _scales(expected)
    }
    off = {name: _largest_difference(graph[name], value) for name, value in expected.items()}
    for accepted in chain([rounding], _wider_tolerances(where, rounding, expected, nudged)):
        excess = {name: value / accepted[name] for name, value in off.items()}
        if all(value <= 1 for value in excess.values()):
            return max(value / rounding[name] for name, value in off.items()) * RELATIVE
    name = max(excess, key=lambda n: excess[n] if np.isfinite(excess[n]) else np.inf)
    raise ParityError(
        f"{where}: {name} differs from torch by {off[name]:.2g} where the largest value is "
        f"{_largest(expected[name]):.2g}; "
        f"at most {accepted[name]:.2g} is accepted; {_BRANCH}"
    )


def _wider_tolerances(
    where: str, rounding: Mapping[str, float], expected: Outputs, nudged: Iterator[Outputs]
) -> Iterator[Mapping[str, float]]:
    """Accepted differences after four nudges, then after each further one.

    The first of `nudged` has no nudge: it must be what torch gave before. Raises ParityError otherwise, since
    then a change under a nudge is noise of the network, which no tolerance may grow with.
    """
    again = next(nudged)
    for name, most in rounding.items():
        if _largest_difference(again[name], expected[name]) > most:
            raise ParityError(f"{where}: torch gives {name} that differ between two runs on equal inputs")
    moved = dict.fromkeys(expected, 0.0)
    for count, other in enumerate(nudged, start=1):
        for name, value in expected.items():
            moved[name] += _largest_difference(other[name], value)
        if count >= FEWEST_NUDGES:
            yield {name: most + KINKS / count * moved[name] for name, most in rounding.items()}


def _shaken(subject: FunctionalModule, candidate: GraphCandidate, inputs: GraphInputs) -> Iterator[Outputs]:
    for nudged in chain([inputs], _nudged(inputs)):
        yield _torch_outputs(subject, candidate, nudged)


def _scales(expected: Outputs) -> Iterator[tuple[str, float]]:
    """The largest value of each output, or of all gradients together for a gradient.

    Rounding leaves errors of that order where a gradient is 0.
    """
    gradients = max((_largest(v) for name, v in expected.items() if name.startswith("grad.")), default=0.0)
    for name, value in expected.items():
        yield name, gradients if name.startswith("grad.") else _largest(value)


def _nudged(inputs: GraphInputs) -> Iterator[GraphInputs]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(MOST_NUDGES):
        moved = {
            name: t * (1 + NUDGE * torch.randn(t.shape, generator=generator)) if t.is_floating_point() else t
            for name, t in inputs.tensors.items()
        }
        yield replace(inputs, tensors=moved)


def _largest(value: NDArray[Any]) -> float:
    return float(np.abs(value).max()) if value.size else 0.0


def _largest_difference(output: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(output.astype(np.float64) - expected).max()) if expected.size else 0.0
