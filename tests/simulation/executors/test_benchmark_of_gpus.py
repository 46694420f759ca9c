"""benchmarks/gpu.py: says that there is no GPU, and measures at a tiny scale without one."""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*words):
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_profile_times_functions_that_there_are():
    pytest.importorskip("torch")
    spec = spec_from_file_location("round_profile", ROOT / "benchmarks" / "peers" / "round_profile.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    profile = module.RoundProfile(lambda: None)
    with profile.patched():
        assert profile.missing == []


def test_a_function_called_by_another_part_is_not_timed_twice(monkeypatch):
    spec = spec_from_file_location("round_profile", ROOT / "benchmarks" / "peers" / "round_profile.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    now = iter((1.0, 3.0, 7.0, 8.0))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    profile = module.RoundProfile(lambda: None)
    inner = profile._timed("inner", lambda: None)
    profile._timed("outer", inner)()
    assert profile.seconds == {"outer": 2.0 + 1.0, "inner": 4.0}


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_ends_well():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    process = run()
    assert process.returncode == 0
    assert "Nothing is measured on cuda: torch" in process.stdout
    assert "sees 0 GPUs" in process.stdout


@pytest.mark.slow
def test_a_tiny_run_on_the_cpu_measures_all_that_one_on_a_gpu_measures(tmp_path):
    pytest.importorskip("transformers")
    out = tmp_path / "gpu.json"
    words = ("--device", "cpu", "--tiny", "--rounds", 1, "--rows", "wrn", "minilm")
    process = run(*words, "--folder", tmp_path, "--out", out)
    assert process.returncode == 0, process.stderr
    assert "Milliseconds of a round on " in process.stdout
    rows = {row["row"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["wrn", "minilm"]
    for row in rows.values():
        assert row["not_run"] == []
        assert {peer: len(seconds) for peer, seconds in row["seconds"].items()} == {
            "ours": 1,
            "vmap": 1,
            "one by one": 1,
        }
        assert row["over"] == pytest.approx(row["ms"]["ours"] / row["ms"]["one by one"])
        assert row["apart"] <= 1e-5
        assert row["same_bytes"]
        assert row["profile_ms"].keys() >= {"round", "steps", "samples", "fold", "evaluation", "rest"}
