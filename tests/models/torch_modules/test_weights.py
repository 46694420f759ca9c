import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file
from torch import nn

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.parameters import load_weights, read_weights


class Small(nn.Module):
    """A convolution with batch norm and a head of three classes."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, classes)


class Stranger:
    """Not a tensor; unpickling it would import this module."""


@pytest.fixture
def state():
    torch.manual_seed(5)
    source = Small()
    source.norm.running_mean += 0.25
    return source.state_dict()


def save(state, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    else:
        torch.save(state, path)
    return path


def assert_loaded(module, state):
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name].to(value.dtype)), name


@pytest.mark.parametrize("end", ["safetensors", "npz", "pt", "pth", "bin"])
def test_every_kind_of_file_gives_the_same_weights(tmp_path, state, end):
    module = Small()
    load_weights(module, save(state, tmp_path / f"w.{end}"))
    assert_loaded(module, state)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_tensors_nested_in_a_checkpoint_are_found(tmp_path, state, key):
    module = Small()
    torch.save({"epoch": 7, key: state}, tmp_path / "w.pt")
    load_weights(module, tmp_path / "w.pt")
    assert_loaded(module, state)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_taken_off(tmp_path, state, prefix):
    module = Small()
    load_weights(module, save({prefix + name: v for name, v in state.items()}, tmp_path / "w.pt"))
    assert_loaded(module, state)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_become_the_modules(tmp_path, state, dtype):
    tensors = {n: v.to(getattr(torch, dtype)) if v.is_floating_point() else v for n, v in state.items()}
    for end in ("safetensors", "pt"):
        module = Small()
        load_weights(module, save(tensors, tmp_path / f"w.{end}"))
        assert module.fc.weight.dtype == torch.float32
        assert_loaded(module, tensors)


def test_counters_of_batch_norm_may_be_there_or_not(tmp_path, state):
    counter = "norm.num_batches_tracked"
    module = Small()
    load_weights(module, save({n: v for n, v in state.items() if n != counter}, tmp_path / "w.pt"))
    module.norm = nn.GroupNorm(1, 2)
    tensors = {n: v for n, v in state.items() if "running" not in n}
    load_weights(module, save(tensors, tmp_path / "w.pt"))
    assert torch.equal(module.conv.weight, state["conv.weight"])


def test_everything_that_does_not_fit_is_listed_and_nothing_is_changed(tmp_path, state):
    del state["conv.bias"], state["norm.bias"]
    state |= {f"more{i}": torch.zeros(1) for i in range(6)}
    state["fc.weight"] = torch.zeros(7, 2)
    state["fc.bias"] = torch.zeros(3, dtype=torch.int64)
    module = Small()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ExportError) as caught:
        load_weights(module, save(state, tmp_path / "w.safetensors"))
    assert str(caught.value) == (
        f"{tmp_path / 'w.safetensors'} does not fit Small: 2 missing (conv.bias, norm.bias); "
        "6 not expected (more0, more1, more2, more3 and 2 more); "
        "1 of another shape (fc.weight is (7, 2), expected (3, 2)); "
        "1 of another kind (fc.bias is torch.int64, expected torch.float32)"
    )
    assert_loaded(module, before)


def test_a_new_head_stays_as_it_was(tmp_path, state):
    module = Small(classes=11)
    head = module.fc.weight.clone()
    load_weights(module, save(state, tmp_path / "w.npz"), skip_head="fc")
    assert torch.equal(module.fc.weight, head)
    assert torch.equal(module.conv.weight, state["conv.weight"])


def test_another_networks_head_is_left_aside_but_its_body_must_be_whole(tmp_path, state):
    renamed = {n.replace("fc.", "decoder."): v for n, v in state.items()}
    load_weights(Small(11), save(renamed, tmp_path / "w.pt"), skip_head="fc")
    with pytest.raises(ExportError, match=r"2 missing \(fc.weight, fc.bias\); 2 not expected"):
        load_weights(Small(), tmp_path / "w.pt")
    del renamed["conv.weight"]
    with pytest.raises(ExportError, match=r"1 missing \(conv.weight\)"):
        load_weights(Small(11), save(renamed, tmp_path / "w.pt"), skip_head="fc")
    extra = renamed | {"conv.weight": state["conv.weight"], "conv.scale": torch.ones(1)}
    with pytest.raises(ExportError, match=r"1 not expected \(conv.scale\)"):
        load_weights(Small(11), save(extra, tmp_path / "w.pt"), skip_head="fc")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_that_are_not_finite_in_float32_are_refused(tmp_path, state, dtype):
    broken = torch.tensor([1.0, 1e300 if dtype == torch.float64 else float("nan"), 0.0], dtype=dtype)
    state["fc.bias"] = broken
    with pytest.raises(ExportError, match="not finite: fc.bias"):
        load_weights(Small(), save(state, tmp_path / "w.pt"))


def test_files_that_hold_more_than_tensors_are_refused(tmp_path):
    torch.save({"state_dict": {"a": Stranger()}}, tmp_path / "code.pt")
    np.savez(tmp_path / "code.npz", a=np.array([{"a": 1}], dtype=object))
    for name in ("code.pt", "code.npz"):
        with pytest.raises(ExportError, match="could run code when they are read") as caught:
            read_weights(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_what_holds_no_tensors_by_name_is_refused(tmp_path):
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    torch.save({"epoch": 7, "weights": {}}, tmp_path / "other.pt")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2))
    (tmp_path / "one.npz").write_bytes(buffer.getvalue())
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    (tmp_path / "w.h5").write_bytes(b"")
    for name, message in (
        ("list.pt", "holds a list, expected tensors by name"),
        ("other.pt", "epoch is a int, expected a tensor"),
        ("one.npz", "is refused"),
        ("bad.safetensors", "is refused"),
        ("w.h5", r"expected a file .safetensors, .npz, .pt, .pth, .bin"),
        ("nowhere.pt", "cannot be read"),
        ("nowhere.npz", "cannot be read"),
        ("nowhere.safetensors", "cannot be read"),
    ):
        with pytest.raises(ExportError, match=message):
            read_weights(tmp_path / name)
