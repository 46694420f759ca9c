"""examples/stragglers.ipynb is a notebook, uses names that exist, and shows what it claims."""

import ast
import inspect
import json
import logging
import re
from dataclasses import fields
from pathlib import Path

import pytest

import device_runtime as dr
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.report.write import PICTURES
from device_runtime.simulation.rounds.callbacks import ClosedRound

NOTEBOOK = Path(__file__).parents[2] / "examples" / "stragglers.ipynb"
CELLS = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
WHOLE = ast.parse("\n".join(CODE.values()))
LINK = re.compile(r"\]\(([^)#]+)")


@pytest.fixture
def quiet_again():
    """Undoes the notebook's setting of the package's log."""
    log = logging.getLogger("device_runtime")
    level = log.level
    yield
    log.setLevel(level)


def run_cell(name, names):
    """Runs a cell as a notebook does. Returns the picture or text of its last expression, or None."""
    tree = ast.parse(CODE[name], f"cell {name}")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {name}", "exec"), names)  # noqa: S102
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), f"cell {name}", "eval"), names)  # noqa: S307
    for form in ("_repr_png_", "_repr_html_"):
        if hasattr(value, form):
            return getattr(value, form)()
    return repr(value)


def attributes(of):
    """Names that the notebook reads of the variable `of`."""
    nodes = [node for node in ast.walk(WHOLE) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == of}


def calls(function):
    return [
        node for node in ast.walk(WHOLE) if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]


def columns(of):
    """Names of the columns that the notebook takes of the data frame `of`, by constants."""
    nodes = [node for node in ast.walk(WHOLE) if isinstance(node, ast.Subscript)]
    slices = [node.slice for node in nodes if isinstance(node.value, ast.Name) and node.value.id == of]
    parts = [part for cut in slices for part in (cut.elts if isinstance(cut, ast.List) else [cut])]
    return {part.value for part in parts if isinstance(part, ast.Constant)}


def test_the_notebook_is_of_format_4():
    whole = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert whole.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    names = [cell["id"] for cell in CELLS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]{1,64}", name) for name in names)
    shared = {"cell_type", "id", "metadata", "source"}
    for cell in CELLS:
        own = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == shared | own
        assert cell["cell_type"] in ("code", "markdown")
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def test_a_notebook_reader_accepts_it():
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))


def test_one_table_and_one_picture_are_stored():
    outputs = [output for cell in CELLS for output in cell.get("outputs", ())]
    assert [max(output["data"]) for output in outputs] == ["text/plain", "text/plain"]
    assert ["image/png" in output["data"] for output in outputs] == [False, True]
    assert NOTEBOOK.stat().st_size < 200_000


def test_each_cell_is_python():
    for name, source in CODE.items():
        compile(source, f"cell {name}", "exec")


def test_links_lead_to_files():
    texts = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown"]
    links = [link for text in texts for link in LINK.findall(text)]
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []


def test_names_exist_in_the_api():
    assert attributes("dr") <= set(dr.__all__)
    assert all(hasattr(dr.SimulationResult, name) for name in attributes("result"))
    assert attributes("run") <= {field.name for field in fields(dr.SimulatedRun)}
    assert attributes("closed") <= {field.name for field in fields(ClosedRound)}
    assert "eval_acc_by_class" in CODE["recall"]
    assert "eval_acc_by_class" in {field.name for field in fields(SimulatedRound)}
    assert columns("asks") | columns("mine") <= {field.name for field in fields(AskRecord)}
    [watch] = [node for node in WHOLE.body if isinstance(node, ast.ClassDef)]
    assert all(hasattr(dr.Callback, method.name) for method in watch.body)


def test_arguments_exist_in_the_api():
    parameters = inspect.signature(dr.simulate).parameters.keys()
    assert {word.arg for call in calls("dr.simulate") for word in call.keywords} <= parameters
    assert {call.args[0].value for call in calls("result.plot")} <= set(PICTURES)


def test_the_cells_before_the_first_run_say_who_is_slow(quiet_again):
    pytest.importorskip("pandas")
    names = {}
    for name in list(CODE)[: list(CODE).index("simulate")]:
        run_cell(name, names)
    medians = names["devices"].groupby("group")["GFLOP/s"].median()
    assert medians["slow"] < medians["old-phones"] < medians["fast"]
    assert names["scenario"].data.groups.keys() == {"slow"}


@pytest.mark.slow
def test_mixed_rounds_learn_the_classes_that_dropping_loses(quiet_again, capsys):
    """And each cell runs, one after another, from a folder that is not the notebook's."""
    pytest.importorskip("pandas")
    names = {}
    outputs = {name: run_cell(name, names) for name in CODE}
    assert names["result"].failed == {}
    for name in ("plot-time", "plot-groups", "plot-classes"):
        assert outputs[name].startswith(b"\x89PNG")

    recall = names["recall"]
    assert (recall.loc[[7, 8, 9], "mixed"] > 0.6).all()
    assert (recall.loc[[7, 8, 9], ["fedavg", "fedavg+"]] < 0.1).all(axis=None)
    assert (recall.loc[:6].mean() > 0.8).all()
    mixed, dropped = (names["result"].run(policy) for policy in ("mixed", "fedavg"))
    assert mixed.accuracy[-1] > dropped.accuracy[-1] + 0.1

    asks = names["asks"]
    assert set(asks[asks["group"] == "fast"]["kind"]) == {"full"}
    assert "few-shot" in set(asks[asks["group"] == "slow"]["kind"])
    assert names["slowest"].startswith("slow-")
    assert names["rounds"].groupby("policy").size().to_dict() == {"mixed": 5, "fedavg": 5, "fedavg+": 5}
    output = capsys.readouterr().out
    assert re.findall(r"round (\d): accuracy [\d.]+% after [\d.]+ s", output) == ["1", "2", "3"]
    assert re.search(rf"{names['slowest']}\n  full needs ", output)
