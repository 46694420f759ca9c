"""Shipped device profiles: the boards, phones and computers in `boards.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from device_runtime.content import content
from device_runtime.toml_file import read_toml

from .device import Bandwidth, DeviceProfile, Memory, Power, Speed

MOBILENET_V2_FLOPS = 0.6e9
"""Two FLOPs for each of MobileNetV2's 300 million multiply-adds at 224 px (Sandler et al. 2018, table 4)."""

RESNET_18_FLOPS = 3.6e9
"""Two FLOPs for each of ResNet-18's 1.8 billion multiply-adds at 224 px (He et al. 2016, table 1)."""


RESIDENT_BYTES = 82_000_000
"""Memory of a device process that is idle after joining (measured: benchmarks/footprint.py)."""


class ProfileError(Exception):
    """Raised for a profile or a fleet that does not exist or is not valid."""


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of `boards.toml`; the head of that file explains the figures."""

    title: str
    cores: int
    memory_mb: int
    available_mb: int
    memory_source: str
    mobilenet_v2_ms: float
    resnet18_ms: float
    speed_source: str
    idle_w: float
    load_w: float
    power_source: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    link_source: str

    @property
    def flops_per_s(self) -> float:
        """The rate with MobileNetV2: on every board the lower of the two, since its layers are thin."""
        return MOBILENET_V2_FLOPS / (self.mobilenet_v2_ms / 1000)

    @property
    def wide_flops_per_s(self) -> float:
        """The rate with ResNet-18, that of networks with wide layers."""
        return RESNET_18_FLOPS / (self.resnet18_ms / 1000)

    def profile(self, name: str) -> DeviceProfile:
        return DeviceProfile(
            name=name,
            cores=self.cores,
            memory=Memory(self.memory_mb * 2**20, self.available_mb * 2**20, RESIDENT_BYTES),
            speed=Speed(self.flops_per_s, source=self.speed_source),
            bandwidth=Bandwidth(self.up_bytes_per_s, self.down_bytes_per_s, "shipped profile, assumed"),
            power=Power(self.idle_w, self.load_w, self.power_source),
        )


@cache
def boards() -> Mapping[str, Board]:
    """All boards by name, in the order of the file."""
    table = read_toml(content("profiles") / "boards.toml", ProfileError)
    return MappingProxyType(msgspec.convert(table, dict[str, Board]))


def shipped_names() -> tuple[str, ...]:
    return tuple(boards())


def shipped(name: str) -> DeviceProfile:
    """The shipped profile of this name. Raises ProfileError, which lists the known names."""
    try:
        return boards()[name].profile(name)
    except KeyError:
        raise ProfileError(f"no profile named {name!r}; there are {', '.join(shipped_names())}") from None
