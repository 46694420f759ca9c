"""Gradients that onnxruntime-training built, against torch and against our own training graph.

Most of it runs only where that package is the one that `import onnxruntime` finds; the last test makes such
an environment and runs this file, and that of the engine, in it.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.onnx_engine import VERSION, available
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.engines.onnx_session import SessionSettings, load_session
from device_runtime.models.errors import ExportError
from device_runtime.models.export import candidates as torch_ort_training
from device_runtime.models.export.candidates import training_graph
from device_runtime.models.export.graph import convert, external_names, subgraph
from device_runtime.models.export.trace import GraphInputs, loss_and_gradients, trace_training
from device_runtime.models.networks import build
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    batch_norms,
    statistics,
    stored_tensors,
    with_batch_statistics,
)
from device_runtime.models.torch_modules.parameters import find_head

nn = torch.nn
CLASSES = 5
SMALL_WRN = {"depth": 10, "width": 1, "in_channels": 1, "classes": CLASSES}
SMALL_VIT = {"image": 8, "patch": 4, "dim": 24, "depth": 3, "heads": 3, "in_channels": 1, "classes": CLASSES}
NETWORKS = {
    "group": ("wrn", {**SMALL_WRN, "norm": "group"}, (1, 8, 8)),
    "batch": ("wrn", {**SMALL_WRN, "norm": "batch"}, (1, 8, 8)),
    "vit": ("vit", SMALL_VIT, (1, 8, 8)),
}
ROOT = Path(__file__).parents[3]

needs_package = pytest.mark.skipif(bool(available()), reason=available())


class Pooled(nn.Module):
    """Max pooling, a convolution with bias, ReLU6 and LayerNorm without affine."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.norm = nn.LayerNorm(64, elementwise_affine=False)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.pool(nn.functional.relu6(9 * self.conv(x))).flatten(1)))


def subject_of(module, shape) -> FunctionalModule:
    generator = torch.Generator().manual_seed(1)
    for name, tensor in stored_tensors(module).items():
        if "running" in name:  # statistics that are not those of a fresh layer, in place
            tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator))
    return FunctionalModule(
        module.eval(), find_head(module, None), torch.randn(4, *shape, generator=generator)
    )


def network(name: str) -> FunctionalModule:
    torch.manual_seed(3)
    if name == "pooled":
        return subject_of(Pooled(), (1, 8, 8))
    built, settings, shape = NETWORKS[name]
    return subject_of(build(built, settings), shape)


def trained(subject: FunctionalModule) -> tuple[str, ...]:
    return tuple(name for name, _ in subject.module.named_parameters())


def outputs(onnx: bytes, names, tensors, moved, x, y) -> dict[str, np.ndarray]:
    frozen = {name: tensors[name].numpy() for name in external_names(onnx)}
    loaded = load_session("graph", Graph("", "", 0, names, 0, 0, 0), onnx, frozen, SessionSettings())
    weights = {name: tensors[name].numpy() for name in (*names, *moved)}
    keys = [output.name for output in loaded.session.get_outputs()]
    return dict(zip(keys, loaded.run(keys, {"x": x.numpy(), "y": y.numpy(), **weights}), strict=True))


def own_training_graph(subject: FunctionalModule, names, moved) -> bytes:
    traced = trace_training(subject, "train", names)
    return subgraph(convert(traced), traced, (*names, *moved), traced.outputs.names)


def assert_same(tensors, expected, where) -> None:
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        largest = float(np.abs(value).max())
        np.testing.assert_allclose(
            tensors[name], value, rtol=0, atol=2e-6 + 1e-4 * largest, err_msg=f"{name}, {where}"
        )


