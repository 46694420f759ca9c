"""`device-runtime new`: the project that it writes, and the commands in its README as they stand."""

import csv
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_runtime.aggregator.tasks import task as tasks
from device_runtime.cli import main
from device_runtime.cli.research import new
from device_runtime.cli.research.new import TEMPLATES, commands
from device_runtime.models.data import png
from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.scenarios import scenario

FOLDER = Path(__file__).parents[3] / "examples" / "new"
SHAPES = ("circle", "cross", "square", "triangle")


@pytest.fixture
def written(tmp_path, monkeypatch, capsys):
    """A project that `new` has written, what it printed, and the folder that it was called from."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "shapes"]) == 0
    return tmp_path / "shapes", capsys.readouterr().out


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_it_writes_the_files_with_the_project_s_name_and_says_what_to_do_next(written):
    folder, output = written
    assert {path.name for path in folder.iterdir()} == {*TEMPLATES, "data"}
    assert {path.name for path in FOLDER.iterdir()} - {"__pycache__"} == set(TEMPLATES)
    assert not [name for name in TEMPLATES if "{{" in (folder / name).read_text()]
    assert (
        tasks.load(folder / "task.toml", {}).name == scenario.load(folder / "scenario.toml").name == "shapes"
    )
    assert [line.split()[1] for line in output.splitlines() if "  device-runtime" in line] == [
        "export", "simulate", "serve", "join",
    ]  # fmt: skip
    assert "  cd shapes\n" in output


def test_task_and_scenario_offer_the_same_kinds(written):
    folder, _ = written
    assert tasks.load(folder / "task.toml", {}).kinds == scenario.load(folder / "scenario.toml").task.kinds


def test_a_device_reads_the_pictures_as_a_simulation_does(written):
    folder, output = written
    data_set = load(DataSpec(source="images", path=str(folder / "data"), size=new.SIZE), seed=0)
    assert data_set.labels == SHAPES
    each = new.TRAIN, new.TEST
    assert [np.bincount(y).tolist() for y in (data_set.train_y, data_set.test_y)] == [[n] * 4 for n in each]
    assert f"{4 * sum(each)} pictures of 4 classes" in output
    first = png.decode((folder / "data" / "train" / "circle" / "000.png").read_bytes())
    assert np.array_equal(first.pixels, data_set.train_x[0].transpose(1, 2, 0))


def test_the_same_name_gives_the_same_bytes(written):
    folder, _ = written
    assert main(["new", "again/shapes"]) == 0
    assert digest(folder) == digest(folder.parent / "again" / "shapes")
    pictures = list(folder.rglob("*.png"))
    assert len({path.read_bytes() for path in pictures}) == len(pictures)


def test_an_empty_folder_may_be_there_also_as_the_present_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["new", "."]) == 0
    assert (tmp_path / "mine" / "README.md").read_text().startswith("# mine\n")
    assert "  cd ." not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "full is not empty: give the name of a new folder"),
        ("full/mine.txt", "full/mine.txt is a file: give the name of a new folder"),
        ("full/mine.txt/shapes", "full/mine.txt/shapes cannot be written: not a directory"),
        ("my shapes", "'my shapes': use 1 to 64 letters, digits"),
        ("_shapes", "'_shapes': use 1 to 64 letters, digits"),
        ("s" * 65, "use 1 to 64 letters, digits"),
    ],
)
def test_it_refuses_in_one_line_and_leaves_what_is_there(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert main(["new", name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("device-runtime: ")
    assert message in line
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]


def test_it_needs_no_library_that_a_device_lacks():
    """And not even numpy: the pictures are drawn with the standard library."""
    program = "import device_runtime.cli.research.new, sys; print(sorted(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert not [module for module in ("torch", "numpy", "PIL") if repr(module) in loaded]


@pytest.mark.slow
def test_the_commands_of_its_readme_export_simulate_and_serve_to_a_device(written, program, lines):
    pytest.importorskip("torch")
    folder, _ = written
    readme = (folder / "README.md").read_text()
    with socket.socket() as listener:
        if listener.connect_ex(("127.0.0.1", int(re.search(r"--port (\d+)", readme).group(1)))) == 0:
            pytest.skip("something else listens on the port of the README")
    export, simulate, serve, join = (shlex.split(line) for line in commands(readme))
    state = str(folder.parent / "state")
    env = {**os.environ, **{f"XDG_{kind}_HOME": state for kind in ("DATA", "STATE", "CACHE", "CONFIG")}}

    def start(words):
        return subprocess.Popen(
            [program, *words[1:]], cwd=folder, env=env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ended(process):
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output
        return output

    for words in (export, simulate):
        ended(start(words))
    assert json.loads((folder / "bundle" / "manifest.json").read_text())["labels"] == [*SHAPES]
    [rounds] = folder.glob("runs/shapes-*/rounds.csv")
    with rounds.open() as file:
        simulated = list(csv.DictReader(file))
    assert len(simulated) == 10
    assert float(simulated[-1]["eval_acc"]) > 0.6  # of four classes, equally frequent

    service, device = start(serve), start(join)
    try:
        assert "round 5: full accepted" in ended(device)
        assert "round 5 of 5" in ended(service)
    finally:
        for process in (service, device):
            process.kill()
            process.wait()
    run = folder / "runs" / "shapes"
    assert [c["device"] for c in lines(run / "contributions.jsonl")] == ["first"] * 5
    assert lines(run / "rounds.jsonl")[-1]["eval_acc"] > 0.8
