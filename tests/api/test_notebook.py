"""Each notebook of examples/ is one, uses names that exist, runs, and shows what it claims."""

import ast
import inspect
import json
import logging
import re
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest

import device_runtime as dr
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.report.write import PICTURES
from device_runtime.simulation.rounds.callbacks import ClosedRound

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#]+)")


def cells_of(path):
    return json.loads(path.read_text("utf-8"))["cells"]


def code_of(path):
    """The source of each cell of code, by the cell's name."""
    return {cell["id"]: "".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"}


CODE = code_of(EXAMPLES / "stragglers.ipynb")
WHOLE = ast.parse("\n".join(CODE.values()))
of_each = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def quiet_again():
    """Undoes the notebook's setting of the package's log."""
    log = logging.getLogger("device_runtime")
    level = log.level
    yield
    log.setLevel(level)


def run_cell(name, names, code=CODE):
    """Runs a cell as a notebook does. Returns the picture or text of its last expression, or None."""
    tree = ast.parse(code[name], f"cell {name}")
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


@of_each
def test_a_notebook_is_of_format_4(notebook):
    whole = json.loads(notebook.read_text("utf-8"))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert whole.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    names = [cell["id"] for cell in whole["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]{1,64}", name) for name in names)
    shared = {"cell_type", "id", "metadata", "source"}
    for cell in whole["cells"]:
        own = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == shared | own
        assert cell["cell_type"] in ("code", "markdown")
        assert all(line.endswith("\n") for line in cell["source"][:-1])


@of_each
def test_a_notebook_reader_accepts_it(notebook):
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(notebook, as_version=4))


@of_each
def test_one_table_and_one_picture_are_stored_of_the_simulation_and_nothing_of_the_others(notebook):
    outputs = [output for cell in cells_of(notebook) for output in cell.get("outputs", ())]
    stored = [False, True] if notebook.stem == "stragglers" else []
    assert [max(output["data"]) for output in outputs] == ["text/plain" for _ in stored]
    assert ["image/png" in output["data"] for output in outputs] == stored
    assert notebook.stat().st_size < 200_000


@of_each
def test_each_cell_is_python(notebook):
    for name, source in code_of(notebook).items():
        compile(source, f"cell {name}", "exec")


@of_each
def test_links_lead_to_files(notebook):
    texts = ["".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "markdown"]
    links = [link for text in texts for link in LINK.findall(text)]
    assert links
    assert [link for link in links if not (EXAMPLES / link).exists()] == []


def test_there_is_a_notebook_for_each_use():
    assert [path.stem for path in NOTEBOOKS] == ["board", "device", "service", "stragglers"]


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


def run_all(name):
    """What the cells of a notebook bind, and what each shows."""
    code, names = code_of(EXAMPLES / f"{name}.ipynb"), {}
    return names, {cell: run_cell(cell, names, code) for cell in code}


@pytest.fixture
def own_temporary(monkeypatch, tmp_path):
    """Where a notebook makes its folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.slow
def test_a_board_is_measured_and_a_slower_one_sends_less():
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    names, _ = run_all("board")
    costs = names["costs"]
    assert list(costs.index) == names["KINDS"].split(",")
    assert (costs[names["columns"]] > 0).all(axis=None)
    assert costs["bytes_up"]["zeroth-order"] < costs["bytes_up"]["class-means"] < costs["bytes_up"]["full"]
    assert names["choices"].keys() == {"this machine", "Pi 5", "Pi Zero 2 W"}
    assert names["choices"]["Pi Zero 2 W"] != "full"


@pytest.mark.slow
def test_a_device_joins_and_predicts_what_it_has_not_seen(quiet_again, own_temporary, capsys):
    names, outputs = run_all("device")
    assert names["service"].done
    assert names["model"].record.task == "digits"
    assert names["right"] > 0.5
    assert "of 300 new digits are recognised" in capsys.readouterr().out
    assert "label" in outputs["predict"]


@pytest.mark.slow
def test_a_service_is_asked_stopped_and_goes_on(quiet_again, own_temporary, capsys):
    pytest.importorskip("pandas")
    pytest.importorskip("fastapi")
    names, _ = run_all("service")
    assert names["service"].done
    assert list(names["rounds"]["round"]) == [1, 2, 3, 4]
    assert names["rounds"]["eval_acc"].iloc[-1] > 0.5
    assert "stopped on the way" in capsys.readouterr().out
