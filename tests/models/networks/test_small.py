import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks.small import cnn, linear, mlp

LABELS = ("no", "perhaps", "yes")


def exported(module, shape, folder) -> Bundle:
    return export(module, ExportSpec("small", InputSpec(shape), LABELS), folder / "bundle")


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameters_are_counted():
    assert count(linear()) == 784 * 10 + 10
    assert count(mlp()) == 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10 == 199_210
    conv = 3 * 32 * 9 + 32 + 32 * 64 * 9 + 64
    assert count(cnn()) == conv + 64 * 14 * 14 * 128 + 128 + 128 * 10 + 10 == 1_626_442


def test_linear_is_its_head_on_the_flattened_input():
    module, x = linear(12, 3), torch.randn(2, 3, 2, 2)
    expected = x.reshape(2, 12) @ module.head.weight.T + module.head.bias
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_cnn_is_the_published_stack_of_layers():
    module, x = cnn(1, 9, 4), torch.randn(2, 1, 9, 9)
    f = torch.nn.functional
    (conv1, _), (conv2, _, _) = module.conv1, module.conv2
    maps = f.max_pool2d(f.relu(conv2(f.relu(conv1(x)))), 2)
    assert maps.shape == (2, 64, 2, 2)  # 9 - 2 - 2 = 5, halved and rounded down
    expected = module.head(f.relu(module.dense[1](maps.flatten(1))))
    assert torch.equal(module(x), expected)


def test_levels_of_hidden_layers_go_in_thirds():
    assert mlp(4, 2, 1, 3).levels == {"hidden.0": "low", "head": "head"}
    assert mlp(4, 2, 2, 3).levels == {"hidden.0": "low", "hidden.1": "mid", "head": "head"}
    four = mlp(4, 2, 4, 3)
    assert [four.levels[f"hidden.{i}"] for i in range(4)] == ["low", "low", "mid", "up"]
    assert four.level_outputs == {"low": "hidden.1", "mid": "hidden.2", "up": "hidden.3"}


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="depth is 0, expected 1 or more hidden layers"):
        mlp(depth=0)
    with pytest.raises(ValueError, match="size is 5, expected images of 6x6 or larger"):
        cnn(size=5)


def test_every_tunable_set_of_linear_is_the_head(tmp_path):
    manifest = exported(linear(12, 3), (3, 2, 2), tmp_path).manifest
    assert {manifest.names(s) for s in manifest.sets} == {("head.weight", "head.bias")}
    assert manifest.head.features == 12


@pytest.mark.slow
@pytest.mark.parametrize("module, shape", [(mlp(12, 4, 2, 3), (3, 2, 2)), (cnn(2, 7, 3), (2, 7, 7))])
def test_level_mid_leaves_the_first_layer_alone(module, shape, tmp_path):
    manifest = exported(module, shape, tmp_path).manifest
    low = {"hidden.0.0", "conv1.0"}
    assert set(manifest.names("all")) - set(manifest.names("mid")) == {
        name for name in manifest.names("all") if name.rpartition(".")[0] in low
    }


def test_width_multiplies_the_channels_of_cnn():
    half = cnn(1, 9, 4, width=0.5)
    assert [tuple(p.shape) for p in half.parameters() if p.dim() > 1] == [
        (16, 1, 3, 3), (32, 16, 3, 3), (64, 32 * 4), (4, 64),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="width is 0.1, which makes 3.2 channels of 32"):
        cnn(width=0.1)
