"""Weights of the shipped bundle perturbed, and after the steps of a log: hashes of their safetensors."""

import hashlib
from typing import Any

import msgspec

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.tensors import Flat
from device_runtime.strategies.directions import directions
from device_runtime.strategies.directions.replaying import ScaledDirection, perturb, replay

BUNDLE = "digits-wrn-10-1"
POPCOUNT, SIGNS = directions.GENERATOR, directions.RADEMACHER
STEPS = (
    Step(1, POPCOUNT, 2**64 - 9, "all", 1e-2, 1.0, (0.5, -1.25)),
    Step(2, POPCOUNT, 12, "all", 1e-2, 0.7, (3.0, 1e-3, -7.5)),
    Step(3, SIGNS, 13, "mid", 3e-2, 1.0, (1.0,)),
    Step(4, SIGNS, 14, "mid", 3.3e-4, 0.25, (17.0, -127.0)),
    Step(5, POPCOUNT, 15, "head", 1e-1, 1 / 3, (0.1, 0.2)),
)
ALONG = (
    ("all", ScaledDirection(3, 1, 1e-3, POPCOUNT)),
    ("mid", ScaledDirection(2**63, 0, -0.0078125, SIGNS)),
)


def vectors() -> dict[str, Any]:
    bundle = Bundle.open(shipped_folder(BUNDLE))
    weights, manifest = bundle.weights(), bundle.manifest
    perturbed = []
    for tunable, along in ALONG:
        flat = Flat(manifest.specs(tunable))
        perturb(flat, weights, along)
        direction = {"seed": str(along.seed), "index": along.index, "scale": along.scale}
        perturbed.append(
            {"tunable": tunable, "generator": along.generator, **direction, "sha256": _sha(flat.views)}
        )
    return {
        "bundle": BUNDLE,
        "perturbed": perturbed,
        "steps": [
            {
                **msgspec.structs.asdict(step),
                "seed": str(step.seed),
            }
            for step in STEPS
        ],
        "after": [_sha(replay(weights, STEPS[:count], manifest)) for count in range(1, len(STEPS) + 1)],
    }


def _sha(values: tensors.Tensors) -> bytes:
    return hashlib.sha256(tensors.encode(values)).digest()
