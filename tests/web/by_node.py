"""Contributions made by the browser's modules, in Node."""

import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import class_statistics, class_sums, kind_statistics

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "web"
SEED, DEVICE = 2**64 - 3, "phone-é"
ROUND, RARE = 3, (7, 2)
LONGEST_S = 1200
ROUNDED = {"float16": 2.0**-11}
"""One step of a number of second moments, which are 1 at most."""


@dataclass(frozen=True)
class Work:
    """A kind with its settings; `far`: how far a number may be from Python's, over 1 or the number."""

    kind: str
    settings: Mapping[str, Any]
    far: float = 1e-6


@dataclass(frozen=True)
class Site:
    """Where the work is done, and on what; `aside` came beside the base."""

    bundle: Bundle
    data: LocalData
    folder: Path
    aside: Tensors = field(default_factory=dict)


def node() -> str:
    """Where it is; skips the test where it is not, or lacks what it needs."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    if not (WEB / "vendor" / "ort").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")
    return program


def updates_of(site: Site, works: Sequence[Work]) -> list[Update]:
    """By the richest form of each kind, all in one process."""
    return [update for update, _ in updates_and_reports(site, works, {})]


def updates_and_reports(
    site: Site, works: Sequence[Work], more: Mapping[str, Any]
) -> list[tuple[Update, Mapping[str, Any]]]:
    """As `updates_of`, with what Node says of each; `more` is told to Node."""
    folder, data = site.folder, site.data
    (folder / "bundle.zip").write_bytes(site.bundle.packed())
    listed = [{"kind": work.kind, "settings": work.settings} for work in works]
    order = {"seed": str(SEED), "device": DEVICE, "round": ROUND, "rare": RARE, "works": listed, **more}
    (folder / "work.json").write_text(json.dumps(order), "utf-8")
    x = data.x if data.x.dtype == np.float32 else data.x.astype(np.int32)
    aside = {f"aside/{name}": value for name, value in site.aside.items()}
    (folder / "data").write_bytes(tensors.encode({"x": x, "y": data.y.astype(np.int32), **aside}))
    paths = [str(folder / name) for name in ("bundle.zip", "work.json", "data")]
    command = [node(), str(HERE / "contribute.mjs"), *paths]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    assert ran.returncode == 0, ran.stderr[-3000:]
    update = partial(_update, folder)
    reports = json.loads(ran.stdout)
    return [
        (update(i, work, report), report) for i, (work, report) in enumerate(zip(works, reports, strict=True))
    ]


def _update(folder: Path, i: int, work: Work, report: Mapping[str, Any]) -> Update:
    sent = tensors.decode((folder / f"data.{i}").read_bytes())
    loss = math.nan if report["trainLoss"] is None else report["trainLoss"]
    return Update(work.kind, sent, report["numExamples"], loss, report["form"])


def check(site: Site, work: Work, theirs: Update) -> None:
    """That Node's contribution is believed, is as Python's own, and has an effect on the model."""
    model, strategy = OnnxModel(site.bundle), registry.make(work.kind, work.settings).variants()[0]
    run = Run(SEED, DEVICE, clock=lambda: 0.0, upload_at=1.0, aside=site.aside, round=ROUND, rare=RARE)
    ours = kind_statistics.train(strategy, model, site.data, run)

    tensors.check(theirs.tensors, kind_statistics.expected(strategy, model.manifest))
    update, statistics = class_statistics.split_statistics(theirs.tensors)
    assert strategy.rejection_reason(update, theirs.num_examples) == ""
    assert kind_statistics.rejection_reason(strategy, statistics, theirs.num_examples, model.manifest) == ""
    assert (theirs.variant, theirs.num_examples) == (ours.variant, ours.num_examples)
    assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-5, nan_ok=True)
    for name, value in ours.tensors.items():
        if name.endswith("rows"):
            width = model.manifest.head.features
            if name in statistics and strategy.statistics is not None:
                width = strategy.statistics.projection(width).size
            same_rows(theirs.tensors[name], value, (len(model.manifest.labels), width))
            continue
        far = ROUNDED.get(value.dtype.name, work.far) if name in statistics else work.far
        numbers = theirs.tensors[name].astype(np.float64)
        np.testing.assert_allclose(numbers, value.astype(np.float64), rtol=work.far, atol=far, err_msg=name)

    base = RoundModel(model.manifest, site.bundle.weights(), 1, SEED)
    effect = strategy.finish(
        strategy.fold(strategy.start(base), replace(theirs, tensors=update), strategy.weight(theirs)), base
    )
    if update:
        assert effect.mean or effect.steps or effect.assigned or effect.served_mean


def same_rows(theirs: NDArray[np.uint8], ours: NDArray[np.uint8], shape: tuple[int, int]) -> None:
    """Equal counts, and means that are a step of their rounding apart at most."""
    assert theirs.shape == ours.shape
    sums, expected = (class_sums.read_rows(rows, *shape) for rows in (theirs, ours))
    np.testing.assert_array_equal(sums.counts, expected.counts)
    most = 1.01 * np.abs(expected.means()).max(axis=1, keepdims=True, initial=0) / 127
    assert (np.abs(sums.means() - expected.means()) <= most + 1e-5).all()
