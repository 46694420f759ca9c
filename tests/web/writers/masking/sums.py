"""Updates of every kind that a browser trains, as vectors of integers: the content before masks are added.

Tensors of an update that the base has are the base's plus a small `noise`; others are noise alone.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import HelperKey, Masks
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy, variant_named
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import SumLayout, layout_of
from device_runtime.strategies.statistics import class_statistics, kind_statistics

BUNDLE, LABELS, WIDTH = "digits-wrn-10-1", 10, 64
SEEN = 30
"""Samples of which an update has class statistics."""
Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`without`: what the update lacks of the class statistics that are asked for. `scale`: of the noise.

    `form`: the one that was trained; "": the kind as it is.
    """

    kind: str
    settings: Settings = field(default_factory=dict)
    examples: int = 41
    loss: float = 0.7
    most_weight: int = 100
    capacity: int = 64
    scale: float = 0.02
    most_norm: float = 0.0
    noise_milli: int = 0
    without: str = ""
    form: str = ""


def cases() -> Iterator[Case]:
    yield Case("full")
    yield Case("full", loss=nan, capacity=2)
    yield Case("full", loss=inf, examples=400, capacity=1000)
    yield Case("full", scale=300.0)
    yield Case("full", scale=2**14, capacity=2**20)
    yield Case("full", noise_milli=900, most_norm=1e6)
    statistics = {"statistics": {"hold_out": 0.1}}
    for without in ("", "moments", "statistics"):
        yield Case("full", statistics, without=without)
    yield Case("peft", {"tunable": "head"})
    yield Case("peft", {"tunable": "head", "statistics": {"samples": 20}}, examples=90)
    yield Case("entropy-subset", {"shares": [0.3], "weigh": "local", "statistics": {"numbers": "int8"}})
    yield Case("entropy-subset", {"shares": [0.3]}, most_weight=2**33)
    yield Case("few-shot", {"statistics": {"hold_out": 0.5, "samples": 5, "most_classes": 2}})
    yield Case("few-shot", {"statistics": {"features": 16}}, examples=77)
    yield Case("zeroth-order", {"num_z": 4}, scale=8.0)
    yield Case("zeroth-order", {"num_z": 2}, scale=1e6, most_weight=30)
    yield Case("zeroth-order", {"num_z": 1}, scale=2.0, most_norm=0.25)
    yield Case("zeroth-order", {"num_z": 2, "statistics": {"moments": False}}, loss=2e6)
    yield Case("class-means", loss=nan, scale=50.0)
    yield Case("class-means", {"statistics": {}}, loss=nan, examples=64)
    yield Case("full", statistics, most_weight=5)
    graded = {"epochs": 4, "graded": True, "weigh_epochs": True}
    yield Case("full", graded, form="epochs=1")
    shares = {"shares": [0.5, 0.3], "weigh": "local"}
    yield Case("entropy-subset", {**graded, **shares}, form="30% epochs=2")


def vectors() -> dict[str, Any]:
    bundle = Bundle.open(shipped_folder(BUNDLE))
    return {"bundle": BUNDLE, "written": [_written(case, bundle, at) for at, case in enumerate(cases())]}


def noise(seed: int, count: int) -> NDArray[np.float64]:
    """`count` numbers between -0.5 and 0.5: x / 65536 - 0.5, where x <- (75 x + 74) mod 65537."""
    values = []
    for _ in range(count):
        seed = (75 * seed + 74) % 65537
        values.append(seed)
    return np.array(values) / 65536 - 0.5


def _written(case: Case, bundle: Bundle, at: int) -> dict[str, Any]:
    kind, base = registry.make(case.kind, case.settings), bundle.weights()
    strategy = variant_named(kind, case.form) if case.form else kind
    masks = Masks(
        helpers=(HelperKey("a", bytes(32)),),
        min_group=2,
        capacity=case.capacity,
        most_weight=case.most_weight,
        noise_milli=case.noise_milli,
    )
    layout = layout_of(strategy, bundle.manifest, base, masks)
    specs = strategy.expected(bundle.manifest)
    parts = {spec.name: _tensor(spec, base, case, at + i) for i, spec in enumerate(specs)}
    sent = _statistics(strategy, case, at)
    update = Update(case.kind, {**parts, **sent}, case.examples, case.loss, strategy.variant)
    weighed = sums.Weighed(update, kind, case.most_weight)
    vector, note = sums.write(weighed, layout, case.most_norm)
    return {
        "seed": at,
        "kind": case.kind,
        "settings": case.settings,
        "form": case.form,
        "examples": case.examples,
        "loss": case.loss if isfinite(case.loss) else None if isnan(case.loss) else "Infinity",
        "most_weight": case.most_weight,
        "capacity": case.capacity,
        "scale": case.scale,
        "most_norm": case.most_norm,
        "noise_milli": case.noise_milli,
        "statistics": tensors.encode(sent) if sent else None,
        "note": note,
        **_described(layout),
        "share": weighed.share,
        "first_values": vector.values[:8].tolist(),
        "first_sums": [str(number) for number in vector.sums[:24]],
        "sha256": hashlib.sha256(vector.to_bytes()).digest(),
    }


def _described(layout: SumLayout) -> dict[str, Any]:
    """The length of each tensor or sum, its bound, and its exponent; and the runs of exponents."""
    return {
        "exponents": layout.exponents,
        "values": [[part.size, part.bound, part.exponent] for part in layout.tensors],
        "sums": [[part.size, part.bound_bits, part.exponent] for part in layout.sums],
    }


def _tensor(spec: TensorSpec, base: Tensors, case: Case, seed: int) -> NDArray[Any]:
    drawn = case.scale * noise(seed, int(np.prod(spec.shape))).reshape(spec.shape)
    if spec.dtype == "int32":
        return np.floor(np.abs(drawn)).astype(np.int32)
    return (base[spec.name] + drawn if spec.name in base else drawn).astype(np.float32)


def _statistics(strategy: AnyStrategy, case: Case, at: int) -> dict[str, NDArray[Any]]:
    """Class statistics as a device sends them. Features are fractions of 256, whose sums are exact."""
    request = kind_statistics.statistics_of(strategy)
    if request is None or case.without == "statistics":
        return {}
    if case.without == "moments":
        request = replace(request, moments=False)
    width = min(WIDTH, request.features)
    features = np.floor(noise(at, SEEN * width) * 2**15).reshape(SEEN, width) / 256
    y = np.arange(SEEN) % 4 * 2
    statistics = class_statistics.measure_statistics(features.astype(np.float32), y, LABELS, 2)
    return class_statistics.encode(replace(statistics, right=np.array([4.0, 3.0, 1.0])), request)
