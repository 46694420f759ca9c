import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.weights import Slices
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build

NETWORKS = ("cnn1d", "dscnn1d")
LABELS = ("sit", "walk")


def test_parameters_are_counted():
    """cnn1d: three convolutions of kernel 5. dscnn1d: one of 9; four times 5 and 1; norms; the head."""
    convolutions = 5 * (3 * 32 + 32 * 64 + 64 * 64)
    expected = convolutions + 2 * (32 + 64 + 64) + 64 * 6 + 6
    assert sum(p.numel() for p in build("cnn1d", {}).parameters()) == expected == 31_910
    expected = 9 * 3 * 64 + 4 * (5 * 64 + 64 * 64) + 9 * 2 * 64 + 64 * 6 + 6
    assert sum(p.numel() for p in build("dscnn1d", {}).parameters()) == expected == 20_934


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_windows_of_any_length_are_taken(name, norm):
    module = build(name, {"in_channels": 2, "classes": 4, "norm": norm}).eval()
    for length in (16, 99, 250):
        assert module(torch.randn(3, 2, length)).shape == (3, 4)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_level_and_levels_end_ever_shorter(name):
    module = build(name, {}).eval()
    lengths = []
    for place in module.level_outputs.values():
        module.get_submodule(place).register_forward_hook(lambda *a: lengths.append(a[-1].shape[2]))
    module(torch.randn(1, 3, 80))
    assert lengths == {"cnn1d": [40, 20, 10], "dscnn1d": [40, 20, 10]}[name]
    for parameter, _ in module.named_parameters():
        assert sum(parameter.startswith(f"{prefix}.") for prefix in module.levels) == 1, parameter


@pytest.mark.parametrize("name", NETWORKS)
def test_narrower_network_is_the_leading_part_of_a_wider_one(name, tmp_path):
    wide, narrow = (
        export(
            build(name, {"width": width, "classes": 2}).eval(),
            ExportSpec(f"w{width}", InputSpec((3, 32)), LABELS, sets={"head": {}}),
            tmp_path / str(width),
        ).manifest
        for width in (1, 0.5)
    )
    slices = Slices.of(wide, narrow)
    assert slices.shapes["head.weight"] == (2, 32)


def test_channels_that_do_not_fill_groups_are_refused():
    with pytest.raises(Exception, match="16 channels are no multiple of group_size 32"):
        build("cnn1d", {"width": 0.5, "group_size": 32})


@pytest.mark.parametrize("name", NETWORKS)
def test_bundle_trains_every_set_of_new_parameters(name, tmp_path):
    sets = {"adapter": {}, "lora": {"rank": 2}, "sparse": {}}
    module = build(name, {"classes": 2, "width": 0.25}).eval()
    spec = ExportSpec("it", InputSpec((3, 16)), LABELS, sets=sets)
    bundle = export(module, spec, tmp_path / "bundle")
    assert {f"train.{name}" for name in sets} <= bundle.manifest.graphs.keys()
