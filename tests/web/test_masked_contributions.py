"""A masked contribution that the browser's modules make opens to the integers that Python writes of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire.messages import HelperKey, Mask, Masks
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.interface.device_half import LocalData, Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal
from device_runtime.strategies.masking.sums import SummedGroup, Weighed

from . import by_node
from .by_node import Site, Work

SAMPLES, MOST_WEIGHT = 41, 60
HELPERS = (b"\x11" * 32, b"\x22" * 32)
"""Secret keys."""
KEYS = tuple(crypto_scalarmult_base(secret) for secret in HELPERS)
WORKS = (
    Work("full", {"epochs": 1, "batch": 16, "lr": 0.01, "statistics": {"hold_out": 0.2}}),
    Work("peft", {"epochs": 2, "batch": 16, "tunable": "head"}),
    Work("entropy-subset", {"epochs": 1, "batch": 8, "lr": 0.01, "weigh": "local", "shares": (0.25,)}),
    Work(
        "few-shot",
        {
            "shots": 3,
            "epochs": 2,
            "join_base": True,
            "statistics": {"numbers": "int8", "most_classes": 3},
        },
    ),
    Work("zeroth-order", {"statistics": {"samples": 20}}),
    Work("class-means", {}),
    Work("class-means", {"statistics": {"samples": 30}}),
)
MASKS = Masks(
    helpers=tuple(HelperKey("", key) for key in KEYS), min_group=5, capacity=64, most_weight=MOST_WEIGHT
)
NodeUpdates = list[tuple[Update, Mapping[str, Any]]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    rng, bundle = np.random.default_rng(8), Bundle.open(shipped_folder("digits-wrn-10-1"))
    raw = rng.integers(0, 17, (SAMPLES, 8, 8)).astype(np.uint8)
    data = LocalData(bundle.manifest.input.prepare(raw), rng.integers(0, 9, SAMPLES))
    return Site(bundle, data, tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def node_updates(site: Site) -> NodeUpdates:
    names = ("min_group", "capacity", "most_weight", "noise_milli", "clip_milli")
    settings = {name: getattr(MASKS, name) for name in names} | {"helpers": [key.hex() for key in KEYS]}
    return by_node.updates_and_reports(site, WORKS, {"masks": settings})


@pytest.mark.parametrize("i", range(len(WORKS)), ids=lambda i: WORKS[i].kind)
def test_both_helpers_seeds_open_what_node_masked(i: int, site: Site, node_updates: NodeUpdates) -> None:
    update, report = node_updates[i]
    strategy = variant_named(registry.make(WORKS[i].kind, WORKS[i].settings), update.variant)
    layout = layout_of(strategy, site.bundle.manifest, site.bundle.weights(), MASKS)
    content = (site.folder / f"data.{i}.masked").read_bytes()
    opened = MaskedVector.from_bytes(content, layout.values, layout.numbers)
    purpose = MaskPurpose("digits", "r1", by_node.ROUND, update.kind, update.variant, by_node.DEVICE, 5)
    sent = Mask(
        bytes.fromhex(report["mask"]["key"]), tuple(bytes.fromhex(tag) for tag in report["mask"]["tags"])
    )
    mask = MaskedVector.zeros(layout.values, layout.numbers)
    mask.add_masks([unseal(secret, sent, at, purpose) for at, secret in enumerate(HELPERS)])
    opened.subtract(mask)
    weighed = Weighed(update, strategy, MOST_WEIGHT)
    written, _ = sums.write(weighed, layout)
    assert opened.to_bytes() == written.to_bytes()
    group = SummedGroup(1, weighed.share, update.num_examples, MOST_WEIGHT)
    tensors = sums.read(opened, layout, group, strategy).update.tensors
    for name in tensors:
        np.testing.assert_allclose(tensors[name], update.tensors[name], rtol=1e-5, atol=2e-4)
