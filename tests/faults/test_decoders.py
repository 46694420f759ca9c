"""Every decoder on what is not meant for it: its own error and nothing else; benchmarks/fuzz.py does more."""

import importlib.util
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import SampleSource, table
from device_runtime.models.data.arrays import NPZ
from device_runtime.models.data.database import DATABASE
from device_runtime.models.data.units import Refused, Unit, WantedSamples

FILE = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz():
    before = sys.path[0]
    spec = importlib.util.spec_from_file_location("fuzz_benchmark", FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[0] = before
    return module


MESSAGES = ["State", "Hello", "Plan", "Contribution", "Receipt", "Get"]
NAMES = [*MESSAGES, "topic", "safetensors", "manifest", "bundle zip", "task", "url", "graph"]
SAMPLES = [
    "jpeg", "png", "gif webp tiff", "bmp ppm", "wav", "txt", "npy", "npz", "csv", "tsv", "recording",
    "sqlite",
]  # fmt: skip
SETTINGS = [
    "sum request", "sum answer", "compact offer", "step log", "token", "enrolment", "task file",
    "server file",
    "fleet", "scenario", "label map", "device file", "tokenizer",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_are_refused_in_the_decoder_s_own_words(fuzz, name):
    [target] = [target_ for target_ in fuzz.targets() if target_.name == name]
    came = fuzz.fuzz(target, 1000, seed=1)
    assert came.failed == 0, came.first
    assert came.refused > 500


def test_no_decoder_is_left_out(fuzz):
    optional = {"parquet"}  # where its library is installed
    assert {target.name for target in fuzz.targets()} - optional == {*NAMES, *SAMPLES, *SETTINGS}


@pytest.mark.parametrize("name", [*SAMPLES, *SETTINGS])
def test_damaged_samples_and_settings_are_refused_in_the_reader_s_own_words(fuzz, name):
    [target] = [target_ for target_ in fuzz.targets() if target_.name == name]
    came = fuzz.fuzz(target, 40, seed=2)
    assert came.failed == 0, came.first
    assert came.refused > 5


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_random_bytes_are_no_task(data):
    with pytest.raises(TaskError):
        tasks.decode(data)


def test_a_failure_is_found_and_told(fuzz):
    def weak(data):
        if data == b"sound":
            return
        if data.startswith(b"\x00"):
            raise IndexError("beyond the end")
        raise ValueError

    target = fuzz.Target("weak", weak, (ValueError,), (b"sound",))
    came = fuzz.fuzz(target, 3000, seed=0)
    assert came.failed > 0
    assert "IndexError: beyond the end" in came.first


# What the fuzzer found, as it was.


def test_a_name_of_a_file_that_is_too_long_is_a_value_like_others(tmp_path):
    file = tmp_path / "task.toml"
    file.write_text(f'bundle = "{"x" * 5000}"\nfamily = ["{"y" * 5000}"]\n')
    assert tasks.load(file, {}).bundle == "x" * 5000
    file.write_text('bundle = "a\\u0000b"\n')
    assert tasks.load(file, {}).bundle == "a\0b"


def test_names_of_letters_that_do_not_exist_are_refused(tmp_path):
    names = np.array(["a", "b"])
    names.view(np.uint32)[:] = 0x7FFFFFFF
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 8, 8)), y=names)
    unit = Unit("a.npz", tmp_path / "a.npz", (0, 0), NPZ)
    spec = WantedSamples(InputSpec((1, 8, 8)), SampleSource(tmp_path / "a.npz"))
    with pytest.raises(Refused, match="a name with letters that do not exist"):
        list(NPZ.read(unit, spec))


def test_a_row_that_is_longer_than_the_table_names_no_file(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x,label\n1,a,b.png\n2,b\n3,a\n4,b\n")
    assert table.layout(file, SampleSource(file)).file is None


def test_a_damaged_database_whose_message_is_no_text_is_refused(tmp_path):
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file)) as opened:
        opened.execute("CREATE TABLE seen (p REAL, label TEXT)")
        opened.commit()
    data = file.read_bytes()
    file.write_bytes(data.replace(b"CREATE TABLE seen", b"CREATE TABL\xbd seen"))
    source = SampleSource(file, "SELECT * FROM seen")
    with pytest.raises(Refused, match="the database cannot be read"):
        list(DATABASE.read(Unit("a.db", file, (0, 0), DATABASE), WantedSamples(InputSpec((1,)), source)))
