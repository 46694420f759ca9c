"""The boards and phones in `boards.toml`, as device profiles."""

from __future__ import annotations

import sys
from functools import cache
from importlib import resources

import msgspec

from .device import Bandwidth, DeviceProfile, Memory, Power, Speed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOBILENET_V2_FLOPS = 0.6e9
"""Two for each of MobileNetV2's 300 million multiply-adds at 224 px (Sandler et al. 2018, table 4)."""


class ProfileError(Exception):
    """A profile that does not exist, or that does not read as one."""


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file; see its head for what the figures mean."""

    cores: int
    memory_mb: int
    available_mb: int
    mobilenet_v2_ms: float
    speed_source: str
    idle_w: float
    load_w: float
    power_source: str
    up_bytes_per_s: float
    down_bytes_per_s: float

    def profile(self, name: str) -> DeviceProfile:
        rate = MOBILENET_V2_FLOPS / (self.mobilenet_v2_ms / 1000)
        return DeviceProfile(
            name=name,
            cores=self.cores,
            memory=Memory(self.memory_mb * 2**20, self.available_mb * 2**20),
            speed=Speed(rate, source=self.speed_source),
            bandwidth=Bandwidth(self.up_bytes_per_s, self.down_bytes_per_s, "shipped profile, assumed"),
            power=Power(self.idle_w, self.load_w, self.power_source),
        )


@cache
def _boards() -> dict[str, Board]:
    text = resources.files(__package__).joinpath("boards.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Board])


def shipped_names() -> tuple[str, ...]:
    return tuple(_boards())


def shipped(name: str) -> DeviceProfile:
    """The shipped profile of this name. Raises ProfileError, listing the names there are."""
    try:
        return _boards()[name].profile(name)
    except KeyError:
        raise ProfileError(f"no profile named {name!r}; there are {', '.join(shipped_names())}") from None
