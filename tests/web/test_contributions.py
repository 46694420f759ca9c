"""A contribution made by the browser's modules in Node is one that the aggregator takes, and Python's own."""

from collections.abc import Mapping

import numpy as np
import pytest

from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.interface.device_half import FEW_SHOT, LocalData, Update
from device_runtime.strategies.statistics.held_out import CLOSED_FORM

from . import by_node
from .by_node import Site, Work

SAMPLES = 47
MEASURED = {"sides": 1, "sizing": "relative", "num_z": 4, "generator": "philox4x64-rademacher/1", "eps": 0.01}
SCALARS, SUMS = 5e-4, 1e-5
"""A scalar is a difference of two losses, each near to 1e-6, over 2 eps, and some units large. Weights are
nearer than both: float32 sums in another order, over some steps. Seen: 1e-7 of weights, 3e-5, 3e-6."""

KINDS: Mapping[str, Work] = {
    "full": Work("full", {"epochs": 2, "batch": 16, "lr": 0.01}),
    "full of more than a run": Work("full", {"epochs": 1, "batch": 40, "lr": 0.01}),
    "full, pulled and clipped": Work(
        "full",
        {
            "epochs": 2,
            "batch": 16,
            "lr": 0.01,
            "terms": {"fedprox": {"mu": 0.5}, "fscprox": {"mu": 0.3}},
            "clip_norm": 0.5,
        },
    ),
    "full, pulled to the base": Work(
        "full", {"epochs": 1, "batch": 16, "terms": {"fscprox": {"mu": 0.3, "anchor": "base"}}}
    ),
    "full in half floats": Work("full", {"epochs": 1, "batch": 16, "lr": 0.01, "codec": "half"}),
    "peft": Work("peft", {"epochs": 3, "batch": 16, "tunable": "head"}),
    "peft, pulled": Work(
        "peft", {"epochs": 2, "batch": 16, "tunable": "head", "terms": {"fedprox": {"mu": 0.1}}}
    ),
    "entropy-subset": Work("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01}),
    "random subset": Work("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01, "select": "random"}),
    "few-shot": Work("few-shot", {"shots": 3, "epochs": 4}),
    "zeroth-order": Work("zeroth-order", {}, SCALARS),
    "zeroth-order, measured": Work("zeroth-order", MEASURED, SCALARS),
    "zeroth-order, some samples": Work("zeroth-order", {"sampled": 0.3, "tunable": "mid"}, SCALARS),
    "class-means": Work("class-means", {}, SUMS),
    "class-means as statistics": Work("class-means", {"statistics": {"samples": 40}}),
    "full with held-out samples": Work(
        "full", {"epochs": 1, "batch": 16, "lr": 0.01, "statistics": {"hold_out": 0.2}}
    ),
    "class means of some classes": Work("class-means", {"statistics": {"most_classes": 3, "samples": 0}}),
    "few-shot with some classes": Work("few-shot", {"statistics": {"most_classes": 3}}),
    "full with class statistics": Work("full", {"epochs": 1, "batch": 16, "lr": 0.01, "statistics": {}}),
    "random subset with class statistics": Work(
        "entropy-subset", {"epochs": 1, "select": "random", "lr": 0.01, "statistics": {"numbers": "int8"}}
    ),
    "zeroth-order with class statistics": Work(
        "zeroth-order", {"statistics": {"numbers": "int8", "samples": 30}}, SCALARS
    ),
}
"""By what they are called here."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    rng, bundle = np.random.default_rng(7), Bundle.open(shipped_folder("digits-wrn-10-1"))
    raw = rng.integers(0, 17, (SAMPLES, 8, 8)).astype(np.uint8)
    data = LocalData(bundle.manifest.input.prepare(raw), rng.integers(0, 9, SAMPLES))
    shapes = {"head.weight": (10, 64), "head.bias": (10,)}
    aside = {FEW_SHOT + name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    aside |= {CLOSED_FORM + n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in shapes.items()}
    return Site(bundle, data, tmp_path_factory.mktemp("node"), aside)


@pytest.fixture(scope="module")
def updates(site: Site) -> Mapping[str, Update]:
    return dict(zip(KINDS, by_node.updates_of(site, list(KINDS.values())), strict=True))


@pytest.mark.parametrize("called", KINDS)
def test_a_contribution_made_in_node_is_believed_and_as_pythons_own(
    called: str, site: Site, updates: Mapping[str, Update]
) -> None:
    by_node.check(site, KINDS[called], updates[called])
