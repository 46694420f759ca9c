"""What docs/python.md and the docstrings of the API show is run."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import device_runtime as dr
from device_runtime.api import aggregating, data, device, exporting, simulating, sweeping
from device_runtime.profiles.fleets import fleet

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULES = (aggregating, data, device, exporting, fleet, simulating, sweeping)


def blocks(page):
    return PYTHON.findall((ROOT / page).read_text("utf-8"))


def examples(module):
    return [test for test in doctest.DocTestFinder().find(module) if test.examples]


QUICK = [test for module in (data, fleet) for test in examples(module)]
WITH_WORK = [test for module in MODULES if module not in (data, fleet) for test in examples(module)]


def run_example(test):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    output = []
    runner.run(test, out=output.append)
    assert not runner.failures, "".join(output)


@pytest.mark.parametrize("test", QUICK, ids=lambda test: test.name)
def test_examples_of_docstrings_are_true(test):
    if "pandas" in test.docstring:
        pytest.importorskip("pandas")
    run_example(test)


@pytest.mark.slow
@pytest.mark.parametrize("test", WITH_WORK, ids=lambda test: test.name)
def test_examples_of_docstrings_that_train_are_true(test, handwritten):
    if "torch" in test.docstring:
        pytest.importorskip("torch")
    np.savez("samples.npz", x=handwritten[0], y=handwritten[1])
    run_example(test)


def test_every_function_and_class_of_the_api_has_an_example():
    examples_of = {test.name.rpartition(".")[2] for module in MODULES for test in examples(module)}
    names = {"Aggregator", "Device", "compare", "export", "simulate", "sweep", *data.__all__}
    assert names - {"DataSpec", "GroupData"} <= examples_of


def test_the_blocks_of_the_page_are_python():
    for number, block in enumerate(blocks("docs/python.md")):
        compile(block, f"docs/python.md, block {number}", "exec")
    assert len(blocks("docs/python.md")) > 5


def test_a_federated_run_is_less_than_twenty_lines():
    assert len(blocks("docs/python.md")[0].splitlines()) < 20


@pytest.mark.slow
def test_the_whole_page_runs_from_top_to_bottom(capsys):
    pytest.importorskip("torch")
    names = {}
    for block in blocks("docs/python.md"):
        exec(block, names)  # noqa: S102
    assert names["result"].policies == ("mixed", "fedavg")
    assert Path("accuracy.png").exists()
    assert names["model"].labels == tuple("0123456789")
    assert "round 2: " in capsys.readouterr().out
    assert Path("report", "report.html").exists()


@pytest.mark.slow
def test_the_run_of_the_readme_is_true(capsys):
    [block] = blocks("README.md")
    exec(block, {})  # noqa: S102
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"mixed [\d.]+%, .* points over fedavg at equal time", lines[0])
    assert [line.split()[0] for line in lines[4:6]] == ["mixed", "fedavg"]


def test_the_page_is_short_and_names_every_public_name():
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert len(text.splitlines()) < 150
    inner = {"ComparedFolders", "SimulatedRun", "Guess", "Prediction", "Personal", "KindSettings", "Bundle"}
    assert [name for name in dr.__all__ if f"dr.{name}" not in text and name not in inner] == []
