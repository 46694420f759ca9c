"""Reports on a device's samples to its owner: classes, formats, skipped files, odd values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from device_runtime.models.bundles.inputs import InputSpec, TextInput, WindowInput

from .cells import first_of
from .local_samples import LocalSamples
from .model_check import RELABEL, ModelCheck
from .pictures import is_picture, white
from .sound import is_sound
from .units import SkippedSamples

BAR = 30
FEW = 10
"""Fewer samples are said to be few."""
FORMS = 10


@dataclass(frozen=True)
class Class:
    """A label of the task, and the number of samples with it."""

    label: str
    samples: int


@dataclass(frozen=True)
class TargetColumn:
    """A column of targets, and its values in original units."""

    name: str
    least: float
    mean: float
    largest: float


@dataclass(frozen=True)
class SamplesReport:
    """A report on the samples of a source.

    stored: number of samples by format.
    memory_bytes: of all samples, prepared.
    takes: how a picture, a sound or a text becomes the input.
    filled: number of texts that fill the input or are cut to fit it; None if the input is not text.
    values: the least and the largest raw value.
    doubt: a warning if the values seem wrongly scaled; empty if not.
    notes: what was decided by default in reading files.
    targets: in place of `classes`, where the task's targets have columns.
    model: what a trained model makes of the samples; None if there is none, or it cannot say.
    judged_by: which task and which model the samples are held against; empty if only the bundle is known.
    task: what that task is for, what people give, and whether its aggregator is away; may be empty.
    labels: the task's, where targets are classes.
    """

    place: str
    bundle: str
    samples: int
    held_out: int
    classes: tuple[Class, ...]
    stored: dict[str, int]
    skipped: tuple[SkippedSamples, ...]
    memory_bytes: int
    takes: str
    filled: int | None = None
    values: tuple[float, float] | None = None
    doubt: str = ""
    targets: tuple[TargetColumn, ...] = ()
    model: ModelCheck | None = None
    notes: tuple[str, ...] = ()
    judged_by: str = ""
    task: str = ""
    labels: tuple[str, ...] = ()

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do before the device joins with these samples, most pressing first."""
        todo = []
        of_labels = [entry for entry in self.skipped if "label" in entry.reason]
        if self.labels and of_labels and (not self.samples or sum(e.count for e in of_labels) > self.samples):
            todo.append(f"the task's labels are {first_of(self.labels, 12)}: {RELABEL}")
        if self.model is not None:
            todo += [self.model.remedy] if self.model.remedy else []
            todo += [
                f"look at samples labelled {each.label!r}: the model is right in {each.right:.0%}, and "
                f"takes most others for {each.taken_for!r}"
                for each in self.model.doubtful
            ]
            if self.model.guessing and not self.model.hint:
                todo.append(
                    "look whether these are samples of this task, with its labels: a model that is no better "
                    "than guessing has learnt others, or is not trained yet"
                )
        if self.classes and sum(entry.samples > 0 for entry in self.classes) == 1:
            todo.append("add samples of a second class: with one alone, a device cannot train a classifier")
        if 0 < self.samples < FEW:
            todo.append(f"add samples: {self.samples} are too few to learn much from")
        return tuple(todo)


def report(samples: LocalSamples) -> SamplesReport:
    """Reports on samples that have been read."""
    manifest, labels = samples.manifest, len(samples.manifest.labels)
    sides = (samples.training, samples.holdout)
    counts = zip(*(side.class_counts(labels) for side in sides), strict=True)
    by_class = () if manifest.target.has_columns else zip(manifest.labels, counts, strict=True)
    return SamplesReport(
        str(samples.source),
        manifest.name,
        len(samples.training) + len(samples.holdout),
        len(samples.holdout),
        tuple(Class(label, a + b) for label, (a, b) in by_class),
        _most(samples.forms),
        samples.skipped,
        samples.memory_bytes,
        describe_input(manifest.input),
        _filled(samples),
        samples.values,
        samples.scale_warning,
        _columns(samples),
        notes=samples.notes,
        labels=() if manifest.target.has_columns else tuple(manifest.labels),
    )


