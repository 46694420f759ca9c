"""Wheels for another machine, downloaded by the real pip from a folder of made ones."""

import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

from device_runtime.cli import main


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Makes a wheel with nothing in it, where pip looks for wheels; and only there."""
    index = tmp_path / "index"
    index.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(index)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    def make(name, *requires, tag="py3-none-any", extras=(), version="1.0"):
        path = index / f"{name}-{version}-{tag}.whl"
        lines = [f"Name: {name}", f"Version: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        inside = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{inside}/METADATA", "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
            archive.writestr(f"{inside}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{inside}/RECORD", "")
        return path

    return make


@pytest.fixture
def ours(wheel):
    """A device-runtime that asks for a little of each sort."""
    for tag in ("manylinux_2_28_aarch64", "manylinux_2_28_x86_64", "macosx_14_0_arm64"):
        wheel("engine", "helper", 'arm_only; platform_machine == "aarch64"', tag=f"cp312-cp312-{tag}")
        wheel("engine", "helper", 'old_only; python_version < "3.11"', tag=f"cp310-cp310-{tag}")
    for name in ("helper", "arm_only", "old_only", "tomli", "pictures"):
        wheel(name)
    return wheel(
        "device_runtime",
        "engine>=1",
        'tomli; python_version < "3.11"',
        'pictures; extra == "images"',
        'device-runtime[images]; extra == "all"',
        extras=("images", "all"),
    )


@pytest.fixture
def bundled(ours, tmp_path):
    """Names of what is downloaded for a machine."""

    def of(*words):
        out = tmp_path / "wheels"
        assert main(["bundle-wheels", str(out), "--wheel", str(ours), *words]) == 0
        return {re.sub(r"-1\.0-(py3-none-any)?", "-", path.stem).rstrip("-") for path in out.glob("*.whl")}

    return of


@pytest.mark.slow
def test_conditions_are_judged_for_the_device_at_any_depth_and_not_for_this_machine(bundled):
    where = ("--platform", "linux-aarch64", "--python", "3.12")
    engine = "engine-cp312-cp312-manylinux_2_28_aarch64"
    assert bundled(*where) == {"device_runtime", engine, "helper", "arm_only"}


@pytest.mark.slow
def test_an_older_python_gets_what_only_it_needs(bundled):
    where = ("--platform", "macos-arm64", "--python", "3.10")
    engine = "engine-cp310-cp310-macosx_14_0_arm64"
    assert bundled(*where) == {"device_runtime", engine, "helper", "old_only", "tomli"}


def test_an_extra_that_names_another_brings_its_wheels(bundled):
    where = ("--platform", "linux-x86_64", "--python", "3.12", "--extras", "all")
    engine = "engine-cp312-cp312-manylinux_2_28_x86_64"
    assert bundled(*where) == {"device_runtime", engine, "helper", "pictures"}


@pytest.mark.slow
def test_what_is_pinned_is_taken_instead_of_the_newest(bundled, wheel):
    wheel("helper", version="2.0")
    where = ("--platform", "linux-x86_64", "--python", "3.12")
    assert "helper" in bundled(*where, "--pin", "helper==1.0")
    assert "helper-2.0-py3-none-any" in bundled(*where)


@pytest.mark.slow
def test_the_line_that_is_printed_installs_all_of_it_without_a_network(wheel, tmp_path, capsys, monkeypatch):
    wheel("helper")
    own = wheel("device_runtime", "helper", 'pictures; extra == "images"', extras=("images",))
    wheel("pictures")
    out = tmp_path / "wheels"
    assert main(["bundle-wheels", str(out), "--wheel", str(own), "--extras", "images"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "--no-index" in line]
    monkeypatch.delenv("PIP_FIND_LINKS")
    words = line.replace("'", "").split()[1:]
    command = [sys.executable, "-m", "pip", *words, "--target", tmp_path / "site"]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    names = {path.name for path in (tmp_path / "site").glob("*.dist-info")}
    assert names == {f"{name}-1.0.dist-info" for name in ("device_runtime", "helper", "pictures")}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Of device-runtime 1.0, as pip leaves it: from where it was installed, where that is not the index."""

    def of(url=""):
        about = tmp_path / "site" / "device_runtime-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: device-runtime\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(
            "[device_runtime.cli]\nbundle-wheels = device_runtime.cli.operator.bundle_wheels\n"
        )
        if url:
            (about / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
        monkeypatch.syspath_prepend(tmp_path / "site")

    return of


BACKEND = """
import zipfile
from pathlib import Path

def build_wheel(folder, settings=None, metadata=None):
    name = "device_runtime-1.0+here-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, name), "w") as made:
        inside = "device_runtime-1.0+here.dist-info/"
        said = "Metadata-Version: 2.1\\nName: device-runtime\\nVersion: 1.0+here\\nRequires-Dist: helper\\n"
        made.writestr(inside + "METADATA", said)
        made.writestr(inside + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        made.writestr(inside + "RECORD", "")
    return name
"""


def names(out):
    return sorted(path.name for path in out.glob("device_runtime-*.whl"))


@pytest.mark.slow
def test_without_a_wheel_the_index_s_of_the_installed_version_is_taken(ours, installed, wheel, tmp_path):
    wheel("device_runtime", version="2.0")
    installed()
    out = tmp_path / "wheels"
    assert main(["bundle-wheels", str(out), "--platform", "linux-x86_64", "--python", "3.12"]) == 0
    assert names(out) == ["device_runtime-1.0-py3-none-any.whl"]
    assert (out / "helper-1.0-py3-none-any.whl").exists()


def test_without_a_wheel_one_is_made_of_the_folder_that_it_was_installed_from(wheel, installed, tmp_path):
    wheel("helper")
    source, out = tmp_path / "a checkout", tmp_path / "wheels"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n'
    )
    (source / "made.py").write_text(BACKEND)
    installed(source.as_uri())
    assert main(["bundle-wheels", str(out)]) == 0
    assert names(out) == ["device_runtime-1.0+here-py3-none-any.whl"]


@pytest.mark.slow
def test_without_a_wheel_a_folder_that_is_gone_is_not_missed(ours, installed, tmp_path):
    installed((tmp_path / "gone").as_uri())
    out = tmp_path / "wheels"
    assert main(["bundle-wheels", str(out), "--platform", "linux-x86_64", "--python", "3.12"]) == 0
    assert names(out) == ["device_runtime-1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--python", "3.9"), "Python 3.9 is too old: device-runtime needs 3.10"),
        (("--python", "three"), "'three' is no version of Python, as 3.11 is"),
        (("--extras", "wings"), "device-runtime has no extra 'wings'; it has all, images"),
        (("--pin", "=="), "--pin ==: "),
        (
            ("--python", "3.13", "--platform", "linux-aarch64"),
            "pip download: ERROR: No matching distribution",
        ),
        (("--wheel", "nowhere.whl"), "nowhere.whl is not a wheel that can be read"),
    ],
)
def test_what_cannot_be_bundled_is_said_in_one_line(ours, tmp_path, capsys, words, message):
    arguments = words if "--wheel" in words else (*words, "--wheel", str(ours))
    assert main(["bundle-wheels", str(tmp_path / "wheels"), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("device-runtime: ")
    assert message in line
