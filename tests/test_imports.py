"""No module of the package imports itself by way of others, not even for types or inside a function."""

import grimp


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("device_runtime")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, others in imports.items() if not others}:
        imports = {module: others - free for module, others in imports.items() if module not in free}
    assert not imports, f"in or behind a circle: {sorted(imports)}"
