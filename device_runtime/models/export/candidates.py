"""The graphs of a bundle: each traced as seldom as possible, and cut out of what was traced."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import nn

from device_runtime.models.bundles.manifest import ABOVE, ORT_TRAINING
from device_runtime.models.errors import ExportError, one_line

from .graph import convert, part, to_onnx
from .parity import Candidate
from .subject import Subject, batch_norms, statistics, training
from .trace import trace_features, trace_forward, trace_losses, trace_training, trainable_sets

_ADVICE = {
    "modified by an inplace operation": "the module changes in place a value that its gradient needs; "
    "write x = x * 2 for x *= 2, and relu(x) for x.relu_()",
    "data-dependent": "the module's Python code branches on values of its input; use torch.where instead",
}
"""What to do about an error of torch that has this in its message."""


@dataclass(frozen=True)
class Wanted:
    """What a bundle is to have: tunable sets with the names that each trains, objectives, feature maps."""

    sets: Mapping[str, tuple[str, ...]]
    objectives: tuple[str, ...]
    features: tuple[str, ...]
    batch_statistics: bool  # in layers whose own parameters are trained
    ort_training: bool = False  # graphs for the engine onnxruntime-training, too


def candidates(subject: Subject, wanted: Wanted) -> Iterator[Candidate]:
    """forward, the feature maps, then loss and the training graphs of each tunable set."""
    with export_errors("forward"):
        forward = to_onnx(trace_forward(subject))
    yield Candidate("forward", forward)
    for level in wanted.features:
        if level not in subject.outputs:
            raise ExportError(f"graph features.{level} needs the submodule at the end of that level: name it")
        with export_errors(f"features.{level}"):
            onnx = to_onnx(trace_features(subject, level))
        yield Candidate(f"features.{level}", onnx)
    yield from _losses(subject, wanted)
    for objective in wanted.objectives:
        for norms, sets in _alike(subject, _with_reached_sets(subject, wanted, objective)).items():
            yield from _training(training(subject, norms), objective, norms, sets)
    if wanted.ort_training:
        from .ort_training import training_graph

        for norms, sets in _alike(subject, wanted).items():
            for tunable, names in sets.items():
                onnx = training_graph(training(subject, norms), names)
                yield Candidate(f"{ORT_TRAINING}.{tunable}", onnx, names, norms=norms)


def _with_reached_sets(subject: Subject, wanted: Wanted, objective: str) -> Wanted:
    """Without the sets that hold something below the level on whose feature maps the objective trains."""
    if objective not in ABOVE:
        return wanted
    with export_errors(objective):
        sets = trainable_sets(subject, objective, wanted.sets)
    if not sets:
        known = ", ".join(wanted.sets)
        raise ExportError(
            f"objective {objective} trains what is above a level, such as tunable set {ABOVE[objective]}; "
            f"none of {known} is all above it"
        )
    return replace(wanted, sets=sets)


def _losses(subject: Subject, wanted: Wanted) -> Iterator[Candidate]:
    with export_errors("loss"):
        traced = trace_losses(subject)
        converted = convert(traced)
    for tunable, names in wanted.sets.items():
        yield Candidate(f"loss.{tunable}", part(converted, traced, names, ("losses",)), names)


def _training(
    subject: Subject, objective: str, norms: tuple[str, ...], sets: Mapping[str, tuple[str, ...]]
) -> Iterator[Candidate]:
    """One trace with the gradients of all sets; each set's graph is what its own gradients need of it."""
    together = tuple(dict.fromkeys(name for names in sets.values() for name in names))
    moved = statistics(norms)
    with export_errors(f"{objective}.{'/'.join(sets)}"):
        traced = trace_training(subject, objective, together)
        converted = convert(traced)
    for tunable, names in sets.items():
        outputs = ("loss", *(f"grad.{name}" for name in names), *(f"next.{name}" for name in moved))
        onnx = part(converted, traced, (*names, *moved), outputs)
        yield Candidate(f"{objective}.{tunable}", onnx, names, traced.outputs.extras, norms)


def _alike(subject: Subject, wanted: Wanted) -> dict[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The sets by the layers that use batch statistics when they are trained."""
    alike: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    for tunable, names in wanted.sets.items():
        norms = _trained_norms(subject.module, names) if wanted.batch_statistics else ()
        alike.setdefault(norms, {})[tunable] = names
    return alike


def _trained_norms(module: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(norm for norm in batch_norms(module) if f"{norm}.weight" in names or f"{norm}.bias" in names)


def _first_cause(error: BaseException) -> BaseException:
    """The exporter wraps what went wrong into pages of advice about itself."""
    return _first_cause(error.__cause__) if error.__cause__ is not None else error


@contextmanager
def export_errors(graph: str) -> Iterator[None]:
    """Tracing runs the user's module: anything can come out of it."""
    try:
        yield
    except Exception as error:
        text = one_line(_first_cause(error))
        advice = next((say for part, say in _ADVICE.items() if part in text), text)
        raise ExportError(f"graph {graph} cannot be exported: {advice}") from error
