"""From a torch module to a bundle: trace, write graphs, compare with torch, measure, then write."""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from . import bundle as bundles
from .errors import ExportError, one_line
from .manifest import (
    LEVELS_OF,
    TUNABLE_SETS,
    File,
    Graph,
    Head,
    InputSpec,
    Level,
    Manifest,
    Parameter,
    Tunable,
)
from .onnx_work import measure_work
from .torch_graph import convert, to_onnx, with_inputs
from .torch_levels import Layout, find_head, lay_out
from .torch_parity import Candidate, check_parity
from .torch_trace import (
    TRACED_BATCH,
    HeadUnused,
    Subject,
    forward_with_features,
    stored_tensors,
    trace_forward,
    trace_gradients,
    trace_losses,
)

_ADVICE = {
    "modified by an inplace operation": "the module changes in place a value that its gradient needs; "
    "write x = x * 2 for x *= 2, and relu(x) for x.relu_()",
    "data-dependent": "the module's Python code branches on values of its input; use torch.where instead",
}
"""What to do about an error of torch that has this in its message."""


@dataclass(frozen=True)
class ExportSpec:
    """What a bundle says that the module does not know."""

    name: str
    input: InputSpec
    labels: tuple[str, ...]
    head: str | None = None  # name of the nn.Linear that gives the logits; the last one if None
    levels: Mapping[str, str] | None = None  # prefix of a parameter's name -> low, mid, up or head


@dataclass(frozen=True)
class Checked:
    """A graph that has passed the parity gate, and the worst difference found, as `check_parity` gives it."""

    name: str
    bytes: int
    worst: float


def export(
    module: nn.Module, spec: ExportSpec, folder: Path, report: Callable[[Checked], None] = lambda graph: None
) -> bundles.Bundle:
    """Writes the bundle into `folder` and opens it; `report` is told of each graph that passed.

    The module is exported in eval mode, also for training: no dropout, BatchNorm with fixed statistics.
    Raises ExportError for a module that cannot be traced, ParityError if a graph does not compute what
    torch computes; then nothing has been written.
    """
    module = copy.deepcopy(module).eval()
    subject = Subject(module, find_head(module, spec.head), _example(spec.input))
    width = _checked_width(subject, spec)
    parameters = _parameters(module, lay_out(module, subject.head, spec.levels))
    graphs: dict[str, Graph] = {}
    files: dict[str, bytes] = {}
    for candidate in _candidates(subject, parameters):
        worst = check_parity(subject, candidate, len(spec.labels))
        work = measure_work(candidate.onnx)
        files[candidate.name] = candidate.onnx
        graphs[candidate.name] = Graph(
            f"{candidate.name}.onnx", "", len(candidate.onnx), candidate.trainable,
            work.flops, work.fixed_bytes, work.bytes_per_sample, candidate.frozen,
        )  # fmt: skip
        report(Checked(candidate.name, len(candidate.onnx), worst))
    manifest = Manifest(
        name=spec.name,
        input=spec.input,
        labels=spec.labels,
        parameters=parameters,
        features={"head": (width,)},
        head=_head(subject, width),
        graphs=graphs,
        weights=File("", "", 0),
        producer=f"torch {torch.__version__.partition('+')[0]}",
    )
    weights = {name: tensor.contiguous().numpy() for name, tensor in stored_tensors(module).items()}
    return bundles.write(folder, manifest, weights, files)


def _example(spec: InputSpec) -> torch.Tensor:
    return torch.randn((TRACED_BATCH, *spec.shape), generator=torch.Generator().manual_seed(0))


def _checked_width(subject: Subject, spec: ExportSpec) -> int:
    """Width of the features. Raises ExportError unless head(features) are the logits of all labels."""
    tensors = stored_tensors(subject.module)
    if other := [f"{n} is {t.dtype}" for n, t in tensors.items() if t.dtype != torch.float32]:
        raise ExportError(f"{other[0]}; only torch.float32 can be exported")
    try:
        with torch.no_grad():
            logits, features = forward_with_features(subject, subject.example, tensors)
    except HeadUnused:
        raise ExportError(f"the module never calls its head {subject.head}; name the one it calls") from None
    except Exception as error:
        raise ExportError(f"the module fails on {tuple(subject.example.shape)}: {one_line(error)}") from error
    if not isinstance(logits, torch.Tensor):
        raise ExportError(f"the module returns a {type(logits).__name__}, expected the logits alone")
    if features.dim() != 2:
        raise ExportError(f"head {subject.head} is given {tuple(features.shape)}, expected (n, width)")
    with torch.no_grad():
        from_head = subject.module.get_submodule(subject.head)(features)
    if logits.shape != from_head.shape or not torch.allclose(logits, from_head):
        raise ExportError(
            f"what the module returns are not the logits of its head {subject.head}; name the right one"
        )
    if logits.shape[1] != len(spec.labels):
        raise ExportError(f"head {subject.head} gives {logits.shape[1]} logits for {len(spec.labels)} labels")
    return int(features.shape[1])


def _parameters(module: nn.Module, layout: Layout) -> tuple[Parameter, ...]:
    free = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not free:
        raise ExportError("no parameter of the module has requires_grad=True, so there is nothing to train")

    def sets(name: str, level: Level) -> tuple[Tunable, ...]:
        chosen = [s for s in TUNABLE_SETS if name in free and level in LEVELS_OF[s]]
        return cast(tuple[Tunable, ...], tuple(chosen))

    return tuple(
        Parameter(name, tuple(tensor.shape), "float32", layout.levels[name], sets(name, layout.levels[name]))
        for name, tensor in stored_tensors(module).items()
    )


def _candidates(subject: Subject, parameters: tuple[Parameter, ...]) -> Iterator[Candidate]:
    """forward, then loss and train for each tunable set that has parameters."""
    with _export_errors("forward"):
        forward = to_onnx(trace_forward(subject), ())
    yield Candidate("forward", forward, ())
    with _export_errors("loss"):
        loss = trace_losses(subject)
        converted = convert(loss)
    for tunable in TUNABLE_SETS:
        names = tuple(parameter.name for parameter in parameters if tunable in parameter.sets)
        if not names:
            continue
        yield Candidate(f"loss.{tunable}", with_inputs(converted, loss, names), names)
        with _export_errors(f"train.{tunable}"):
            gradients = to_onnx(trace_gradients(subject, names), names)
        yield Candidate(f"train.{tunable}", gradients, names)


@contextmanager
def _export_errors(graph: str) -> Iterator[None]:
    """Tracing runs the user's module: anything can come out of it."""
    try:
        yield
    except Exception as error:
        text = one_line(error)
        advice = next((say for part, say in _ADVICE.items() if part in text), text)
        raise ExportError(f"graph {graph} cannot be exported: {advice}") from error


def _head(subject: Subject, width: int) -> Head:
    has_bias = subject.module.get_submodule(subject.head).bias is not None
    return Head(f"{subject.head}.weight", f"{subject.head}.bias" if has_bias else None, width)
