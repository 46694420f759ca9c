"""`import device_runtime` costs nothing, and every name is there when it is used."""

import subprocess
import sys
import typing

import pytest

import device_runtime as dr

HEAVY = ("numpy", "torch", "onnxruntime", "msgspec", "matplotlib", "pandas")
INNER = ("aggregator", "api", "broker", "cli", "client", "models", "profiles", "simulation", "strategies")


def loaded_by(code):
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(process.stdout.split())


def test_importing_the_package_imports_nothing_else():
    loaded = loaded_by("import device_runtime; dir(device_runtime)")
    assert not loaded & {*HEAVY, *(f"device_runtime.{name}" for name in INNER)}


def test_a_device_s_model_needs_no_simulator_and_no_aggregator():
    loaded = loaded_by("import device_runtime; device_runtime.Personal, device_runtime.load")
    assert not loaded & {"torch", "matplotlib", "device_runtime.simulation", "device_runtime.aggregator"}


def test_simulations_import_torch_pictures_and_tables_only_when_used():
    loaded = loaded_by("import device_runtime; device_runtime.simulate, device_runtime.SimulationResult")
    assert "device_runtime.api.simulating" in loaded
    assert not loaded & {"torch", "matplotlib", "pandas", "IPython"}


@pytest.mark.parametrize("name", dr.__all__)
def test_every_public_name_is_there_and_described(name):
    part = getattr(dr, name)
    assert part.__doc__
    assert name in dir(dr)


def test_names_and_their_homes_are_the_same_names():
    assert sorted(dr._HOMES) == dr.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dr.nothing


def test_signatures_have_types():
    hints = typing.get_type_hints(dr.simulate)
    assert hints["return"] is dr.SimulationResult


@pytest.mark.parametrize(("name", "extra"), [("simulate", "simulation"), ("Aggregator", "aggregator")])
def test_a_name_that_needs_an_extra_says_which(name, extra):
    code = f"import sys; sys.modules['rpds'] = None\nimport device_runtime as dr\ndr.{name}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    why = f"ModuleNotFoundError: {name} needs the extra {extra}: pip install 'device-runtime[{extra}]'"
    assert process.stderr.splitlines()[-1] == f"{why} (rpds is not installed)"
