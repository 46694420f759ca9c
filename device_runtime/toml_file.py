"""Reads settings from TOML files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def near(folder: Path, value: Any) -> Any:
    """The path of a file that lies in the folder, as text; any other value unchanged."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return str(folder / value) if (folder / value).exists() else value
    except (OSError, ValueError):  # no name of a file: too long, or with a zero byte
        return value


def read_toml(path: Path, failed: type[Exception]) -> dict[str, Any]:
    """Returns the content of a TOML file, or raises `failed` with the file's path and the reason."""
    try:
        return dict(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise failed(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise failed(f"{path} is not TOML: {error}") from None
