"""`make release`: all files, with equal bytes each time."""

import hashlib
import importlib.util
import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_two_releases_of_one_commit_have_equal_bytes(tmp_path, monkeypatch):
    if importlib.util.find_spec("cyclonedx_py") is None:
        pytest.skip("the extra release is not installed")
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this is no clone")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    release = runpy.run_path(str(ROOT / "deploy" / "release.py"))["release"]
    release(tmp_path / "first")
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    release(tmp_path / "second")
    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert first == second
    fetched = (ROOT / "web" / "vendor" / ".whole").exists() and shutil.which("npm")
    assert len(first) == (6 if fetched else 5), sorted(first)
    for line in first["SHA256SUMS"].decode().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256(first[name]).hexdigest() == digest
    bill = json.loads(first["device-runtime.cdx.json"])
    names = {component["name"] for component in bill["components"]}
    assert {"numpy", "onnxruntime", "pynacl", "cffi"} <= names
    assert "torch" not in names


def test_the_workflow_runs_the_two_commands_of_the_readme_everywhere():
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    lines = [step.get("run", "") for step in jobs["two-commands"]["steps"]]
    assert [line for line in lines if line.startswith("make")] == ["make demo", "make test"]
    assert all(
        f"\n{line}  " in (ROOT / "README.md").read_text("utf-8") for line in ("make demo", "make test")
    )
    matrix = jobs["two-commands"]["strategy"]["matrix"]
    assert {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-14"} <= set(matrix["os"])
    assert matrix["python"] == ["3.10", "3.11", "3.12", "3.13"]
