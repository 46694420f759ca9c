import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.parameters import assign_levels, find_head

nn = torch.nn


def plain() -> "torch.nn.Module":
    layers = [nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 2)]
    return nn.Sequential(*layers)


def test_head_is_the_last_linear_layer_or_the_named_one():
    assert find_head(plain(), None) == "3"
    assert find_head(plain(), "1") == "1"
    with pytest.raises(ExportError, match=r"head 'x' is no nn.Linear of the module; 0, 1, 2, 3 are"):
        find_head(plain(), "x")
    with pytest.raises(ExportError, match=r"Sequential has no nn.Linear"):
        find_head(nn.Sequential(nn.ReLU()), None)


def test_without_levels_the_layers_are_split_in_thirds_and_that_is_said(caplog):
    levels = assign_levels(plain(), "3", None).levels
    assert [levels[f"{i}.weight"] for i in range(4)] == ["low", "mid", "up", "head"]
    assert [levels[f"{i}.bias"] for i in range(4)] == ["low", "mid", "up", "head"]
    assert "thirds by parameter count: 0=low, 1=mid, 2=up" in caplog.text


def test_longest_prefix_decides_and_the_head_is_always_head():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    levels = assign_levels(module, "1", {"0": "low", "0.1": "up"}).levels
    assert levels == {
        "0.0.weight": "low", "0.0.bias": "low", "0.1.weight": "up", "0.1.bias": "up",
        "1.weight": "head", "1.bias": "head",
    }  # fmt: skip


def test_levels_attribute_is_used_and_gaps_and_unknown_levels_are_refused():
    module = plain()
    module.levels = {"0": "low", "1": "mid", "2": "mid"}
    assert assign_levels(module, "3", None).levels["2.bias"] == "mid"
    with pytest.raises(ExportError, match=r"1.weight has no level; prefixes are 0"):
        assign_levels(module, "3", {"0": "low"})
    with pytest.raises(ExportError, match="level 'top' is none of low, mid, up, head"):
        assign_levels(module, "3", {"0": "top"})
