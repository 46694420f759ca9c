"""Tells which commit of the project's code runs, and what changed since another one, by git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENV = "DEVICE_RUNTIME_COMMIT"
"""The environment variable that names the commit where git is not there."""
CODE = "device_runtime"
DECIDES = (
    "device_runtime/strategies",
    "device_runtime/simulation",
    "device_runtime/models",
    "device_runtime/profiles",
    "device_runtime/aggregator/merging",
    "device_runtime/aggregator/rounds",
    "device_runtime/aggregator/tasks",
    "device_runtime/aggregator/machine",
    "device_runtime/device/engine",
    "device_runtime/device/selection",
    "device_runtime/device/training",
)
"""The parts of the code that decide the results of runs."""


def commit(root: Path = ROOT) -> str:
    """The short hash of the checked out commit, with "+" if the package was changed since; "" if unknown."""
    if variable := os.environ.get(ENV):
        return variable
    revision = git(root, "rev-parse", "--short", "HEAD").strip()
    return revision + ("+" if revision and git(root, "status", "--porcelain", "--", CODE).strip() else "")


def commits_since(commit: str, paths: Sequence[str], root: Path = ROOT) -> int | None:
    """The number of commits that changed these paths since that one; None if git does not know it."""
    count = git(root, "rev-list", "--count", f"{commit.removesuffix('+')}..HEAD", "--", *paths).strip()
    return int(count) if count else None


def git(root: Path, *words: str) -> str:
    """The output of a git command in this folder; "" if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
