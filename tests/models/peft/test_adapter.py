"""Where adapters are, how large, and what they compute."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from device_runtime.models import peft as torch_peft
from device_runtime.models.errors import ExportError
from device_runtime.models.peft.places import convolutional_blocks

nn = torch.nn


def test_adapter_adds_what_its_bottleneck_makes_of_the_block(make, images):
    network, plain = make("vit"), make("vit")
    torch_peft.inject(network, "adapter", {"reduction": 4})
    mlp = network.blocks[1].mlp
    assert mlp.adapter_down.shape == (4, 16) and mlp.adapter_up.shape == (16, 4)
    with torch.no_grad():
        mlp.adapter_up.normal_(generator=torch.Generator().manual_seed(3))
        mlp.adapter_down_bias.fill_(0.5)
        mlp.adapter_up_bias.fill_(0.25)
        x = torch.randn(2, 5, 16)
        h = plain.blocks[1].mlp(x)
        inner = functional.gelu(h @ mlp.adapter_down.T + 0.5)
        torch.testing.assert_close(mlp(x), h + inner @ mlp.adapter_up.T + 0.25)


def test_convolutional_network_has_one_after_each_block(make):
    network = make("wrn")
    torch_peft.inject(network, "adapter", {})
    names = [n for n in torch_peft.members(network, "adapter", "head") if n.endswith("adapter_down")]
    assert names == [f"group{number}.0.adapter_down" for number in (1, 2, 3)]
    assert network.group3[0].adapter_down.shape == (64 // 8, 64, 1, 1)


def test_network_along_time_has_one_after_each_block():
    from device_runtime.models.networks.small import dscnn1d

    network = dscnn1d()
    torch_peft.inject(network, "adapter", {})
    assert [tuple(block.adapter_down.shape) for block in network.blocks] == [(8, 64, 1)] * 4
    assert network(torch.randn(2, 3, 40)).shape == (2, 6)


def test_width_is_that_of_what_a_block_gives_not_of_its_last_convolution():
    """A fire module joins two convolutions of 64."""
    from device_runtime.models.networks.convolutional import Fire

    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), Fire(8, 4, (64, 64)), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    network.append(nn.Linear(128, 2))
    (place,) = convolutional_blocks(network, "4")
    assert (place.name, place.width) == ("1", 128)


def test_network_without_blocks_has_adapters_at_the_end_of_its_levels():
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    network.append(nn.Linear(6, 2))
    network.level_outputs = {"low": "1", "mid": "3"}
    torch_peft.inject(network, "adapter", {"reduction": 2})
    trained = torch_peft.members(network, "adapter", "6")
    assert [name for name in trained if name.endswith("up_bias")] == [
        "1.adapter_up_bias",
        "3.adapter_up_bias",
    ]


def test_network_that_takes_no_image_of_the_sizes_tried_is_refused():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, x):
            return self.second(self.first(x))

    network = nn.Sequential(Block(), nn.Flatten(), nn.Linear(2 * 5 * 5, 2))
    with pytest.raises(ExportError, match="takes no image of 32x32, 64x64, 224x224"):
        torch_peft.inject(network, "adapter", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "network", "block"),
    [
        ("DistilBertConfig", "DistilBertForSequenceClassification", "distilbert.transformer.layer.{}.ffn"),
        ("RobertaConfig", "RobertaForSequenceClassification", "roberta.encoder.layer.{}.output.dense"),
    ],
)
def test_text_networks_have_one_in_each_feed_forward_block(config, network, block):
    transformers = pytest.importorskip("transformers")
    small = {
        "DistilBertConfig": {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
        "RobertaConfig": {
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        },
    }[config]  # fmt: skip
    module = getattr(transformers, network)(getattr(transformers, config)(vocab_size=20, **small)).eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    before = module(ids).logits
    head = "classifier" if network.startswith("Distil") else "classifier.out_proj"
    torch_peft.inject(module, "adapter", {}, head)
    names = [n for n in torch_peft.members(module, "adapter", head) if n.endswith("adapter_down")]
    assert names == [f"{block.format(layer)}.adapter_down" for layer in (0, 1)]
    assert torch.equal(module(ids).logits, before)
