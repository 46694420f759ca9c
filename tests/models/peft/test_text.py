"""Prompts and prefixes in networks of the library `transformers`, which mask padding."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft
from device_runtime.models.networks import transformers as networks
from device_runtime.models.peft.methods import prefixed_attention

PADDING = {"bert": 0, "distilbert": 0, "roberta": 1, "opt": 1}


@pytest.fixture(params=PADDING)
def built(request):
    """A text network by a call, the same each time; `padding` is its id of padding."""
    pytest.importorskip("transformers")

    def build():
        torch.manual_seed(0)
        module = getattr(networks, request.param)(vocabulary=30, length=8, dim=16, depth=3, heads=2)
        module.padding = PADDING[request.param]
        return module.eval()

    return build


def test_every_layer_sees_prompts_of_its_own_and_hands_none_on(built):
    network, plain = built(), built()
    torch_peft.inject(network, "prompt", {"tokens": 4})
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3))
    ids = torch.tensor([[3, 4, 5, network.padding, network.padding], [3, 4, 5, 6, 7]])
    hidden = networks.mask(ids, network.padding)
    padded = torch.cat([hidden, torch.zeros(2, 1, 1, 4)], 3)
    for name in network.transformer_layers:
        with_prompts, layer = network.get_submodule(name), plain.get_submodule(name)
        longer = torch.cat([x, with_prompts.prompt_tokens.expand(2, 4, 16)], 1)
        expected = layer(longer, attention_mask=padded)[:, :5]
        x = with_prompts(x, attention_mask=hidden)
        torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("name", ["prompt", "prefix"])
def test_a_text_is_classified_the_same_with_more_padding_and_not_as_without_the_set(built, name):
    network, plain = built(), built()
    torch_peft.inject(network, name, {"tokens": 4})
    text = torch.tensor([[3, 9, 5, 7]])
    padded = torch.nn.functional.pad(text, (0, 3), value=network.padding)
    torch.testing.assert_close(network(padded), network(text))
    assert (network(text) - plain(text)).abs().max() > 1e-6


def test_prefixes_are_in_the_first_layers_only_if_so_asked(built):
    network, plain = built(), built()
    torch_peft.inject(network, "prefix", {"tokens": 4, "blocks": 1})
    owners = {name.rpartition(".")[0] for name, _ in network.named_parameters() if "prefix_" in name}
    [owner] = owners
    assert owner.startswith(network.transformer_layers[0])
    head = next(name for name, level in network.levels.items() if level == "head")
    assert set(torch_peft.members(network, "prefix", head)) == {
        *(f"{owner}.{part}" for part in ("prefix_keys", "prefix_values")),
        *(name for name, _ in plain.named_parameters() if name.startswith(f"{head}.")),
    }


def test_queries_attend_to_prefixes_and_to_the_tokens_that_the_mask_shows():
    drawn = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 2, 5, 8, generator=drawn) for _ in range(3))
    module, keys, values = torch.nn.Module(), *(torch.randn(2, 3, 8, generator=drawn) for _ in range(2))
    module.prefix_keys, module.prefix_values = torch.nn.Parameter(keys), torch.nn.Parameter(values)
    mask = torch.zeros(2, 1, 1, 5)
    mask[0, :, :, 3:] = torch.finfo(torch.float32).min
    output, _ = prefixed_attention(module, q, k, v, mask, 8**-0.5)
    attend = torch.nn.functional.scaled_dot_product_attention
    both = [
        torch.cat([matrix, prefix.expand(2, -1, -1, -1)], 2) for matrix, prefix in ((k, keys), (v, values))
    ]
    torch.testing.assert_close(output[1], attend(q, *both)[1].transpose(0, 1))
    visible = [matrix[:, :, [0, 1, 2, 5, 6, 7]] for matrix in both]
    torch.testing.assert_close(output[0], attend(q, *visible)[0].transpose(0, 1))