def _columns(samples: LocalSamples) -> tuple[TargetColumn, ...]:
    target = samples.manifest.target
    y = np.concatenate([samples.training.y, samples.holdout.y])
    if not (target.has_columns and len(y)):
        return ()
    values = y if target.compared == "flags" else target.restore(y)
    return tuple(
        TargetColumn(name, float(column.min()), float(column.mean()), float(column.max()))
        for name, column in zip(target.columns, values.T, strict=True)
    )


def _filled(samples: LocalSamples) -> int | None:
    text = samples.manifest.input.text
    if not isinstance(text, TextInput):
        return None
    return sum(int((side.x[:, -1] != text.padding).sum()) for side in (samples.training, samples.holdout))


def _most(forms: Counter[str]) -> dict[str, int]:
    """The FORMS most frequent formats, and the number of samples in others."""
    counts = dict(forms.most_common(FORMS))
    others = forms.total() - sum(counts.values())
    return {**counts, "otherwise": others} if others else counts


def describe_input(spec: InputSpec) -> str:
    """How a picture, a sound, a text or a recording becomes the input of a task."""
    if isinstance(spec.text, TextInput):
        return spec.text.description(spec.shape[0])
    if isinstance(spec.window, WindowInput):
        return spec.window.description(spec.shape[1])
    if is_sound(spec):
        return f"sound as log-mel of {spec.shape[-2]} frames and {spec.shape[-1]} bands"
    if is_picture(spec):
        channels, height, width = spec.shape
        colours = "grey" if channels == 1 else "RGB"
        return f"pictures as {width}x{height} {colours}, black 0 and white {white(spec):g}"
    return "neither pictures, sound, texts nor recordings"


def lines(summary: SamplesReport) -> list[str]:
    """The report as text."""
    holdout = f", {summary.held_out} of them held out" if summary.held_out else ""
    text = [
        f"{summary.place} for {summary.bundle}: {summary.samples} samples{holdout}, "
        f"{summary.memory_bytes / 1e6:.1f} MB in memory",
        f"the task takes {summary.takes}",
        "",
    ]
    if summary.judged_by:
        text[:0] = [f"judged by {summary.judged_by}", *([summary.task] if summary.task else [])]
    at = len(text) - 1
    if summary.filled:
        text[at - 1] += f"; {summary.filled} fill them, and lose what is beyond"
    if summary.doubt:
        text.insert(at, f"WARNING: {summary.doubt}")
    elif summary.values and summary.filled is None:
        low, high = summary.values
        text[at - 1] += f"; values are {low:.3g} to {high:.3g}"
    if summary.model is not None:
        text.insert(at, ("WARNING: " if summary.model.hint else "") + summary.model.description)
    text += [f"{c.name}: {c.least:.4g} to {c.largest:.4g}, mean {c.mean:.4g}" for c in summary.targets]
    wide = max((len(entry.label) for entry in summary.classes), default=0)
    most = max((entry.samples for entry in summary.classes), default=0) or 1
    right = {each.label: each.right for each in summary.model.by_class} if summary.model else {}
    for entry in summary.classes:
        bar = "#" * -(-BAR * entry.samples // most)
        share = f"{right[entry.label]:.0%} right" if entry.label in right else ""
        text.append(f"{entry.label:{wide}} {entry.samples:6} {bar:{BAR if share else 0}} {share}".rstrip())
    if not (summary.samples or summary.skipped):
        text += ["", "no samples: nothing is there"]
    for title, rows in (
        ("stored as", [f"{count:6}  {form}" for form, count in summary.stored.items()]),
        ("decided by default", [f"        {note}" for note in summary.notes]),
        ("left out", [f"{entry.count:6}  {entry.reason}: {entry.named}" for entry in summary.skipped]),
        ("what to do", [f"        {advice}" for advice in summary.advice]),
    ):
        if rows:
            text += ["", title, *rows]
    return text
