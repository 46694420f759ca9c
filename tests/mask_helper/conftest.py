"""Devices that mask, and requests for the sums of their masks."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire.sum_messages import SumRequest, SumSeed
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, seal

SECRETS = (b"\x11" * 32, b"\x22" * 32)
"""Secret keys of the round's helpers."""


@dataclass
class MaskingRound:
    """A round of a task whose devices mask: their sealed seeds, and what a helper is asked for.

    publics: the helpers' public keys. entries: (what is sent, the seeds) of each device.
    """

    publics: Sequence[bytes] = tuple(crypto_scalarmult_base(secret) for secret in SECRETS)
    values: int = 9
    sums: int = 2
    min_group: int = 3
    more: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, tuple[SumSeed, tuple[bytes, ...]]] = field(default_factory=dict)

    def purpose(self, device: str, **other: Any) -> MaskPurpose:
        of = {"task": "digits", "run": "run-1", "round": 4, "kind": "full", "form": "", "device": device}
        return MaskPurpose(**{**of, "min_group": self.min_group, **self.more, **other})

    def sealed(self, device: str, **other: Any) -> SumSeed:
        """What a device sends of its mask, made for this round, or for another purpose."""
        if device not in self.entries or other:
            purpose = self.purpose(device, **other)
            mask, seeds = seal(device.encode().rjust(32, b"."), self.publics, purpose)
            entry = SumSeed(device, purpose.form, mask), seeds
            if other:
                return entry[0]
            self.entries[device] = entry
        return self.entries[device][0]

    def request(self, *devices: str | SumSeed, **other: Any) -> tuple[SumRequest, bytes]:
        """A request for the sum of these devices' masks, and its list of seeds."""
        seeds = tuple(self.sealed(device) if isinstance(device, str) else device for device in devices)
        content = msgspec.msgpack.encode(seeds)
        of = {"task": "digits", "run": "run-1", "round": 4, "kind": "full", "at": 0, "body": content}
        sizes = {"min_group": self.min_group, "values": self.values, "sums": self.sums, **self.more}
        named = msgspec.msgpack.encode((of, sizes, other))
        return SumRequest(**{"id": hashlib.sha256(named).digest(), **of, **sizes, **other}), content

    def expected(self, *devices: str, at: int = 0) -> MaskedVector:
        """The sum of the masks that these devices added."""
        total = MaskedVector.zeros(self.values, self.sums)
        total.add_masks([self.entries[device][1][at] for device in devices])
        return total


@pytest.fixture
def masking() -> Callable[..., MaskingRound]:
    return MaskingRound
