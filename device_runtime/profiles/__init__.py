"""What a device can do and what work costs on it: measured, predicted, classified."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed
from .shipped import ProfileError, shipped, shipped_names

if TYPE_CHECKING:
    from .cost import Cost, GraphPass, GraphWork, StragglerVerdict, Work, Workload, classify, predict
    from .fleets.fleet import BatterySpec, Fleet, FleetSpec
    from .fleets.groups import Chances
    from .measure import host_profile, measure_speed

__all__ = [
    "Bandwidth",
    "Battery",
    "BatterySpec",
    "Chances",
    "Cost",
    "DeviceProfile",
    "Fleet",
    "FleetSpec",
    "GraphPass",
    "GraphWork",
    "Memory",
    "Power",
    "ProfileError",
    "Speed",
    "StragglerVerdict",
    "Work",
    "Workload",
    "classify",
    "host_profile",
    "measure_speed",
    "predict",
    "shipped",
    "shipped_names",
]

_WHERE = {
    ".fleets.groups": ("Chances",),
    ".cost": (
        "Cost",
        "GraphWork",
        "GraphPass",
        "StragglerVerdict",
        "Work",
        "Workload",
        "classify",
        "predict",
    ),
    ".fleets.fleet": ("BatterySpec", "Fleet", "FleetSpec"),
    ".measure": ("host_profile", "measure_speed"),
}
_LATER = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    """A device that waits needs none of these: they are imported when they are first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