@needs_package
@pytest.mark.parametrize("name", [*NETWORKS, "pooled"])
def test_loss_and_gradients_are_those_of_torch_and_of_the_plain_engine_at_two_batch_sizes(name):
    subject = network(name)
    names = trained(subject)
    onnx, own = training_graph(subject, names), own_training_graph(subject, names, ())
    tensors = stored_tensors(subject.module)
    generator = torch.Generator().manual_seed(2)
    for batch in (1, 6):
        x = torch.randn(batch, *subject.example.shape[1:], generator=generator)
        y = torch.randint(CLASSES, (batch,), generator=generator)
        ours = outputs(onnx, names, tensors, (), x, y)
        assert_same(ours, outputs(own, names, tensors, (), x, y), f"plain, batch {batch}")
        loss, grads = loss_and_gradients(subject, "train", GraphInputs(x, y, {}, tensors), names)
        expected = {f"grad.{n}": grad.numpy() for n, grad in zip(names, grads, strict=True)}
        assert_same(ours, {"loss": loss.numpy(), **expected}, f"torch, batch {batch}")


@needs_package
def test_batch_norm_in_training_mode_uses_batch_statistics_and_gives_the_next_running_ones():
    subject = network("batch")
    norms = batch_norms(subject.module)
    subject = with_batch_statistics(subject, norms)
    names, moved = trained(subject), statistics(norms)
    onnx, own = training_graph(subject, names), own_training_graph(subject, names, moved)
    tensors = stored_tensors(subject.module)
    for batch in (2, 7):
        x = torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(batch))
        y = torch.arange(batch) % CLASSES
        ours = outputs(onnx, names, tensors, moved, x, y)
        assert {f"next.{name}" for name in moved} < ours.keys()
        assert_same(ours, outputs(own, names, tensors, moved, x, y), f"batch {batch}")


@needs_package
def test_tensors_that_are_not_trained_stay_out_of_the_file_and_the_bytes_are_always_the_same():
    subject = network("batch")
    onnx = training_graph(subject, ("head.weight", "head.bias"))
    assert "conv1.weight" in external_names(onnx)
    assert "group1.0.norm1.running_mean" in external_names(onnx)
    assert len(onnx) < 20_000  # the network has 77,000 parameters of four bytes
    assert onnx == training_graph(subject, ("head.weight", "head.bias"))


@needs_package
def test_networks_without_a_gradient_are_refused_by_the_name_of_the_operator():
    recurrent = build("lstm", {"vocabulary": 20, "dim": 4, "hidden": 6, "classes": 2})
    ids = torch.zeros(4, 3, dtype=torch.int64)
    subject = FunctionalModule(recurrent.eval(), find_head(recurrent, None), ids)
    names = [name for name, p in recurrent.named_parameters() if p.requires_grad]
    with pytest.raises(
        ExportError, match=f"onnxruntime-training {VERSION} has no gradient for operator LSTM"
    ):
        training_graph(subject, names)
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, CLASSES))
    with pytest.raises(ExportError, match="pools averages for a fixed batch only"):
        training_graph(subject_of(pooled, (1, 8, 8)), ("0.weight", "3.bias"))


def test_where_the_package_is_missing_the_error_says_so(monkeypatch):
    monkeypatch.setattr(torch_ort_training, "available", lambda: "onnxruntime-training is not installed")
    with pytest.raises(
        ExportError, match="^graph ort-training cannot be exported: onnxruntime-training is not"
    ):
        training_graph(network("group"), ("head.weight",))


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="this is such an environment")
def test_all_of_it_holds_in_an_environment_with_the_package(tmp_path):
    """The package goes first on the path; torch and all others are those of this environment."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    requirement = f"onnxruntime-training-cpu=={VERSION}"
    install = subprocess.run([*pip, "--target", tmp_path, requirement], capture_output=True, text=True)
    if install.returncode:
        pytest.skip(f"pip cannot install {requirement}: {install.stderr.strip().splitlines()[-1]}")
    others = ("test_ort_training_engine.py", "test_available.py")
    files = [__file__, *(ROOT / "tests" / "models" / "available_engines" / other for other in others)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-rs"]
    pytest_here += ["-k", "not GPU and not gru-onnxruntime-training", *files]
    done = subprocess.run(pytest_here, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-4000:]
