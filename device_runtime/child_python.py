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
    paths = list(map(os.path.abspath, sys.path))
    return [sys.executable, "-c", f"{_PATHS}\n{program}", json.dumps(paths), *arguments]
