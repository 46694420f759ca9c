import argparse
import shlex

import msgspec
import pytest

from device_runtime.cli.research import inspect
from device_runtime.cli.table import COMMANDS
from device_runtime.models.bundles.bundle import write
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import BundleError


def inspection(capsys, *words: str) -> str:
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    assert inspect.run(parser.parse_args(words)) == 0
    return capsys.readouterr().out


def test_example_shows_parameters_by_level_and_graphs(capsys, digits):
    out = inspection(capsys, *shlex.split(COMMANDS["inspect"].example)[2:])
    lines = out.splitlines()
    assert digits.sha256 in lines[0]
    assert "input 1x8x8, 64 features, 10 labels" in out
    assert "from wrn (depth 10, width 1, in_channels 1, classes 10), weights stored as float32" in out
    assert "all 77562, mid 72746, head 650" in out
    assert any(line.split() == ["head", "head.bias", "10", "10", "all", "mid", "head"] for line in lines)
    (forward,) = (line.split() for line in lines if line.split()[:1] == ["forward"])
    graph = digits.manifest.graphs["forward"]
    assert forward[1:3] == [f"{graph.bytes / 1000:.1f}", f"{graph.flops / 1e6:.2f}"]
    assert graph.sha256.startswith(forward[-1])


def test_token_ids_and_their_range_are_named(capsys, digits, tmp_path):
    spec = InputSpec((1, 8, 8), dtype="int64", vocabulary=50)
    manifest = msgspec.structs.replace(digits.manifest, input=spec, source=None)
    graphs = {name: digits.graph(name) for name in manifest.graphs}
    write(tmp_path / "b", manifest, digits.weights(), graphs)
    out = inspection(capsys, str(tmp_path / "b"))
    assert "input 1x8x8 token ids from 0 to 49, 64 features" in out
    assert f"made with {manifest.producer}, weights stored as float32" in out


def test_json_holds_the_whole_manifest(capsys, digits):
    figures = msgspec.json.decode(
        inspection(capsys, str(digits.path), "--format", "json"), type=inspect.BundleFigures
    )
    assert figures.manifest == digits.manifest
    assert figures.sha256 == digits.sha256
    assert figures.num_parameters["head"] == 650


def test_unknown_bundle_is_refused(capsys):
    with pytest.raises(BundleError, match="neither a bundle folder"):
        inspection(capsys, "nowhere")
