"""Imports of modules and folders point down only, even for types or inside a function."""

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("device_runtime", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, others in imports.items() if not others}:
        imports = {module: others - free for module, others in imports.items() if module not in free}
    assert not imports, f"in or behind a circle: {sorted(imports)}"


def test_the_floors_of_pyproject_hold() -> None:
    """import-linter, as in `make check`: what a folder may import. It silences the loggers of its process."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    linter = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linter.returncode == 0, linter.stdout + linter.stderr
