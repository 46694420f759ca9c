"""Held-out samples on devices, which compare the closed-form head with the trained head.

A device neither trains on held-out samples nor includes them in its class statistics. On features of the
distributed base, it counts how many of them each head classifies correctly: the closed-form head of the last
round, which was sent with that base, and the base's own. If the loss is not of classes, it counts of how many
each head has the smaller loss. The counts are sent with the class statistics, and add up over devices.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.evaluation import sample_losses
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.profiles import Workload
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.training.workload import head_specs

from .class_sums import scale_in

CLOSED_FORM = "closed-form/"
"""Prefix of the names of the closed-form head's tensors among those sent with the base."""
COUNTS = 3
"""Length of the counts: held-out samples, correct by the closed-form head, correct by the trained head."""

GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio's inverse: its multiples, modulo 1, are spread evenly."""


def none() -> NDArray[np.float64]:
    """The counts of no samples, float64 (COUNTS,)."""
    return np.zeros(COUNTS)


def mask(samples: int, share: float, device: str) -> NDArray[np.bool_]:
    """Which of a device's samples are held out, (samples,): every 1 / share-th, but never all.

    The same in every round. The first one depends on the device's name, so that if samples are sorted by
    class, no class is held out more often than others over many devices.
    """
    first = sum(device.encode()) * GOLDEN % 1
    selection: NDArray[np.bool_] = np.diff(np.floor(np.arange(samples + 1) * share + first)) > 0
    return selection & (samples > 1)


def split_held_out(data: LocalData, share: float, device: str) -> tuple[LocalData, LocalData]:
    """The samples that the device holds out, and the rest."""
    selection = mask(len(data), share, device)
    return LocalData(data.x[selection], data.y[selection]), LocalData(data.x[~selection], data.y[~selection])


def rest(workload: Workload, share: float) -> Workload:
    """The workload without held-out samples, exact to one sample if samples are sorted by class."""
    ends = np.cumsum((0, *workload.class_counts))
    counts = np.diff(ends - np.floor(ends * share))
    return replace(workload, class_counts=tuple(int(count) for count in counts))


def head_tensors(served: Tensors, base: Tensors, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """The closed-form head of a served model, for features of `base`, as it is sent with that base."""
    head = {spec.name: served[spec.name] for spec in head_specs(manifest)}
    if manifest.scale is not None:
        times = scale_in(manifest, served) / scale_in(manifest, base)
        head[manifest.head.weight] = (head[manifest.head.weight] * times).astype(np.float32)
    return {CLOSED_FORM + name: value for name, value in head.items()}


def has_head(aside: Tensors) -> bool:
    """Whether a closed-form head was sent with a base: the served head may be another than the base's."""
    return any(name.startswith(CLOSED_FORM) for name in aside)


def without_head(aside: Tensors) -> dict[str, NDArray[Any]]:
    """The tensors sent with a base, without the closed-form head of an earlier round."""
    return {name: value for name, value in aside.items() if not name.startswith(CLOSED_FORM)}


def count_right(model: DeviceModel, samples: LocalData, aside: Tensors) -> NDArray[np.float64]:
    """The counts of held-out samples, float64 (COUNTS,); `model` holds the base.

    Zeros if no closed-form head came with that base. Raises TensorError for a head that does not fit.
    """
    named = [(n.removeprefix(CLOSED_FORM), v) for n, v in aside.items() if n.startswith(CLOSED_FORM)]
    if not len(samples) or not named:
        return none()
    heads = [SoftmaxHead(model.manifest, weights) for weights in (dict(named), model.weights)]
    features, target = model.features(samples.x), model.manifest.target
    if target.compared == "classes":
        right = [np.sum(head.logits(features).argmax(axis=1) == samples.y) for head in heads]
    else:
        values = target.compared_values(samples.x, samples.y)
        closed, trained = (sample_losses(target, head.logits(features), values) for head in heads)
        right = [np.sum(closed < trained), np.sum(trained < closed)]
    return np.array([len(samples), *right], np.float64)


def most(share: float, others: float) -> int:
    """The most samples that a device with `others` training samples can hold out."""
    return floor((share * others + 1) / (1 - share))


def rejection_reason(counts: NDArray[np.int32], share: float, others: float) -> str:
    """Why counts int32 (n, COUNTS) are rejected, with values; empty if they are accepted, or n is 0."""
    limit = most(share, others)
    for count, closed, trained in counts.tolist():
        if not 1 <= count <= limit:
            return f"{count} samples are held out, expected 1 to {limit} with {others:g} training samples"
        if not 0 <= min(closed, trained) <= max(closed, trained) <= count:
            return f"{closed} and {trained} of {count} held-out samples are counted as correct"
    return ""


def trained_is_better(counts: NDArray[np.float64]) -> str:
    """Why the trained head should be served, by the sum of devices' counts; empty if it should not.

    It must be better by more than chance: the difference of two counts of n samples has a standard deviation
    of at most sqrt(n).
    """
    count, closed, trained = counts.tolist()
    if not trained - closed > sqrt(count):
        return ""
    return (
        f"of {count:.0f} held-out samples {closed:.0f} right with the closed-form head, "
        f"{trained:.0f} with the trained one, which is served"
    )
