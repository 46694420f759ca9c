import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.names import LEVELS_OF
from device_runtime.models.networks.convolutional import norm_of, wrn


@pytest.mark.parametrize("depth", [10, 16, 22, 28, 34, 40])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_depth_is_the_number_of_convolutions(depth, width):
    """6 n + 4: the first, 6 n in the blocks, and three shortcuts; at width 1 group 1 needs none."""
    module = wrn(depth, width)
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in module.modules())
    assert convolutions == depth - (width == 1)


def test_size_is_that_of_the_paper():
    """36.5 million parameters of WRN-28-10 (table 5), 8.9 million of WRN-40-4."""
    for depth, width, millions in ((28, 10, 36.5), (40, 4, 8.9)):
        assert sum(p.numel() for p in wrn(depth, width).parameters()) / 1e6 == pytest.approx(
            millions, abs=0.1
        )


def test_what_lies_above_level_mid_is_the_last_group_and_the_head():
    """WRN-16-1 as figure 5.6 of Shi 2025 splits it: two blocks of norms, convolutions 3x3, a shortcut 1x1.

    The first block has 2 * 32 + 9 * 32 * 64 + 2 * 64 + 9 * 64 * 64 + 32 * 64 = 57,536 parameters, the second
    2 * (2 * 64 + 9 * 64 * 64) = 73,984, the last norm 2 * 64, the head 64 * 10 + 10.
    """
    module = wrn(16, 1)
    above = 0
    for name, parameter in module.named_parameters():
        place = max((level for level in module.levels if f"{name}.".startswith(f"{level}.")), key=len)
        above += parameter.numel() * (module.levels[place] in LEVELS_OF["up"])
    assert above == 57_536 + 73_984 + 128 + 650


def test_features_are_the_averaged_last_group():
    module = wrn(10, 2, 3, 7).eval()
    x = torch.randn(2, 3, 32, 32)
    features = []
    module.head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    assert module(x).shape == (2, 7)
    maps = torch.relu(module.norm(module.group3(module.group2(module.group1(module.conv1(x))))))
    assert maps.shape == (2, 128, 8, 8)
    torch.testing.assert_close(features[0], maps.mean((2, 3)))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_maps_of_the_levels_are_those_of_the_groups(norm):
    module = wrn(10, 2, norm=norm).eval()
    maps = []
    for place in module.level_outputs.values():
        module.get_submodule(place).register_forward_hook(lambda *a: maps.append(tuple(a[-1].shape[1:])))
    module(torch.randn(1, 3, 32, 32))
    assert list(module.level_outputs) == ["low", "mid", "up"]
    assert maps == [(32, 32, 32), (64, 16, 16), (128, 8, 8)]


def test_convolutions_start_with_variance_two_over_fan_out():
    torch.manual_seed(0)
    weight = wrn(10, 4).group3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_both_norms_and_nothing_else():
    assert isinstance(wrn(norm="group").norm, torch.nn.GroupNorm)
    assert isinstance(wrn(norm="batch").norm, torch.nn.BatchNorm2d)
    with pytest.raises(ValueError, match="norm is 'layer', expected one of group, batch"):
        wrn(norm="layer")
    with pytest.raises(ValueError, match="depth is 12"):
        wrn(12)


def test_a_narrower_network_has_fewer_channels_everywhere_and_no_shortcut_more():
    whole, half = wrn(16), wrn(16, 0.5)
    shapes = {name: tuple(p.shape) for name, p in half.named_parameters()}
    assert shapes.keys() == dict(whole.named_parameters()).keys()
    assert shapes["conv1.weight"] == (8, 3, 3, 3)
    assert shapes["group2.0.shortcut.weight"] == (16, 8, 1, 1)
    assert shapes["head.weight"] == (10, 32)
    assert half.group3[0].norm2.num_groups == 4


def test_group_size_makes_room_for_a_quarter_of_the_width():
    with pytest.raises(ValueError, match="4 channels are no multiple of group_size 8"):
        wrn(16, 0.25)
    assert wrn(16, 0.25, group_size=4).norm.num_groups == 4
    with pytest.raises(ValueError, match=r"width is 0.3, which makes 4.8 channels of 16"):
        wrn(16, 0.3)


def test_groups_of_leading_channels_are_the_leading_groups_of_all_channels():
    """What makes HeteroFL's static batch norm needless; a layer norm over the channels has no such part."""
    x, make = torch.randn(4, 32, 5, 5), norm_of("group")
    assert torch.equal(make(16)(x[:, :16]), make(32)(x)[:, :16])
    over_all = torch.nn.functional.layer_norm(x, x.shape[1:])[:, :16]
    assert not torch.allclose(torch.nn.functional.layer_norm(x[:, :16], (16, 5, 5)), over_all, atol=1e-3)


def test_the_scale_of_convolutions_changes_nothing_so_that_heterofls_scaler_would_do_nothing():
    """Every convolution's output, the sum of them too, goes through a norm before anything else."""
    module, x = wrn(10, 0.5).eval(), torch.randn(4, 3, 8, 8)
    before = module(x)
    with torch.no_grad():
        for convolution in (m for m in module.modules() if isinstance(m, torch.nn.Conv2d)):
            convolution.weight *= 2
    torch.testing.assert_close(module(x), before, atol=1e-3, rtol=1e-3)
