"""A contribution made by the browser's modules in Node is one that the aggregator takes, and Python's own."""

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import tensors
from models.bundle import Bundle, pack, shipped
from models.onnx_engine import OnnxModel
from models.tensors import Tensors
from strategies import registry
from strategies.aggregator_half import RoundModel
from strategies.device_half import Contribution, LocalData, Run
from strategies.tensor_update import FEW_SHOT

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "web"
SEED, DEVICE = 2**64 - 3, "phone-é"
SAMPLES = 47
LONGEST_S = 300

CLOSE = {"rtol": 0.0, "atol": 2e-6}
"""Of weights: float32 sums in another order, over some steps."""

KINDS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, float]]] = {
    "full": ("full", {"epochs": 2, "batch": 16, "lr": 0.01}, CLOSE),
    "full of more than a run": ("full", {"epochs": 1, "batch": 40, "lr": 0.01}, CLOSE),
    "full, pulled and clipped": (
        "full",
        {"epochs": 2, "batch": 16, "lr": 0.01, "mu": 0.5, "mu_head": 0.3, "clip_norm": 0.5},
        CLOSE,
    ),
    "full, pulled to the base": (
        "full",
        {"epochs": 1, "batch": 16, "mu_head": 0.3, "head_anchor": "base"},
        CLOSE,
    ),
    "full in half floats": ("full", {"epochs": 1, "batch": 16, "lr": 0.01, "codec": "half"}, CLOSE),
    "peft": ("peft", {"epochs": 3, "batch": 16, "tunable": "head"}, CLOSE),
    "peft, pulled": ("peft", {"epochs": 2, "batch": 16, "tunable": "head", "mu": 0.1}, CLOSE),
    "entropy-subset": ("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01}, CLOSE),
    "random subset": ("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01, "select": "random"}, CLOSE),
    "few-shot": ("few-shot", {"shots": 3, "epochs": 4}, CLOSE),
    "zeroth-order": ("zeroth-order", {}, {"rtol": 0.0, "atol": 2e-3}),
    "zeroth-order, measured": (
        "zeroth-order",
        {"sides": 1, "sizing": "relative", "num_z": 4, "generator": "philox4x64-rademacher/1", "eps": 0.01},
        {"rtol": 0.0, "atol": 2e-3},
    ),
    "zeroth-order, some samples": (
        "zeroth-order",
        {"sampled": 0.3, "tunable": "mid"},
        {"rtol": 0.0, "atol": 2e-3},
    ),
    "class-means": ("class-means", {}, {"rtol": 0.0, "atol": 2e-5}),
}
"""By what they are called here: the kind, its settings, and how near the tensors must be. A scalar is a
difference of two losses, each near to 1e-6, over 2 eps; it is some units large."""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    if not (WEB / "vendor" / "ort").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")
    return found


@pytest.fixture(scope="module")
def data() -> LocalData:
    rng = np.random.default_rng(7)
    manifest = Bundle.open(shipped("digits-wrn-10-1")).manifest
    raw = rng.integers(0, 17, (SAMPLES, 8, 8)).astype(np.uint8)
    return LocalData(manifest.input.prepare(raw), rng.integers(0, 9, SAMPLES))


def _aside() -> Tensors:
    rng = np.random.default_rng(8)
    shapes = {"head.weight": (10, 64), "head.bias": (10,)}
    return {FEW_SHOT + name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def _by_node(
    node: str, folder: Path, kind: str, settings: Mapping[str, Any], data: LocalData
) -> Contribution:
    (folder / "bundle.zip").write_bytes(pack(shipped("digits-wrn-10-1")))
    work = {"kind": kind, "settings": settings, "seed": str(SEED), "device": DEVICE}
    (folder / "work.json").write_text(json.dumps(work), "utf-8")
    aside = {f"aside/{name}": value for name, value in _aside().items()}
    given = {"x": data.x, "y": data.y.astype(np.int32), **aside}
    (folder / "data").write_bytes(tensors.encode(given))
    paths = [str(folder / name) for name in ("bundle.zip", "work.json", "data")]
    ran = subprocess.run(
        [node, str(HERE / "contribute.mjs"), *paths], capture_output=True, text=True, timeout=LONGEST_S
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout)
    loss = math.nan if said["trainLoss"] is None else said["trainLoss"]
    made = tensors.decode((folder / "data.made").read_bytes())
    return Contribution(kind, made, said["numExamples"], loss, said["form"])


@pytest.mark.parametrize("called", KINDS)
def test_a_contribution_made_in_node_is_believed_and_as_pythons_own(
    called: str, node: str, tmp_path: Path, data: LocalData
) -> None:
    kind, settings, close = KINDS[called]
    theirs = _by_node(node, tmp_path, kind, settings, data)

    bundle = Bundle.open(shipped("digits-wrn-10-1"))
    model, strategy = OnnxModel(bundle), registry.make(kind, settings).variants()[0]
    run = Run(SEED, DEVICE, clock=lambda: 0.0, deadline=1.0, aside=_aside())
    ours = strategy.train(model, data, run)

    tensors.check(theirs.tensors, strategy.expected(model.manifest))
    assert strategy.doubt(theirs.tensors, theirs.num_examples) == ""
    assert (theirs.form, theirs.num_examples) == (ours.form, ours.num_examples)
    assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-5, nan_ok=True)
    for name, value in ours.tensors.items():
        np.testing.assert_allclose(theirs.tensors[name], value, **close, err_msg=name)

    base = RoundModel(model.manifest, bundle.weights(), 1, SEED)
    effect = strategy.finish(strategy.fold(strategy.start(base), theirs, strategy.counted(theirs)), base)
    assert effect.mean or effect.steps or effect.assigned or effect.served_mean
