"""Finds the content shipped with the code: bundles, boards, fleets, a new project, the browser's device."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parent / "_content"
IN_CHECKOUT = not _INSTALLED.is_dir()
"""Whether this package runs from a clone: its content is then beside the package, and may be edited."""


def content(folder: str) -> Path:
    """The path of a content folder: "broker", "examples", "models", "profiles" or "web"."""
    return (Path(__file__).parents[1] if IN_CHECKOUT else _INSTALLED) / folder
