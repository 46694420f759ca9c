"""What each set adds to a network, which parameters it trains, and what is refused."""

import copy

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft
from device_runtime.models.errors import ExportError
from device_runtime.models.networks.vision import vit

nn = torch.nn

PLACED = [
    ("vit", "adapter"), ("vit", "prompt"), ("vit", "prefix"), ("vit", "lora"), ("vit", "sparse"),
    ("wrn", "adapter"), ("wrn", "lora"), ("wrn", "sparse"),
]  # fmt: skip
UNCHANGING = [pair for pair in PLACED if pair[1] not in ("prompt", "prefix")]


@pytest.mark.parametrize(("kind", "name"), UNCHANGING)
def test_what_is_added_leaves_the_function_as_it_is(make, images, kind, name):
    network = make(kind)
    before = network(images)
    torch_peft.inject(network, name, {})
    assert torch.equal(network(images), before)


@pytest.mark.parametrize(("kind", "name"), PLACED)
def test_names_and_values_that_were_there_stay(make, kind, name):
    plain, network = make(kind), make(kind)
    torch_peft.inject(network, name, {})
    state = network.state_dict()
    added = state.keys() - plain.state_dict().keys()
    assert added and len(state) == len(plain.state_dict()) + len(added)
    plain.load_state_dict({name: tensor for name, tensor in state.items() if name not in added})


@pytest.mark.parametrize(("kind", "name"), PLACED)
def test_every_trained_value_moves_the_logits_of_a_copy_too(make, images, kind, name):
    """Of a deep copy, called with tensors in place of its own; the original stays as it was."""
    network = make(kind)
    torch_peft.inject(network, name, {})
    before = network(images)
    duplicate = copy.deepcopy(network)
    names = torch_peft.members(duplicate, name, "head")
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    tensors = {n: p.detach().requires_grad_() for n, p in duplicate.named_parameters()}
    loss = torch.func.functional_call(duplicate, tensors, (images,)).square().sum()
    grads = torch.autograd.grad(loss, [tensors[name] for name in names])
    assert all(bool(grad.any()) for grad in grads)
    assert torch.equal(network(images), before)


@pytest.mark.parametrize(("kind", "name"), PLACED)
def test_set_trains_what_was_added_and_the_head_in_order(make, kind, name):
    network = make(kind)
    base = {name for name, _ in network.named_parameters()}
    torch_peft.inject(network, name, {})
    names = [name for name, _ in network.named_parameters()]
    expected = [name for name in names if name not in base or name.startswith("head.")]
    assert list(torch_peft.members(network, name, "head")) == expected


@pytest.mark.parametrize(("kind", "name"), PLACED)
def test_same_seed_draws_the_same(make, kind, name):
    def drawn(seed: int) -> list:
        network = make(kind)
        torch_peft.inject(network, name, {"seed": seed})
        return list(network.state_dict().values())

    def equal(left: list, other: list) -> bool:
        return all(torch.equal(a, b) for a, b in zip(left, other, strict=True))

    assert equal(drawn(7), drawn(7))
    assert not equal(drawn(7), drawn(8))


def test_bias_trains_every_bias_and_the_head_and_the_weights_of_norms_if_asked():
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3, 4)
            self.recurrent = nn.GRU(4, 4)
            self.norm = nn.LayerNorm(4)
            self.plain = nn.Linear(4, 4, bias=False)
            self.head = nn.Linear(4, 2)

    network = Text()
    assert torch_peft.inject(network, "bias", {}) == {"head": "with", "norms": "biases"}
    biases = ("recurrent.bias_ih_l0", "recurrent.bias_hh_l0", "norm.bias", "head.weight", "head.bias")
    assert torch_peft.members(network, "bias", "head") == biases
    affine = torch_peft.members(network, "bias", "head", {"norms": "affine"})
    assert affine == (*biases[:2], "norm.weight", *biases[2:])


def test_frozen_parameters_are_left_out(make):
    network = make("vit")
    network.norm.requires_grad_(False)
    names = torch_peft.members(network, "bias", "head")
    assert not any(name.startswith("norm.") for name in names)
    assert "blocks.0.norm1.bias" in names


