"""Device profiles, the predicted cost of an update, and the fleets that simulations draw."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .device import (
    Bandwidth,
    Battery,
    DeviceProfile,
    Memory,
    Power,
    ProfileError,
    Speed,
    shipped,
    shipped_names,
)

if TYPE_CHECKING:
    from device_runtime.profiles.fleets.groups import Disturbances

    from .cost import Cost, GraphPass, GraphWork, StragglerVerdict, Work, Workload, classify, predict
    from .fleets.fleet import BatterySpec, Fleet, FleetSpec
    from .measure import host_profile, measure_speed

__all__ = [
    "Bandwidth",
    "Battery",
    "BatterySpec",
    "Cost",
    "DeviceProfile",
    "Disturbances",
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

_NAMES_OF_MODULE = {
    ".fleets.groups": ("Disturbances",),
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
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: a waiting device needs none of them, and their imports take memory."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF_NAME[name], __name__), name)
