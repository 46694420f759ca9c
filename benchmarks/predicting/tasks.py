"""What is tried: two bundles, samples of their shape, and kinds of update as they stand in an offer."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from device_runtime.broker.wire.messages import Kind
from device_runtime.cli.research import export
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.kinds import registry

EXPORT = (
    "wrn --set depth=16 --set width=1 --set in_channels=3 --set classes=10 --input 3,32,32 "
    "--labels 0,1,2,3,4,5,6,7,8,9 --scale 0.00392157 --tunable all --tunable mid --tunable head "
    "--tunable bias --features low --features up"
)
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "full": ("full", {"epochs": 2}),
    "full, a step a batch": ("full", {"epochs": 2, "batch": 32}),
    "full+few-shot": ("full+few-shot", {"epochs": 1}),
    "representatives": ("representatives", {"components": 20}),
    "peft bias": ("peft", {"epochs": 2}),
    "peft head": ("peft", {"epochs": 10, "tunable": "head"}),
    "entropy-subset": ("entropy-subset", {"epochs": 2}),
    "random subset": ("entropy-subset", {"epochs": 2, "select": "random"}),
    "attention-transfer": ("attention-transfer", {"epochs": 1, "metadata_share": 0.5}),
    "prototypes": ("prototypes", {"epochs": 1}),
    "few-shot": ("few-shot", {}),
    "local-zeroth-order": ("local-zeroth-order", {"steps": 2}),
    "zeroth-order": ("zeroth-order", {}),
    "class-means": ("class-means", {}),
}
"""By what they are called here: the kind and its settings."""


def bundles(folder: Path, larger: Path | None) -> dict[str, Path]:
    """By short name: the shipped bundle, and a larger one, which is exported if it is not given."""
    if larger is None:
        larger = folder / "wrn-16-1"
        parser = ArgumentParser()
        export.add_arguments(parser)
        export.run(parser.parse_args([*EXPORT.split(), "--out", str(larger)]))
    return {path.name: path for path in (shipped_folder("digits-wrn-10-1"), larger)}


def samples(bundle: Path, count: int, path: Path) -> Path:
    """Random samples of the bundle's shape, evenly of every class, as .npz."""
    manifest = Bundle.open(bundle).manifest
    x = np.random.default_rng(0).integers(0, 17, (count, *manifest.input.shape)).astype(np.uint8)
    np.savez(path, x=x, y=np.arange(count) % len(manifest.labels))
    return path


def kinds(bundle: Path, names_text: str) -> dict[str, Kind]:
    """Those of `wanted` (names with commas; all, if empty) that the bundle has the graphs for.

    Raises KeyError for a name that there is not.
    """
    graphs = Bundle.open(bundle).manifest.graphs
    names = names_text.split(",") if names_text else list(KINDS)
    needs = {
        "peft bias": "train.bias",
        "representatives": "features.low",
        "attention-transfer": "features.low",
    }
    needs["prototypes"] = "features.up"
    written = {name: registry.write(registry.make(*KINDS[name])) for name in names}
    return {name: kind for name, kind in written.items() if needs.get(name, "forward") in graphs}
