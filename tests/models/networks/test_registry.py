import importlib
import inspect

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.errors import ExportError
from device_runtime.models.networks import NETWORKS, build

OURS = {
    "wrn": {"classes": 3},
    "squeezenet": {"classes": 3},
    "mobilenet_v2": {"classes": 3, "width": 0.35},
}


def test_every_network_has_a_place():
    assert list(NETWORKS) == [
        "linear", "mlp", "cnn", "wrn", "squeezenet", "mobilenet_v2", "resnet18", "mobilenet_v3_small",
        "shufflenet_v2_x0_5", "efficientnet_b0", "vit", "lstm", "gru", "keywords", "cnn1d", "dscnn1d",
        "autoencoder",
        "bert", "distilbert", "roberta", "opt",
    ]  # fmt: skip


@pytest.mark.parametrize("place", NETWORKS.values())
def test_every_place_holds_a_function(place):
    module, _, function = place.partition(":")
    target = getattr(importlib.import_module(f"device_runtime.models.networks.{module}"), function)
    assert inspect.isfunction(target)


@pytest.mark.parametrize("name", OURS)
def test_maps_of_the_levels_are_there_and_the_last_one_is_what_the_head_averages(name):
    module = build(name, OURS[name]).eval()
    assert list(module.level_outputs) == ["low", "mid", "up"]
    maps = {}
    for level, place in module.level_outputs.items():
        module.get_submodule(place).register_forward_hook(
            lambda _module, _inputs, output, level=level: maps.__setitem__(level, output)
        )
    assert module(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    low, mid, up = (maps[level].shape[2] for level in ("low", "mid", "up"))
    assert low >= mid >= up >= 1
    assert low > up


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_has_a_level_and_all_levels_have_parameters(name):
    module = build(name, OURS[name])
    names = set()
    for parameter, _ in module.named_parameters():
        levels = {v for prefix, v in module.levels.items() if parameter.startswith(f"{prefix}.")}
        assert len(levels) == 1, parameter
        names |= levels
    assert names == {"low", "mid", "up", "head"}


def test_unknown_names_and_settings_are_told_what_is_known():
    with pytest.raises(ExportError, match=r"no network 'resnet19'; known are linear, mlp, .*, roberta"):
        build("resnet19", {})
    with pytest.raises(ExportError, match="wrn takes no setting heads; it takes depth, width, in_channels"):
        build("wrn", {"heads": 3})


def test_values_that_a_network_refuses_are_named():
    with pytest.raises(ExportError, match="wrn with depth=12 fails: depth is 12, expected 6 n [+] 4"):
        build("wrn", {"depth": 12})
    with pytest.raises(
        ExportError, match="squeezenet with version=1.2 fails: version is '1.2', expected one"
    ):
        build("squeezenet", {"version": 1.2})
    with pytest.raises(ExportError, match="squeezenet with classes=many fails"):
        build("squeezenet", {"classes": "many"})
    with pytest.raises(ExportError, match="mobilenet_v2 with classes=-1 fails"):
        build("mobilenet_v2", {"classes": -1})
