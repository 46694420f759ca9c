"""What prompts compute."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft


def test_every_block_sees_prompts_of_its_own_and_hands_none_on(make, images):
    """VPT-deep: [x, prompts] through each block, without what it makes of the prompts."""
    network, plain = make("vit"), make("vit")
    torch_peft.inject(network, "prompt", {"tokens": 4})
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3))
    expected = x
    for index, block in enumerate(plain.blocks):
        prompts = network.blocks[index].prompt_tokens
        assert prompts.shape == (4, 16)
        expected = block(torch.cat([expected, prompts.expand(2, 4, 16)], 1))[:, :5]
    torch.testing.assert_close(network.blocks(x), expected)
    assert network(images).shape == (3, 5)


def test_prompts_begin_within_the_bounds_of_glorot(make):
    """Uniform within sqrt(6 / (16 + 16)) = 0.433: the deviation is 0.25."""
    network = make("vit")
    torch_peft.inject(network, "prompt", {"tokens": 1000})
    prompts = network.blocks[0].prompt_tokens
    assert prompts.abs().max() <= 0.4331
    assert prompts.std().item() == pytest.approx(0.25, abs=0.005)
