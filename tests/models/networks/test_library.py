import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from device_runtime.models.errors import ExportError
from device_runtime.models.networks import build
from device_runtime.models.networks.vision import NETWORK_LEVELS, out_of_place


@pytest.fixture(params=list(NETWORK_LEVELS))
def network(request):
    try:
        return build(request.param, {"classes": 3})
    except ExportError as error:
        pytest.skip(str(error))


def test_levels_cover_every_parameter_and_the_head_is_linear(network):
    for name, _ in network.named_parameters():
        assert any(name.startswith(f"{prefix}.") for prefix in network.levels), name
    [head] = [prefix for prefix, level in network.levels.items() if level == "head"]
    assert isinstance(network.get_submodule(head), nn.Linear)
    assert network.get_submodule(head).out_features == 3


def test_maps_of_the_levels_shrink_from_stride_8_to_32(network):
    sizes = {}
    for level, place in network.level_outputs.items():
        network.get_submodule(place).register_forward_hook(
            lambda _module, _inputs, output, level=level: sizes.__setitem__(level, output.shape[2])
        )
    with torch.no_grad():
        network.eval()(torch.randn(1, 3, 64, 64))
    assert sizes == {"low": 8, "mid": 4, "up": 2}


def test_no_activation_works_in_place(network):
    assert not any(getattr(module, "inplace", False) for module in network.modules())


def test_missing_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(
        ExportError, match="resnet18 needs torchvision.*, which is not installed: pip install"
    ):
        build("resnet18", {})


def test_torchvision_that_does_not_load_is_told_with_its_reason(monkeypatch, tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ExportError, match="does not load with torch .*torchvision::nms does not exist; install"
    ):
        build("resnet18", {})


def test_library_that_loads_is_asked_for_the_network_and_its_parts_are_named(monkeypatch):
    """A stand-in for torchvision, so that this is checked where it does not load."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.resnet18 = lambda num_classes: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, num_classes))
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    module = build("resnet18", {"classes": 4})
    assert module[1].out_features == 4
    assert not module[0].inplace
    assert module.levels["layer1"] == "low"
    assert module.levels["fc"] == "head"
    assert module.level_outputs == {"low": "layer2", "mid": "layer3", "up": "layer4"}


def test_gradients_survive_activations_that_worked_in_place():
    """A squared value is overwritten by the ReLU after it, unless that is turned off."""

    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = x * 2
            return y.sigmoid() + self.relu(y.exp())

    x = torch.ones(3, requires_grad=True)
    out_of_place(Squared())(x).sum().backward()
    assert x.grad is not None
