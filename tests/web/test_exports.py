"""Networks of every sort, exported: what a browser trains of them is what Python does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.strategies.interface.device_half import LocalData

from . import by_node
from .by_node import Site, Work

pytestmark = pytest.mark.slow

CLASSES, SAMPLES = 4, 21
TINY = {"dim": 16, "depth": 3, "heads": 2, "patch": 4, "image": 8}
PEFT = ("bias", "adapter", "prompt", "prefix", "lora", "sparse")
SCALARS, SUMS = 5e-3, 2e-5
"""As in test_contributions."""


@dataclass(frozen=True)
class Case:
    """A network, what it takes, its tunable sets, and the work on it."""

    build: str
    settings: Mapping[str, Any]
    input: InputSpec
    sets: tuple[str, ...]
    work: tuple[tuple[str, Mapping[str, Any]], ...]
    batchnorm: str = "frozen"
    more: Mapping[str, Any] = field(default_factory=dict)


STEPS = {"epochs": 2, "batch": 8, "lr": 0.01}
CASES = {
    "statistics that move": Case(
        "wrn",
        {"depth": 10, "norm": "batch"},
        InputSpec((3, 8, 8), std=(1.0, 2.0, 3.0)),
        ("all", "mid", "head", "bias"),
        (("full", STEPS), ("peft", {**STEPS, "tunable": "bias"}), ("peft", {**STEPS, "tunable": "head"})),
        "training",
    ),
    "statistics that stand": Case(
        "wrn",
        {"depth": 10, "norm": "batch"},
        InputSpec((3, 8, 8)),
        ("all", "mid"),
        (("full", STEPS), ("zeroth-order", {"tunable": "mid"}), ("class-means", {})),
    ),
    "transformer": Case(
        "vit",
        TINY,
        InputSpec((3, 8, 8)),
        ("all", "head", *PEFT),
        (("full", STEPS), *(("peft", {**STEPS, "tunable": name}) for name in PEFT)),
    ),
    "tokens": Case(
        "gru",
        {"vocabulary": 50, "dim": 8, "hidden": 16},
        InputSpec((6,), dtype="int64", vocabulary=50),
        ("all", "head"),
        (("full", {**STEPS, "clip_norm": 1.0}), ("zeroth-order", {}), ("few-shot", {"epochs": 2})),
    ),
    "half floats": Case(
        "cnn",
        {"size": 8},
        InputSpec((3, 8, 8)),
        ("all", "head"),
        (("full", STEPS), ("class-means", {})),
        more={"stored_as": "float16"},
    ),
    "weights that were trained before": Case(
        "cnn",
        {"size": 8},
        InputSpec((3, 8, 8)),
        ("all", "mid"),
        (("full", {**STEPS, "lr": 0.1}), ("entropy-subset", {**STEPS, "lr": 0.1, "least_samples": 1})),
        more={"pretrained": True},
    ),
}


def _bundle(case: Case, folder: Path) -> Bundle:
    torch.manual_seed(0)
    module = build(case.build, {**case.settings, "classes": CLASSES}).eval()
    labels = tuple("abcd")
    sets: dict[str, dict[str, Any]] = {name: {} for name in case.sets}
    spec = ExportSpec("it", case.input, labels, sets=sets, batchnorm=case.batchnorm, **case.more)
    return export(module, spec, folder)


def _data(case: Case) -> LocalData:
    rng = np.random.default_rng(2)  # with 1 a value lies on the kink of a ReLU, to the last bits
    shape, y = (SAMPLES, *case.input.shape), rng.integers(0, CLASSES, SAMPLES)
    if case.input.vocabulary is not None:
        return LocalData(rng.integers(case.input.vocabulary, size=shape), y)
    return LocalData(rng.standard_normal(shape, np.float32), y)


@pytest.mark.parametrize("called", CASES)
def test_a_network_is_trained_in_node_as_in_python(called: str, tmp_path: Path) -> None:
    case = CASES[called]
    bundle, data = _bundle(case, tmp_path / "bundle"), _data(case)
    fars = {"zeroth-order": SCALARS, "class-means": SUMS}
    works = [Work(kind, settings, fars.get(kind, 1e-5)) for kind, settings in case.work]
    site = Site(bundle, data, tmp_path)
    for work, theirs in zip(works, by_node.updates_of(site, works), strict=True):
        by_node.check(site, work, theirs)
