"""Where the files that ship beside the code are: bundles, boards, fleets, scenarios, the browser's device."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parent / "_content"
IN_CHECKOUT = not _INSTALLED.is_dir()
"""Whether this package runs from a clone: its content then lies beside it, where it may be edited."""


def content(folder: str) -> Path:
    """A folder of content: "broker", "models", "profiles" or "web"."""
    return (Path(__file__).parents[1] if IN_CHECKOUT else _INSTALLED) / folder