@pytest.mark.parametrize(
    ("name", "settings", "expected", "paper"),
    [
        # 12 blocks of biases: norms 2 * 768, qkv 3 * 768, proj 768, mlp 4 * 768 + 768; patches, last norm
        ("bias", {}, 12 * 11 * 768 + 2 * 768, 0.18),
        ("adapter", {"reduction": 96}, 12 * (2 * 768 * 8 + 8 + 768), 0.23),
        ("prompt", {}, 12 * 10 * 768, 0.17),
        ("lora", {"rank": 4}, 12 * 4 * (768 + 3 * 768), 0.22),
        ("prefix", {"tokens": 5, "blocks": 1}, 2 * 5 * 768, 0.08),
    ],
)
def test_sets_of_fedpeft_train_as_many_parameters_of_a_vit_b_as_in_the_paper(name, settings, expected, paper):
    """Tables I and IX of paper 003, in millions, with a head of 768 * 100 + 100 for CIFAR-100."""
    with torch.device("meta"):
        network = vit("base", classes=100)
    with torch.device("meta"):
        torch_peft.inject(network, name, settings)
    shapes = {own: parameter.numel() for own, parameter in network.named_parameters()}
    trained = sum(shapes[own] for own in torch_peft.members(network, name, "head", settings))
    assert trained == expected + 76_900
    assert round(trained / 1e6, 2) == paper


def test_bias_leaves_out_what_other_sets_have_added(make):
    network = make("vit")
    alone = torch_peft.members(network, "bias", "head")
    torch_peft.inject(network, "adapter", {})
    assert torch_peft.members(network, "bias", "head") == alone


def test_sets_can_be_added_together(make, images):
    network = make("wrn")
    before = network(images)
    sets = {}
    for name in ("adapter", "lora", "sparse"):
        torch_peft.inject(network, name, {})
        sets[name] = set(torch_peft.members(network, name, "head"))
    assert torch.equal(network(images), before)
    assert sets["adapter"] & sets["lora"] == sets["lora"] & sets["sparse"] == {"head.weight", "head.bias"}


def test_all_settings_are_given_back():
    network = nn.Sequential(nn.Linear(40, 4), nn.Linear(4, 2))
    settings = {"rank": 2}
    expected = {"rank": 2, "alpha": 2.0, "targets": "attention", "seed": 0}
    assert torch_peft.inject(network, "lora", settings) == expected
    assert torch_peft.inject(network, "sparse", {}) == {"density": 0.1, "seed": 0}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lora", {"rank": 0}, "rank of tunable set lora is 0, expected an integer of at least 1"),
        ("lora", {"rank": 1.5}, "rank of tunable set lora is 1.5"),
        ("lora", {"alpha": 0}, "alpha of tunable set lora is 0"),
        ("lora", {"targets": "mlp"}, "targets of tunable set lora is 'mlp', expected one of attention, all"),
        ("sparse", {"density": 2}, "density of tunable set sparse is 2, expected a number above 0"),
        ("sparse", {"density": float("nan")}, "density of tunable set sparse is nan"),
        ("prompt", {"tokens": True}, "tokens of tunable set prompt is True"),
        ("adapter", {"seed": -1}, "seed of tunable set adapter is -1"),
        ("adapter", {"rank": 1}, "tunable set adapter has no setting 'rank'; it has reduction, seed"),
        ("bias", {"rank": 1}, "tunable set bias has no setting 'rank'; it has head, norms"),
        ("bias", {"head": False}, "head of tunable set bias is False, expected one of with, without"),
        ("all", {}, "no parameter-efficient set 'all'; there are bias, adapter"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, name, settings, message):
    network = make("vit")
    before = list(network.state_dict())
    with pytest.raises(ExportError, match=message):
        torch_peft.inject(network, name, settings)
    assert list(network.state_dict()) == before


@pytest.mark.parametrize("name", ["prompt", "prefix"])
def test_network_without_a_place_is_refused_with_what_was_looked_for(make, name):
    with pytest.raises(
        ExportError, match=rf"WideResNet has no place for tunable set {name}, .*attn\.qkv.*9 Conv2d"
    ):
        torch_peft.inject(make("wrn"), name, {})


@pytest.mark.parametrize("name", ["adapter", "lora", "sparse"])
def test_head_alone_is_no_place(name):
    with pytest.raises(
        ExportError, match=f"Sequential has no place for tunable set {name}, .*; it has 1 Linear"
    ):
        torch_peft.inject(nn.Sequential(nn.Linear(4, 2)), name, {})


def test_second_injection_is_refused(make):
    network = make("vit")
    torch_peft.inject(network, "lora", {})
    with pytest.raises(ExportError, match=r"already has blocks\.0\.attn\.qkv\.lora_a"):
        torch_peft.inject(network, "lora", {})


def test_set_that_was_not_injected_has_no_members(make):
    with pytest.raises(ExportError, match="tunable set lora was not injected"):
        torch_peft.members(make("vit"), "lora", "head")


def test_head_without_parameters_is_refused(make):
    with pytest.raises(ExportError, match="head 'blocks' has no parameters with requires_grad=True"):
        torch_peft.members(make("vit"), "bias", "blocks")
