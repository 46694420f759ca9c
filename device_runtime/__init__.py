"""On-device training for federated learning: simulations, aggregators, devices and their models, from Python.

    import device_runtime as dr
    result = dr.simulate("digits", policies=["mixed", "fedavg"])

docs/python.md introduces all names. Each is imported when it is first used, so that importing this package
costs nothing on a device.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .extras import extra_needed

if TYPE_CHECKING:
    from device_runtime.device.personal.predictions import Guess, Personal, Prediction
    from device_runtime.simulation.rounds.callbacks import Callback
    from device_runtime.simulation.scenarios.scenario import Scenario

    from .aggregator.tasks.kind_settings import KindSettings
    from .aggregator.tasks.task import Task
    from .api import data as data
    from .api.aggregating import Aggregator
    from .api.device import Device, DeviceOptions, load
    from .api.exporting import export
    from .api.forecasting import forecast
    from .api.result import ComparedFolders, SimulatedRun, SimulationResult
    from .api.simulating import compare, simulate
    from .api.sweeping import SweepResult, sweep
    from .models.bundles.bundle import Bundle
    from .models.bundles.inputs import InputSpec, WindowInput
    from .profiles.fleets.fleet import FleetSpec as Fleet

__all__ = [
    "Aggregator",
    "Bundle",
    "Callback",
    "ComparedFolders",
    "Device",
    "DeviceOptions",
    "Fleet",
    "Guess",
    "InputSpec",
    "KindSettings",
    "Personal",
    "Prediction",
    "Scenario",
    "SimulatedRun",
    "SimulationResult",
    "SweepResult",
    "Task",
    "WindowInput",
    "compare",
    "data",
    "export",
    "forecast",
    "load",
    "simulate",
    "sweep",
]

_HOMES = {
    "Aggregator": "api.aggregating",
    "Bundle": "models.bundles.bundle",
    "Callback": "simulation.rounds.callbacks",
    "ComparedFolders": "api.result",
    "Device": "api.device",
    "DeviceOptions": "api.device",
    "Fleet": "profiles.fleets.fleet:FleetSpec",
    "Guess": "device.personal.predictions",
    "InputSpec": "models.bundles.inputs",
    "KindSettings": "aggregator.tasks.kind_settings",
    "Personal": "device.personal.predictions",
    "Prediction": "device.personal.predictions",
    "Scenario": "simulation.scenarios.scenario",
    "SimulatedRun": "api.result",
    "SimulationResult": "api.result",
    "SweepResult": "api.sweeping",
    "Task": "aggregator.tasks.task",
    "WindowInput": "models.bundles.inputs",
    "compare": "api.simulating",
    "data": "api.data:",
    "export": "api.exporting",
    "forecast": "api.forecasting",
    "load": "api.device",
    "simulate": "api.simulating",
    "sweep": "api.sweeping",
}
"""Name -> its module, with its name there after a colon if that is another; none for the module itself."""


def __getattr__(name: str) -> Any:
    """Import the names above when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, colon, other = _HOMES[name].partition(":")
    try:
        home = import_module(f".{module}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or __name__).partition(".")[0] == __name__:
            raise
        extra = "aggregator" if name in ("Aggregator", "KindSettings", "Task") else "simulation"
        raise ModuleNotFoundError(extra_needed(name, extra, error.name), name=error.name) from error
    target = home if colon and not other else getattr(home, other or name)
    globals()[name] = target
    return target


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
