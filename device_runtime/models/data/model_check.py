"""Says what a model makes of samples: how often it is right, and which mistake would explain the rest.

Each mistake is tried: the samples are changed as if it were undone, and the model predicts again. A mistake
is named only if the model is then far better by balanced accuracy (a model that always says the same has 1 /
classes, whatever the samples) and sure of what it says, as a model that was never trained is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest

from .cells import first_of
from .local_data import LocalData
from .pictures import BYTE, is_picture
from .sound import is_sound

Floats = NDArray[np.float32]
Outputs = Callable[[NDArray[Any]], NDArray[np.float32]]
"""Prepared samples (n, *input) -> the network's outputs (n, outputs)."""

MOST, FEWEST = 300, 40
"""Samples that are looked at, evenly spaced: on a large network as many as FLOPS allow, but FEWEST."""
FLOPS = 30e9
"""What looking at the samples once may cost; a board of the slowest class does it in about 20 s."""
LIKELY = 0.15
"""A mistake is tried on all samples only if it does so much better than chance on FEWEST of them."""
LEAST = 20
"""With fewer samples, nothing but the share of right answers is said."""
GAIN = 0.25
"""How much better a model must be, in balanced accuracy, for a mistake to be named."""
ABOVE_CHANCE = 0.3
SURE = 0.5
"""The least mean probability of the predicted class, as a share of the way from chance to 1."""
BETTER = 0.5
"""The most that is left of the error of numbers, for a mistake to be named."""
DOUBTFUL, FEW_OF_CLASS = 0.5, 8
"""A label is doubtful if the model is right this much less often than on average, of so many samples."""
ONE_SIDED = 0.95
"""The share of samples that are given one class, above which that is said of samples without labels."""


@dataclass(frozen=True)
class ClassCheck:
    """How often a model is right about the samples of one label, and what it takes most of the others for."""

    label: str
    samples: int
    right: float
    taken_for: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """What a model makes of samples.

    samples: the number that it was asked about.
    right: the share that it classifies as labelled; None without labels and for numbers.
    error: the mean distance of predicted numbers as a share of that of their mean; None for classes.
    answers: of samples without labels, what it says of them.
    hint: a mistake that would explain wrong answers, as a sentence; empty for none.
    guessing: whether the model is no better than one that looks at nothing.
    trained: whether the model has certainly learnt something, as these samples show.
    remedy: what to do about the mistake of the hint.
    by_class: the labels that samples have, where targets are classes.
    """

    samples: int
    right: float | None = None
    error: float | None = None
    answers: str = ""
    hint: str = ""
    guessing: bool = False
    trained: bool = False
    remedy: str = ""
    by_class: tuple[ClassCheck, ...] = ()

    @property
    def doubtful(self) -> tuple[ClassCheck, ...]:
        """Labels of which the model is far more often wrong than of others, though no mistake explains it."""
        if self.hint or self.guessing or self.right is None:
            return ()
        most = DOUBTFUL * self.right
        return tuple(each for each in self.by_class if each.samples >= FEW_OF_CLASS and each.right < most)

    @property
    def description(self) -> str:
        """In one sentence for people."""
        if self.right is not None:
            text = f"the model is right in {self.right:.0%} of {self.samples}"
            text += ", no better than guessing" if self.guessing else ""
        elif self.error is not None:
            text = f"of {self.samples}, the model is {self.error:.2g} times as far off as their mean"
        else:
            text = f"of {self.samples} without labels, {self.answers}"
        return f"{text}; {self.hint}" if self.hint else text


@dataclass(frozen=True)
class Mistake:
    """A common mistake. undone: makes raw samples (n, *input) as they would be without it."""

    condition: str
    asks: str
    remedy: str
    undone: Callable[[Floats], Floats]


