"""What is installed on a device, and what importing it brings in."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent


def modules_after(statement):
    """Names of all top-level modules in a new process after this statement."""
    program = (
        f"{statement}\nimport sys, json; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    return set(json.loads(subprocess.check_output([sys.executable, "-c", program], text=True)))


@pytest.mark.parametrize(
    "statement",
    [
        "import device_runtime",
        "import device_runtime.cli",
        "import device_runtime.commands.join",
        "from device_runtime.commands import doctor, explain, join, profile",
    ],
)
def test_the_device_imports_neither_torch_nor_aggregator_nor_simulation(statement):
    loaded = modules_after(statement)
    assert not loaded & {
        "torch",
        "onnx",
        "onnxscript",
        "aggregator",
        "simulation",
        "amqtt",
        "rich",
        "sklearn",
    }


def test_a_device_at_work_brings_in_no_torch_either():
    loaded = modules_after(
        "from models.bundle import Bundle, shipped\n"
        "from models.engines import open_model\n"
        "import numpy as np, strategies.registry as r\n"
        "from strategies.kind import LocalData, Run\n"
        "model = open_model(Bundle.open(shipped('digits-wrn-10-1')))\n"
        "data = LocalData(np.zeros((8, 1, 8, 8), np.float32), np.arange(8))\n"
        "for name in r.USUAL: r.make(name).train(model, data, Run(1, 'd', lambda: 0.0, 1.0))"
    )
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "onnx", "aggregator", "simulation"}


def test_a_device_s_dependencies_are_the_few_that_are_priced():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [requirement.split(">")[0].split(";")[0].strip() for requirement in project["dependencies"]]
    assert names == [
        "numpy",
        "onnxruntime",
        "paho-mqtt",
        "psutil",
        "pynacl",
        "msgspec",
        "safetensors",
        "platformdirs",
        "tabulate",
        "tomli",
    ]
    text = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{name}' in text and "#" in text.split(f'"{name}', 1)[1].split("\n")[0] for name in names)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from this checkout and installed into a folder of its own."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, whose files alone go into the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, source], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def test_the_installed_wheel_runs_from_a_folder_with_its_own_models(installed, tmp_path):
    """`models`, `broker` and `profiles` are plain names: a user's own must not stand in for ours."""
    for name in ("models", "profiles", "broker", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')")
    ended = subprocess.run(
        [installed / "bin" / "device-runtime", "explain", "--deadline", "60"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "->" in ended.stdout


def test_the_wheel_holds_the_shipped_bundle_and_profiles_and_no_tests(installed):
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert "models/bundles/digits-wrn-10-1/weights.safetensors" in files
    assert {"profiles/boards.toml", "profiles/presets/phones.toml"} <= files
    assert not any(file.startswith(("tests/", "benchmarks/")) for file in files)


def test_the_wheel_holds_the_page_that_browsers_join_by_and_not_its_libraries(installed):
    """Which are 50 MB that a device has no use for: `device-runtime web fetch`."""
    page = installed / "aggregator" / "web" / "browser"
    files = {str(path.relative_to(page)): path.stat().st_size for path in page.rglob("*") if path.is_file()}
    known = subprocess.check_output(["git", "ls-files", "web"], cwd=ROOT, text=True).splitlines()
    here = {path.removeprefix("web/") for path in known}
    served = {path for path in here if path.startswith(("page/", "device/"))}
    assert {"page/index.html", "device/bytes.js", "vendor.js", "package-lock.json"} <= set(files)
    assert served <= set(files)
    assert set(files) <= here
    assert {path.split("/")[0] for path in files if "/" in path} == {"page", "device"}
    assert sum(files.values()) < 1_000_000


def test_the_device_s_image_starts_a_command_that_there_is():
    """Where the samples are is the one option that its default has; the enrolment tells the rest."""
    from device_runtime.commands import join

    said = (ROOT / "deploy" / "device.Dockerfile").read_text()
    [entry], words = (
        json.loads(line.split(" ", 1)[1])
        for line in said.splitlines()
        if line.startswith(("ENTRYPOINT", "CMD"))
    )
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    options = parser.parse_args(words[1:])
    assert (entry, words[0], options.broker, str(options.data)) == (
        "device-runtime",
        "join",
        None,
        "/samples",
    )


def test_every_extra_of_the_table_is_there():
    """docs/install.md tells what each adds."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [
        extra for extra in extras if extra != "dev" and not re.search(rf"(`|^ *){extra}\b", page, re.M)
    ] == []
