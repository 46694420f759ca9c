"""The export lines of docs/data-sources.md: their inputs take what the sources give."""

import argparse
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from device_runtime.cli.research import export
from device_runtime.simulation.data import files, load
from device_runtime.simulation.data.spec import SOURCES

PAGES = Path(__file__).parents[3] / "docs"
PAGE = (PAGES / "data-sources.md").read_text("utf-8")
DOCS = PAGE.partition("## A bundle for each source")[2]
LINES = [
    line.removeprefix("$ device-runtime export ").replace("$(seq -s, 0 99)", ",".join(map(str, range(100))))
    for line in re.findall(r"^\$ device-runtime export .*$", DOCS, re.M)
]
SHAPES = [(3, 32, 32), (3, 32, 32), (1, 28, 28), (1, 61, 40), (32,), (32,), (3, 64, 64), (4,)]


@pytest.mark.parametrize(("line", "shape"), list(zip(LINES, SHAPES, strict=True)))
def test_each_line_makes_an_input_of_its_source_s_shape(line, shape):
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    pytest.importorskip("torch")
    spec = export.spec(parser.parse_args(shlex.split(line)))
    raw = np.full((2, *shape), 255, np.int32 if len(shape) == 1 else np.uint8)
    assert spec.input.prepare(raw).shape == (2, *shape)
    assert len(spec.labels) in (2, 10, 12, 100)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=[line.rpartition("/")[2] for line in LINES])
def test_each_line_writes_a_bundle(line, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", np.zeros((10_000, 50), np.float32))
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    assert export.run(parser.parse_args(shlex.split(line))) == 0


def test_every_source_is_described():
    assert all(f"`{source}`" in PAGE for source in SOURCES)


def test_the_page_s_frame_is_divided_by_its_clients(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setattr(files, "folder", lambda: tmp_path)
    page = (PAGES / "data.md").read_text("utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names = {}
    exec(block, names)  # noqa: S102
    loaded = load(names["data"], 0)
    assert (loaded.train_x.shape, loaded.train_y.shape) == ((2, 2), (2, 1))
    assert loaded.groups is not None
