"""Gradients that are written where they are wanted are those of torch, however a layer is used."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from device_runtime.models.torch_modules.layers import LARGE, write_gradients


class Twice(nn.Module):
    """One large layer in front, and one that is run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 256)
        self.square = nn.Linear(256, 256)
        self.head = nn.Linear(256, 3, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.square(torch.tanh(self.square(self.front(x))))))


def gradients(module, x):
    loss = module(x).square().sum()
    return dict(
        zip(
            dict(module.named_parameters()), torch.autograd.grad(loss, list(module.parameters())), strict=True
        )
    )


def test_a_layer_fills_its_slot_once_and_is_right_even_if_it_runs_twice():
    torch.manual_seed(0)
    module, x = Twice(), torch.randn(5, 8)
    expected = gradients(module, x)
    slots = {"square.weight": torch.full((256, 256), 7.0), "front.weight": torch.full((256, 8), 7.0)}
    write_gradients(module, slots)
    grads = gradients(module, x)
    assert all(torch.allclose(grads[name], expected[name], atol=1e-5) for name in expected)
    assert module.square.weight.numel() >= LARGE > module.front.weight.numel()
    assert list(slots) == ["front.weight"]  # too small to have been changed


def test_the_gradient_of_a_layer_that_runs_once_is_the_slot_itself():
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 3)), torch.randn(5, 512)
    expected, slots, slot = gradients(module, x), {}, torch.zeros(128, 512)
    write_gradients(module, slots)
    slots["0.weight"] = slot
    grads = gradients(module, x)
    assert grads["0.weight"].data_ptr() == slot.data_ptr()
    assert all(torch.allclose(grads[name], expected[name], atol=1e-6) for name in expected)
    assert not slots


def test_inputs_of_more_dimensions_and_empty_slots_are_as_ever():
    torch.manual_seed(0)
    module, x = nn.Linear(256, 256), torch.randn(2, 3, 256)
    expected = gradients(module, x), gradients(module, x[0])
    write_gradients(module, {})
    for left, right in zip((gradients(module, x), gradients(module, x[0])), expected, strict=True):
        assert all(torch.allclose(left[name], right[name], atol=1e-5) for name in right)
