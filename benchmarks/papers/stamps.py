"""Tells which commit of the project's code runs, by git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENV = "DEVICE_RUNTIME_COMMIT"
"""The environment variable that names the commit where git is not there."""
CODE = "device_runtime"


def commit(root: Path = ROOT) -> str:
    """The short hash of the checked out commit, with "+" if the package was changed since; "" if unknown."""
    if given := os.environ.get(ENV):
        return given
    found = git(root, "rev-parse", "--short", "HEAD").strip()
    return found + ("+" if found and git(root, "status", "--porcelain", "--", CODE).strip() else "")


def git(root: Path, *words: str) -> str:
    """The output of a git command in this folder; "" if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout
