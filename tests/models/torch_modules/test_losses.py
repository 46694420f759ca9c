import numpy as np
import pytest
import torch

from device_runtime.models.bundles.targets import TargetSpec, targets_of
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.torch_modules.functional_module import loss_from_file, loss_of
from device_runtime.models.training.evaluation import sample_losses


@pytest.mark.parametrize("name", ["mse", "mae", "huber", "bce"])
def test_a_loss_is_the_same_in_torch_and_in_numpy(name):
    target = targets_of(name, ("a", "b", "c"), **({"delta": 0.7} if name == "huber" else {}))
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    y = (y > 0).astype(np.float32) if name == "bce" else y
    losses = loss_of(target)(torch.from_numpy(outputs), torch.from_numpy(y), torch.zeros(5, 3))
    assert losses.numpy() == pytest.approx(sample_losses(target, outputs, y), rel=1e-5)


def test_a_reconstruction_is_compared_with_the_flattened_input():
    loss = loss_of(targets_of("mae", ("normal",), "input"))
    x = torch.ones(2, 1, 2, 2)
    assert loss(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), x).tolist() == [1.0, 1.0]


def test_an_own_loss_needs_its_function():
    target = TargetSpec("focal", "classes", own=True)
    with pytest.raises(EngineError, match="only the bundle's graphs have it: give the function too"):
        loss_of(target)
    assert loss_of(target, lambda outputs, y: outputs[:, 0]).target == target


def test_an_own_loss_is_read_from_its_file(tmp_path):
    (tmp_path / "own.py").write_text("def twice(o, t):\n    return 2 * (o - t).abs().mean(1)\nnumber = 3\n")
    loss = loss_from_file(f"{tmp_path}/own.py:twice")
    assert loss(torch.zeros(1, 1), torch.ones(1, 1)).tolist() == [2.0]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("own.py", "is not FILE.py:FUNCTION"),
        ("absent.py:twice", "there is no file absent.py"),
        ("{}/own.py:thrice", "cannot be read: AttributeError"),
        ("{}/own.py:number", "is a int, expected a function"),
        ("{}/broken.py:twice", "cannot be read: SyntaxError"),
    ],
)
def test_a_file_without_such_a_function_is_refused(tmp_path, where, message):
    (tmp_path / "own.py").write_text("number = 3\n")
    (tmp_path / "broken.py").write_text("def twice(:\n")
    with pytest.raises(ExportError, match=message):
        loss_from_file(where.format(tmp_path))
