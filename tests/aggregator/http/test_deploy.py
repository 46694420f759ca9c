"""What lies in deploy/, as far as a machine can check it without starting containers."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from device_runtime.cli.table import COMMANDS
from device_runtime.content import tomllib
from device_runtime.service_process import Exit

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.mark.parametrize(
    "name, person",
    [
        ("device-runtime", (Exit.SETTINGS, Exit.MISSING, Exit.FRUITLESS)),
        ("device-runtime-mask-helper", (Exit.SETTINGS, Exit.MISSING)),
        ("device-runtime-broker", ()),
    ],
)
def test_systemd_reads_the_units(name, person):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = DEPLOY / f"{name}.service"
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "/opt/device-runtime/bin" not in line]
    assert [line for line in complaints if unit.name in line] == []
    numbers = " ".join(f"{number:d}" for number in person)
    assert (
        re.findall(r"^RestartPreventExitStatus=(.*)$", unit.read_text(), re.MULTILINE)
        == [numbers][: len(person)]
    )


def test_options_of_the_commands_in_the_units_exist():
    for unit in DEPLOY.glob("*.service"):
        lines = re.findall(r"^ExecStart=\S+/device-runtime (.*)$", unit.read_text(), re.MULTILINE)
        if unit.stem == "device-runtime-broker":
            assert lines == []
            continue
        [line] = lines
        command, *words = shlex.split(line)
        parser = argparse.ArgumentParser(exit_on_error=False)
        import_module(COMMANDS[command].module).add_arguments(parser)
        parser.parse_args(words)


def test_every_image_and_what_is_installed_into_it_has_an_exact_version():
    files = [DEPLOY / "Dockerfile", DEPLOY / "device.Dockerfile", DEPLOY / "site" / "compose.yaml"]
    text = "\n".join(path.read_text() for path in files)
    images = re.findall(r"^(?:FROM|\s+image:) +(\S+)", text, re.MULTILINE)
    assert len(images) == 9
    for image in images:
        assert re.fullmatch(r"\S+(:v?\d+\.\d+\.\d+\S*|:{{version}}|@sha256:[0-9a-f]{64})", image), image
    commands = re.findall(r"pip install (.*?)(?:&&|\n(?!\s))", text.replace("\\\n", " "), re.DOTALL)
    assert len(commands) == 4
    for command in commands:
        assert re.search(r"pip==\d+\.\d+", command) or "-c deploy/constraints.txt" in command, command
    assert "npm ci " in text


def test_constraints_name_all_that_the_images_install_in_versions_that_are_meant():
    from packaging.requirements import Requirement

    lines = (DEPLOY / "constraints.txt").read_text().splitlines()[1:]
    pinned = dict(line.split("==") for line in lines)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    requirements = [*project["project"]["dependencies"], *extras["aggregator"], *extras["service"]]
    for text in [*requirements, *project["build-system"]["requires"]]:
        requirement = Requirement(text)
        if requirement.name != "tomli":  # for a Python that no image has
            assert requirement.specifier.contains(pinned[requirement.name]), text


def test_what_a_page_loads_of_libraries_is_checked_by_its_hash():
    lock = json.loads((DEPLOY.parent / "web" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 10
    for name, entry in packages.items():
        assert entry["integrity"].startswith("sha512-"), name
        assert "resolved" not in entry, name
