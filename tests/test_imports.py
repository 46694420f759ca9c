"""Imports of modules and folders point down only, even for types or inside a function."""

from pathlib import Path

import grimp
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("device_runtime")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, others in imports.items() if not others}:
        imports = {module: others - free for module, others in imports.items() if module not in free}
    assert not imports, f"in or behind a circle: {sorted(imports)}"


def test_the_floors_of_pyproject_hold() -> None:
    """import-linter, as in `make check`: what a folder may import."""
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_logo=True, no_cache=True) == 0
