"""What a device can do and what work costs on it: measured, predicted, classified."""

from .chances import Chances
from .cost import Cost, GraphWork, Pass, Work, Workload, predict
from .device import Bandwidth, Battery, DeviceProfile, Memory, Power, Speed
from .fleets import BatterySpec, Fleet, FleetSpec
from .measure import host_profile, measure_speed
from .shipped import ProfileError, shipped, shipped_names
from .straggler import Verdict, classify

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
