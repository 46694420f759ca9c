"""The shipped bundle is what the command in models/bundles/README.md makes."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402
from models.bundle import Bundle  # noqa: E402
from models.commands import export  # noqa: E402
from models.torch_graph import to_onnx  # noqa: E402
from models.torch_trace import Subject, trace_forward, trace_gradients, trace_losses  # noqa: E402


def arguments(out: Path) -> argparse.Namespace:
    readme = Path(models.__file__).parent / "bundles" / "README.md"
    line = re.search(r"^device-runtime export (.*)$", readme.read_text(), re.MULTILINE)
    assert line is not None
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return parser.parse_args([*shlex.split(line[1]), "--out", str(out)])


@pytest.fixture
def module(tmp_path):
    return export.build(arguments(tmp_path)).eval()


def test_weights_are_those_of_the_stated_seed(digits, module):
    for name, weight in digits.weights().items():
        torch.testing.assert_close(module.state_dict()[name], torch.from_numpy(weight), rtol=0, atol=1e-7)


def test_graphs_of_forward_and_head_are_the_same_bytes(digits, module):
    subject = Subject(module, "head", torch.zeros(4, 1, 8, 8))
    head = digits.manifest.names("head")
    assert to_onnx(trace_forward(subject), ()) == digits.graph("forward")
    assert to_onnx(trace_losses(subject), head) == digits.graph("loss.head")
    assert to_onnx(trace_gradients(subject, head), head) == digits.graph("train.head")


@pytest.mark.slow
def test_the_stated_command_gives_the_same_bundle(digits, tmp_path):
    folder = tmp_path / "digits-wrn-10-1"
    assert export.run(arguments(folder)) == 0
    assert Bundle.open(folder).sha256 == digits.sha256
