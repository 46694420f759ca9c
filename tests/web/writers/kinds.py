"""One contribution of each kind on the shipped bundle, what settings mean and which are refused."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, pack, shipped_folder
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import class_statistics, class_sums, kind_statistics

BUNDLE, LABELS, WIDTH = "digits-wrn-10-1", 10, 64
NEAR = {"tensors": 1e-5, "train_loss": 1e-5, "g": 2e-3, "statistics": 1e-3, "mean": 2e-2}
"""An engine adds float32 numbers in another order on each processor: 1e-7 a sum, a hundredfold after two
epochs of small steps. A scalar g is a difference of two losses over 2 eps: 1e-7 over 2e-3, and tenfold. Class
statistics are float16 of at most 1: the next one is 5e-4 away; class means as int8 of at most 2: 1.6e-2."""
FEW = 12
"""Values of a tensor that are written, evenly from the first to the last."""
SEED, DEVICE, SAMPLES = 2**63 + 11, "phone-1", 41
MEASURED = {"sides": 1, "sizing": "relative", "num_z": 4, "eps": 0.01, "generator": "philox4x64-rademacher/1"}
WORK: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full", {"epochs": 2, "batch": 16, "lr": 0.01, "terms": {"fedprox": {"mu": 0.1}}, "clip_norm": 1.0}),
    ("full", {"epochs": 3, "reduced_epochs": 1, "batch": 36, "lr": 0.01}),
    ("peft", {"epochs": 2, "batch": 16, "tunable": "head"}),
    ("peft", {"epochs": 2, "batch": 16, "tunables": ("head",), "reduced_epochs": 1}),
    ("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01, "shares": (0.1, 0.3)}),
    ("entropy-subset", {"epochs": 2, "batch": 8, "lr": 0.01, "select": "random"}),
    ("few-shot", {"shots": 2, "epochs": 3}),
    ("zeroth-order", {}),
    ("zeroth-order", {**MEASURED, "sampled": 0.5, "tunable": "mid"}),
    ("class-means", {}),
    ("class-means", {"smallest_count": 6}),
    ("class-means", {"statistics": {"samples": 17}}),
    ("class-means", {"statistics": {"smallest_count": 5, "moments": False}}),
    ("full", {"epochs": 1, "batch": 16, "statistics": {}}),
    ("peft", {"epochs": 1, "tunable": "head", "statistics": {"smallest_count": 5}}),
    ("entropy-subset", {"epochs": 1, "shares": (0.3,), "statistics": {"smallest_count": 1}}),
    ("few-shot", {"shots": 2, "epochs": 3, "statistics": {"samples": 5}}),
    ("zeroth-order", {"statistics": {"samples": 20, "smallest_count": 1}}),
    ("full", {"epochs": 1, "batch": 16, "statistics": {"hold_out": 0.25}}),
    ("few-shot", {"shots": 2, "epochs": 3, "statistics": {"hold_out": 0.5}}),
    ("zeroth-order", {"statistics": {"samples": 20, "hold_out": 0.3}}),
)
WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fuller", {}),
    ("full", {"epoch": 1}),
    ("full", {"epochs": 0}),
    ("full", {"epochs": "2"}),
    ("full", {"lr": 0}),
    ("full", {"momentum": 1.0}),
    ("full", {"reduced_epochs": 11}),
    ("full", {"codec": "int9"}),
    ("full", {"terms": {"fedprox": {"mu": 0}}}),
    ("full", {"terms": {"fedprox": {"weight": 1}}}),
    ("full", {"terms": {"prox": {}}}),
    ("full", {"terms": ["fedprox"]}),
    ("peft", {"tunable": "all"}),
    ("peft", {"tunables": ("bias", "bias")}),
    ("entropy-subset", {"shares": ()}),
    ("entropy-subset", {"shares": (1.5,)}),
    ("entropy-subset", {"tunable": "low"}),
    ("entropy-subset", {"least_samples": -1}),
    ("few-shot", {"codec": None}),
    ("zeroth-order", {"codec": "half"}),
    ("zeroth-order", {"sides": 3}),
    ("zeroth-order", {"generator": "torch-normal/1"}),
    ("zeroth-order", {"num_z": 2000}),
    ("zeroth-order", {"sampled": 1.5}),
    ("full", {"statistics": {"numbers": "float32"}}),
    ("full", {"statistics": {"smallest_count": 0}}),
    ("full", {"statistics": {"samples": -1}}),
    ("few-shot", {"statistics": {"count": 3}}),
    ("few-shot", {"statistics": True}),
    ("class-means", {"head": "best"}),
    ("class-means", {"codec": "half"}),
    ("class-means", {"smallest_count": 0}),
    ("class-means", {"statistics": {"samples": -1}}),
    ("class-means", {"statistics": {"numbers": "int4"}}),
    ("class-means", {"statistics": {"hold_out": 0.6}}),
    ("full", {"statistics": {"hold_out": "0.1"}}),
)


def vectors() -> dict[str, Any]:
    bundle = Bundle.open(shipped_folder(BUNDLE))
    raw, y = noise(5, SAMPLES * 64) % 17, noise(6, SAMPLES) % 9
    data = LocalData(bundle.manifest.input.prepare(raw.reshape(-1, 8, 8)), y)
    return {
        "bundle": {"name": BUNDLE, "sha256": hashlib.sha256(pack(shipped_folder(BUNDLE))).digest()},
        "data": {"raw": raw.astype(np.uint8).tobytes(), "y": y.tolist(), "seed": str(SEED), "device": DEVICE},
        "aside": {
            name: {"shape": list(value.shape), "values": value.tobytes()} for name, value in _aside().items()
        },
        "made": [_update_of(bundle, data, kind, settings) for kind, settings in WORK],
        "fields": {
            kind: registry.settings(registry.make(kind)) for kind in sorted({kind for kind, _ in WORK})
        },
        "refused": [_refused(kind, settings) for kind, settings in WRONG],
    }


def noise(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """`count` numbers from 0 to 65536: x <- (75 x + 74) mod 65537."""
    values = []
    for _ in range(count):
        seed = (75 * seed + 74) % 65537
        values.append(seed)
    return np.array(values)


def _aside() -> dict[str, NDArray[np.float32]]:
    """A closed-form head, as it comes beside the base."""
    values = (noise(7, LABELS * (WIDTH + 1)) / 65536 - 0.5).astype("<f4")
    weights, bias = values[LABELS:].reshape(LABELS, WIDTH), values[:LABELS]
    return {"closed-form/head.weight": weights, "closed-form/head.bias": bias}


def _update_of(bundle: Bundle, data: LocalData, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """By the richest form of the kind."""
    strategy = registry.make(kind, settings)
    run = Run(SEED, DEVICE, clock=lambda: 0.0, upload_at=1.0, aside=_aside())
    sent = kind_statistics.train(strategy.variants()[0], OnnxModel(bundle), data, run)
    update, statistics = class_statistics.split_statistics(sent.tensors)
    return {
        "kind": kind,
        "settings": settings,
        "forms": [form.variant for form in strategy.variants()],
        "form": sent.variant,
        "num_examples": sent.num_examples,
        "train_loss": float(np.float32(sent.train_loss)) if np.isfinite(sent.train_loss) else None,
        "tensors": _described(update),
        "statistics": _described(statistics),
    }


def _described(sent: Tensors) -> dict[str, Any]:
    """Of rows of class means the numbers that they stand for: bytes differ where two engines do."""
    return {
        name: {"dtype": value.dtype.name, "shape": list(value.shape)}
        | ({"rows": _read(value)} if name.endswith("rows") else {"values": _few(value)})
        for name, value in sorted(sent.items())
    }


def _read(rows: NDArray[np.uint8]) -> list[dict[str, Any]]:
    sums = class_sums.read_rows(rows, LABELS, WIDTH)
    means = sums.sums[sums.present] / sums.counts[sums.present, None]
    return [
        {"label": int(label), "count": int(sums.counts[label]), "mean": _few(mean)}
        for label, mean in zip(sums.present, means, strict=True)
    ]


def _few(value: np.ndarray[Any, Any]) -> list[float]:
    flat = value.reshape(-1)
    return [flat[i].item() for i in np.unique(np.linspace(0, flat.size - 1, FEW).astype(int))]


def _refused(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        registry.make(kind, settings)
    except KindError:
        return {"kind": kind, "settings": settings}
    raise AssertionError(f"{kind} takes {settings}")
