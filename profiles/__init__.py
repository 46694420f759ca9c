"""What a device can do and what work costs on it: measured, predicted, classified."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .cost import Cost, GraphWork, Pass, Work, Workload, predict
from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed
from .measure import host_profile, measure_speed
from .shipped import ProfileError, shipped, shipped_names
from .straggler import Verdict, classify

if TYPE_CHECKING:
    from .chances import Chances
    from .fleets import BatterySpec, Fleet, FleetSpec

__all__ = [
    "Bandwidth",
    "Battery",
    "BatterySpec",
    "Chances",
    "Cost",
    "DeviceProfile",
    "Fleet",
    "FleetSpec",
    "GraphWork",
    "Memory",
    "Pass",
    "Power",
    "ProfileError",
    "Speed",
    "Verdict",
    "Work",
    "Workload",
    "classify",
    "host_profile",
    "measure_speed",
    "predict",
    "shipped",
    "shipped_names",
]

_LATER = {"Chances": ".chances", "BatterySpec": ".fleets", "Fleet": ".fleets", "FleetSpec": ".fleets"}


def __getattr__(name: str) -> Any:
    """What draws at random needs numpy, and is imported when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