def evenly_spaced(count: int, manifest: Manifest) -> NDArray[np.int64]:
    """The numbers of the samples that are looked at, of `count`."""
    flops = max(1, manifest.graphs["forward"].flops) if "forward" in manifest.graphs else 1
    most = min(MOST, max(FEWEST, int(FLOPS // flops)), count)
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def check_model(data: LocalData, manifest: Manifest, outputs: Outputs) -> ModelCheck | None:
    """What the model makes of labelled samples; None where there are none, or its loss is of neither kind."""
    if not len(data):
        return None
    chosen = evenly_spaced(len(data), manifest)
    x, y = data.x[chosen], data.y[chosen]
    compared = manifest.target.compared
    if compared == "classes":
        return _of_classes(x, y, manifest, outputs)
    return _of_values(x, y, manifest.input, outputs) if compared == "values" else None


def check_unlabelled(x: NDArray[Any], manifest: Manifest, outputs: Outputs) -> ModelCheck | None:
    """What the model makes of prepared samples without labels: their classes, and how sure it is."""
    if not len(x) or manifest.target.compared != "classes":
        return None
    x = x[evenly_spaced(len(x), manifest)]
    probabilities = _probabilities(outputs(x))
    sure = float(probabilities.max(axis=1).mean())
    counts = np.bincount(probabilities.argmax(axis=1), minlength=len(manifest.labels))
    order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
    says = first_of([f"{manifest.labels[number]} {counts[number] / len(x):.0%}" for number in order], 4)
    answers = f"the model says {says}, and is {sure:.0%} sure on average"
    hint, remedy, trained = "", "", len(x) >= LEAST and _is_sure(sure, 1 / len(manifest.labels))
    if len(x) >= LEAST:
        chance = 1 / len(manifest.labels)
        tried = [
            (_sureness(mistake, x, manifest.input, outputs), mistake) for mistake in _views(x, manifest.input)
        ]
        best, mistake = max(tried, key=lambda trial: trial[0], default=(0.0, None))
        if mistake is not None and best >= sure + GAIN and _is_sure(best, chance):
            hint, remedy = f"{mistake.condition} it would be {best:.0%} sure: {mistake.asks}", mistake.remedy
        elif trained and counts.max() >= ONE_SIDED * len(x) and len(manifest.labels) > 1:
            answers += ": are they all alike?"
    return ModelCheck(len(x), answers=answers, hint=hint, trained=trained or bool(hint), remedy=remedy)


def _of_classes(x: NDArray[Any], y: NDArray[Any], manifest: Manifest, outputs: Outputs) -> ModelCheck:
    probabilities = _probabilities(outputs(x))
    predicted = probabilities.argmax(axis=1)
    right = float((predicted == y).mean())
    classes = np.unique(y)
    if len(x) < LEAST or len(classes) < 2:
        return ModelCheck(len(x), right)
    chance = 1 / len(classes)
    before = _balanced(predicted, y)
    enough = max(before + GAIN, chance + ABOVE_CHANCE)
    guessing = before < chance + 3 * (chance * (1 - chance) / len(x)) ** 0.5
    by_class = tuple(_by_class(predicted, y, manifest.labels))
    hints: list[tuple[float, str, str]] = []
    few = np.unique(np.linspace(0, len(x) - 1, min(FEWEST, len(x))).astype(np.int64))
    for mistake in _mistakes(x, manifest.input) if enough <= 1 else ():
        undone = _undone(mistake, x, manifest.input)
        if _balanced(outputs(undone[few]).argmax(axis=1), y[few]) < chance + LIKELY:
            continue
        after = _probabilities(outputs(undone))
        score = _balanced(after.argmax(axis=1), y)
        if score >= enough and _is_sure(float(after.max(axis=1).mean()), chance):
            share = float((after.argmax(axis=1) == y).mean())
            hint = f"{mistake.condition} it would be right in {share:.0%}: {mistake.asks}"
            hints.append((score, hint, mistake.remedy))
    if not hints and _is_sure(float(probabilities.max(axis=1).mean()), chance):
        hints += [
            (score, hint, RELABEL)
            for score, hint in _relabelled(predicted, y, manifest.labels)
            if score >= enough
        ]
    _, hint, remedy = max(hints, key=lambda candidate: candidate[0], default=(0.0, "", ""))
    trained = bool(hint) or before >= chance + ABOVE_CHANCE
    return ModelCheck(
        len(x), right, hint=hint, guessing=guessing, trained=trained, remedy=remedy, by_class=by_class
    )


def _by_class(predicted: NDArray[np.int64], y: NDArray[Any], labels: Sequence[str]) -> Iterator[ClassCheck]:
    for label in np.unique(y).tolist():
        answers = predicted[y == label]
        wrong = np.bincount(answers[answers != label], minlength=1)
        taken_for = labels[int(wrong.argmax())] if wrong.any() else ""
        yield ClassCheck(labels[label], len(answers), float((answers == label).mean()), taken_for)


def _of_values(x: NDArray[Any], y: NDArray[Any], spec: InputSpec, outputs: Outputs) -> ModelCheck | None:
    usual = float(np.abs(y - y.mean(axis=0)).mean())
    if not usual:
        return None

    def error(of: NDArray[Any]) -> float:
        predicted = outputs(of).reshape(y.shape)
        return float(np.abs(predicted - y).mean()) / usual if np.isfinite(predicted).all() else np.inf

    before = error(x)
    if len(x) < LEAST:
        return ModelCheck(len(x), error=before)
    tried = [(error(_undone(mistake, x, spec)), mistake) for mistake in _mistakes(x, spec)]
    best, mistake = min(tried, key=lambda trial: trial[0], default=(np.inf, None))
    hint, remedy = "", ""
    if mistake is not None and best <= BETTER * min(before, 1.0):
        hint = f"{mistake.condition} they would be {best:.2g} times as far off: {mistake.asks}"
        remedy = mistake.remedy
    trained = bool(hint) or before <= BETTER
    return ModelCheck(len(x), error=before, hint=hint, guessing=before >= 1, trained=trained, remedy=remedy)


def _mistakes(x: NDArray[Any], spec: InputSpec) -> Iterator[Mistake]:
    """The mistakes that samples of this input may have."""
    if spec.vocabulary is not None:
        return
    raw = _raw(x, spec)
    yield from _scales(float(raw.min()), float(raw.max()), spec)
    yield from _views(x, spec)


def _views(x: NDArray[Any], spec: InputSpec) -> Iterator[Mistake]:
    """Mistakes in how pictures lie, and in their colours."""
    if not is_picture(spec) or is_sound(spec):
        return
    raw = _raw(x, spec)
    low, high = float(raw.min()), float(raw.max())
    top, bottom = (spec.usual_range or (low, high))[1], (spec.usual_range or (low, high))[0]
    if spec.white is None:
        top, bottom = high, low
    yield Mistake(
        "with dark and light exchanged",
        "are they inverted?",
        "exchange dark and light, as by `mogrify -negate FILES` of ImageMagick",
        lambda values: top + bottom - values,
    )
    if spec.shape[0] == 3:
        yield Mistake(
            "with red and blue exchanged",
            "are the channels in the order BGR?",
            "write the channels in the order red, green, blue; OpenCV has them the other way round",
            lambda values: values[:, ::-1],
        )
    if spec.shape[1] == spec.shape[2]:
        yield Mistake(
            "with rows and columns exchanged",
            "are they transposed?",
            "exchange rows and columns, as by `mogrify -transpose FILES` of ImageMagick",
            lambda values: values.swapaxes(2, 3),
        )
    yield Mistake(
        "turned upside down",
        "are they upside down?",
        "turn them, as by `mogrify -rotate 180 FILES` of ImageMagick",
        lambda values: values[:, :, ::-1, ::-1],
    )
    yield Mistake(
        "mirrored",
        "are they mirrored?",
        "mirror them, as by `mogrify -flop FILES` of ImageMagick",
        lambda values: values[:, :, :, ::-1],
    )


def _scales(low: float, high: float, spec: InputSpec) -> Iterator[Mistake]:
    """Other scales that the values may be in, where they are not in the usual one."""
    span = high - low
    if span <= 0:
        return
    if usual := spec.usual_range:
        least, most = usual
        wide = most - least
        if 0.7 * wide < span < 1.4 * wide and abs(low - least) < 0.3 * wide:
            return
        asks = f"are they scaled? they are {low:.3g} to {high:.3g}"
        yield Mistake(
            f"scaled to {least:g} to {most:g}",
            asks,
            f"write values from {least:g} to {most:g}, as the task takes them",
            lambda values: least + (values - low) * (wide / span),
        )
        return
    for factor, ask in ((1 / BYTE, "0 to 255 in place of 0 to 1"), (BYTE, "0 to 1 in place of 0 to 255")):
        yield Mistake(
            f"multiplied by {factor:.3g}",
            f"are they {ask}? they are {low:.3g} to {high:.3g}",
            f"multiply the values by {factor:.3g}",
            lambda values, factor=factor: values * np.float32(factor),  # type: ignore[misc]
        )


RELABEL = (
    "name the folders or the column after the task's labels, or map them by a labels.toml (docs/data.md)"
)


def _relabelled(
    predicted: NDArray[np.int64], y: NDArray[Any], labels: Sequence[str]
) -> Iterator[tuple[float, str]]:
    """Balanced accuracies with other labels, and what to ask for them: shifted by one, or permuted."""
    for step, way in ((1, "low"), (-1, "high")):
        in_range = (y + step >= 0) & (y + step < len(labels))
        share = float((predicted == y + step).mean())
        if share >= float((predicted == y).mean()) + GAIN and in_range.any():
            score = _balanced(predicted[in_range] - step, y[in_range])
            yield (
                score * float(in_range.mean()),
                f"with labels one higher it would be right in {share:.0%}: are they one too low?"
                if way == "low"
                else f"with labels one lower it would be right in {share:.0%}: are they one too high?",
            )
    first, second = np.arange(len(y)) % 2 == 0, np.arange(len(y)) % 2 == 1
    classes = np.unique(y[first]).tolist()
    lookalike = {label: int(np.bincount(predicted[first][y[first] == label]).argmax()) for label in classes}
    unseen = set(np.unique(y[second]).tolist()) - set(lookalike)
    if unseen or len(set(lookalike.values())) < len(lookalike):
        return
    other = np.array([lookalike[label] for label in y[second].tolist()])
    score = float(
        np.mean([(predicted[second] == other)[y[second] == label].mean() for label in np.unique(y[second])])
    )
    pairs = [f"{labels[label]!r} look like {labels[to]!r}" for label, to in lookalike.items() if label != to]
    share = float((predicted[second] == other).mean())
    # a shift by one is the simpler answer where both are as good
    yield score - 0.02, f"samples labelled {first_of(pairs, 3)} ({share:.0%}): are labels exchanged?"


def _undone(mistake: Mistake, x: NDArray[Any], spec: InputSpec) -> NDArray[Any]:
    """Prepared samples as they would be without the mistake."""
    with np.errstate(over="ignore", invalid="ignore"):
        return spec.prepare(np.ascontiguousarray(mistake.undone(_raw(x, spec))))


def _raw(x: NDArray[Any], spec: InputSpec) -> Floats:
    """Prepared samples (n, *input) before their preparation."""
    channels = (-1, *(1 for _ in spec.shape[1:]))
    mean, std = (np.asarray(values, np.float32).reshape(channels) for values in (spec.mean, spec.std))
    raw: Floats = (x * std + mean) / np.float32(spec.scale)
    return raw


def _sureness(mistake: Mistake, x: NDArray[Any], spec: InputSpec, outputs: Outputs) -> float:
    """How sure the model is of samples without the mistake; 0 if it then says the same of most of them."""
    probabilities = _probabilities(outputs(_undone(mistake, x, spec)))
    largest = np.bincount(probabilities.argmax(axis=1)).max() / len(x)
    if largest > max(0.5, 1.5 / probabilities.shape[1]):
        return 0.0
    return float(probabilities.max(axis=1).mean())


def _is_sure(mean: float, chance: float) -> bool:
    return mean >= chance + SURE * (1 - chance)


def _balanced(predicted: NDArray[np.int64], y: NDArray[Any]) -> float:
    """The mean over the classes of y of the share of their samples that are predicted right."""
    return float(np.mean([(predicted[y == label] == label).mean() for label in np.unique(y)]))


def _probabilities(logits: NDArray[np.float32]) -> Floats:
    logits = np.nan_to_num(logits.astype(np.float64), nan=0.0, posinf=1e9, neginf=-1e9)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities
