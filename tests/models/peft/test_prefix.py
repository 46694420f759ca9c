"""What prefixes compute, and where they cannot be."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft
from device_runtime.models.errors import ExportError

nn = torch.nn


def test_queries_attend_to_prefixes_beside_the_tokens(make):
    network = make("vit")
    attention = network.blocks[0].attn
    torch_peft.inject(network, "prefix", {"tokens": 4})
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3))
    q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in attention.qkv(x).chunk(3, 2))
    k = torch.cat([k, attention.prefix_keys.expand(2, 2, 4, 8)], 2)
    v = torch.cat([v, attention.prefix_values.expand(2, 2, 4, 8)], 2)
    mixed = nn.functional.scaled_dot_product_attention(q, k, v)
    expected = attention.proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected)


def test_prefixes_that_nothing_attends_to_leave_the_function(make, images):
    """Of keys so far from every query that softmax gives them nothing."""
    network, plain = make("vit"), make("vit")
    torch_peft.inject(network, "prefix", {})
    for block in [*network.blocks, *plain.blocks]:
        nn.init.ones_(block.attn.qkv.bias)
    for block in network.blocks:
        nn.init.constant_(block.attn.prefix_keys, -100)
    torch.testing.assert_close(network(images), plain(images))


def test_attention_with_normalised_queries_is_refused(make):
    network = make("vit")
    network.blocks[1].attn.q_norm = nn.LayerNorm(8)
    with pytest.raises(ExportError, match=r"prefix needs plain attention; blocks\.1\.attn has q_norm"):
        torch_peft.inject(network, "prefix", {})
    assert not any("prefix" in name for name in network.state_dict())


def test_mask_is_refused(make):
    network = make("vit")
    torch_peft.inject(network, "prefix", {})
    with pytest.raises(ValueError, match="takes no mask"):
        network.blocks[0].attn(torch.zeros(1, 5, 16), is_causal=True)
