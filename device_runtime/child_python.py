"""The command of a Python process that imports modules from where this process does."""

from __future__ import annotations

import json
import os
import sys

_PATHS = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))"


def python_command(program: str, *arguments: str) -> list[str]:
    """The words of the command. The program finds its arguments in `sys.argv[1:]`.

    It imports the same modules, whatever lies in the folder where it runs.
    """
    paths = [path for path in map(_whole, sys.path) if path]
    return [sys.executable, "-c", f"{_PATHS}\n{program}", json.dumps(paths), *arguments]


def _whole(path: str) -> str:
    """A path that holds in any folder; empty for a relative one where the current folder is gone."""
    try:
        return os.path.abspath(path)  # noqa: PTH100 - paths of `sys.path` are texts
    except FileNotFoundError:
        return ""
