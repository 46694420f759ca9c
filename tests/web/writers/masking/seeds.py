"""Mask seeds that a device derives for the helpers of an offer, and the mask that it sends."""

from dataclasses import asdict, replace
from typing import Any

from nacl.bindings import crypto_scalarmult_base

from device_runtime.strategies.masking.seeds import MaskPurpose, seal

PURPOSE = MaskPurpose("digits", "run-1", 3, "full", "", "pi-7", 5)
PURPOSES = (
    PURPOSE,
    replace(PURPOSE, form="50% epochs=2", device="phone.7", round=2**40, min_group=2**20),
    replace(
        PURPOSE,
        task="Straße 🦊",
        run="",
        kind="zeroth-order",
        noise_milli=1100,
        clip_milli=2**40,
        exponents=((144, 24), (2**31, -1024)),
    ),
)


def vectors() -> dict[str, Any]:
    helpers = [crypto_scalarmult_base(bytes([17 * at]) * 32) for at in (1, 2, 3)]
    return {
        "sealed": [
            _sealed(bytes((7 * at + i) % 256 for i in range(32)), helpers[: at + 1], purpose)
            for at, purpose in enumerate(PURPOSES)
        ]
    }


def _sealed(secret: bytes, helpers: list[bytes], purpose: MaskPurpose) -> dict[str, Any]:
    mask, seeds = seal(secret, helpers, purpose)
    purpose_ = replace(purpose, helpers=len(helpers)) if purpose.noise_milli else purpose
    return {
        "secret": secret,
        "helpers": helpers,
        "purpose": asdict(purpose_),
        "encoded": purpose_.encoded(),
        "key": mask.key,
        "tags": mask.tags,
        "seeds": seeds,
    }
