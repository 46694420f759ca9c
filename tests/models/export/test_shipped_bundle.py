"""The shipped bundle is what the command in models/bundles/README.md makes."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from device_runtime.cli.research import export
from device_runtime.content import content
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.export.candidates import WantedGraphs, candidates
from device_runtime.models.torch_modules.functional_module import FunctionalModule


def arguments(out: Path) -> argparse.Namespace:
    readme = content("models") / "bundles" / "README.md"
    line = re.search(r"^device-runtime export (.*)$", readme.read_text(), re.MULTILINE)
    assert line is not None
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return parser.parse_args([*shlex.split(line[1]), "--out", str(out)])


@pytest.fixture
def module(tmp_path):
    return export.build(arguments(tmp_path)).eval()


def test_weights_are_those_of_the_stated_seed(digits, module):
    """Torch makes normal numbers by logarithm and cosine, which differ in last bits between processors."""
    for name, weight in digits.weights().items():
        torch.testing.assert_close(module.state_dict()[name], torch.from_numpy(weight), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_graphs_of_forward_and_loss_are_the_same_bytes(digits, module):
    subject = FunctionalModule(module, "head", torch.zeros(4, 1, 8, 8))
    for graph in candidates(subject, WantedGraphs({"head": digits.manifest.names("head")}, (), (), False)):
        assert graph.onnx == digits.graph(graph.name), graph.name


@pytest.mark.slow
def test_the_stated_command_gives_the_same_bundle(digits, tmp_path):
    folder = tmp_path / "digits-wrn-10-1"
    assert export.run(arguments(folder)) == 0
    assert Bundle.open(folder).sha256 == digits.sha256
