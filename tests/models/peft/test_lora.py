"""Where low-rank factors are, and that they are a change of the weight."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft
from device_runtime.strategies.kinds.slora import factors

nn = torch.nn


def places(network, head: str = "head") -> list[str]:
    names = torch_peft.members(network, "lora", head)
    return [name.removesuffix(".lora_a") for name in names if name.endswith(".lora_a")]


def test_linear_layer_computes_with_the_changed_weight():
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    layer = network[0]
    torch_peft.inject(network, "lora", {"rank": 2, "alpha": 6})
    nn.init.normal_(layer.lora_b)
    x = torch.randn(3, 6)
    changed = layer.weight + 6 / 2 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(x), nn.functional.linear(x, changed, layer.bias))


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_convolution_computes_with_the_changed_kernel(padding_mode):
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, padding_mode=padding_mode)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 2))
    torch_peft.inject(network, "lora", {"rank": 2})
    nn.init.normal_(layer.lora_b)
    x = torch.randn(2, 3, 4, 4)
    change = torch.einsum("or,rihw->oihw", layer.lora_b[:, :, 0, 0], layer.lora_a)
    torch.testing.assert_close(layer(x), layer._conv_forward(x, layer.weight + change, layer.bias))


def test_convolution_along_time_computes_with_the_changed_kernel():
    layer = nn.Conv1d(3, 5, 3, stride=2, padding=1)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(10, 2))
    torch_peft.inject(network, "lora", {"rank": 2})
    nn.init.normal_(layer.lora_b)
    x = torch.randn(2, 3, 4)
    change = torch.einsum("or,rit->oit", layer.lora_b[:, :, 0], layer.lora_a)
    torch.testing.assert_close(layer(x), layer._conv_forward(x, layer.weight + change, layer.bias))


def test_factors_of_a_change_fit_a_layer():
    """Stage 2 of SLoRA: with the factors of a change of rank 2 the layer computes with that change."""
    layer = nn.Conv2d(3, 5, 3)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 2))
    torch_peft.inject(network, "lora", {"rank": 2})
    change = torch.randn(5, 2) @ torch.randn(2, 27)
    a, b = factors(change.reshape(5, 3, 3, 3).numpy(), 2)
    x = torch.randn(2, 3, 4, 4)
    expected = layer._conv_forward(x, layer.weight + change.reshape(5, 3, 3, 3), layer.bias)
    with torch.no_grad():
        layer.lora_a.copy_(torch.from_numpy(a))
        layer.lora_b.copy_(torch.from_numpy(b))
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_attention_is_the_joint_projection_where_there_is_one(make):
    network = make("vit")
    torch_peft.inject(network, "lora", {})
    assert places(network) == [f"blocks.{index}.attn.qkv" for index in range(3)]


@pytest.mark.slow
def test_attention_of_text_networks_is_queries_and_values():
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    network = transformers.RobertaForSequenceClassification(config)
    torch_peft.inject(network, "lora", {})
    inner = "roberta.encoder.layer.0.attention.self"
    assert places(network, "classifier.out_proj") == [f"{inner}.query", f"{inner}.value"]


def test_all_are_the_layers_that_are_called_but_the_head(make):
    """The patch embedding's weight is read by its parent: what is added to its result would go unseen."""
    network = make("vit")
    torch_peft.inject(network, "lora", {"targets": "all"})
    of_block = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert places(network) == [f"blocks.{index}.{name}" for index in range(3) for name in of_block]


def test_without_attention_all_layers_are_meant(make):
    network = make("wrn")
    torch_peft.inject(network, "lora", {})
    convolutions = [name for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 9
    assert places(network) == convolutions


def test_grouped_convolutions_and_projections_inside_torchs_attention_have_none():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
            self.attention = nn.MultiheadAttention(4, 2)
            self.plain = nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

    network = Mixed()
    torch_peft.inject(network, "lora", {})
    assert places(network) == ["plain"]


def test_head_can_be_named():
    network = nn.Sequential(nn.Linear(4, 2), nn.Linear(4, 2))
    torch_peft.inject(network, "lora", {}, "0")
    assert places(network, "0") == ["1"]
