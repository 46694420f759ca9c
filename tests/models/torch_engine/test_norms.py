"""Compared with torch's own norms."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.torch_modules import layers as torch_norms

functional = torch.nn.functional


def close(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_and_its_backward(groups, affine):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 2, requires_grad=True)
    w = torch.randn(4, requires_grad=True) if affine else None
    b = torch.randn(4, requires_grad=True) if affine else None
    y, mean, rstd = torch_norms.group_norm(x, w, b, 3, 4, 10, groups, 1e-5)
    reference = functional.group_norm(x, groups, w, b, 1e-5)
    close(y, reference)
    go = torch.randn_like(y)
    inputs = [t for t in (x, w, b) if t is not None]
    expected = torch.autograd.grad(reference, inputs, go)
    grads = torch_norms.group_norm_backward(go, x, mean, rstd, w, 3, 4, 10, groups, [True, affine, affine])
    for grad, other in zip([f for f in grads if f is not None], expected, strict=True):
        close(grad, other)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_backward_with_running_statistics(affine):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 2, requires_grad=True)
    w = torch.randn(4, requires_grad=True) if affine else None
    b = torch.randn(4, requires_grad=True) if affine else None
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    y = functional.batch_norm(x, mean, variance, w, b, training=False, eps=1e-3)
    go = torch.randn_like(y)
    inputs = [t for t in (x, w, b) if t is not None]
    expected = torch.autograd.grad(y, inputs, go)
    arguments = (go, x, w, mean, variance, None, None)
    grads = torch_norms.batch_norm_backward(*arguments, False, 1e-3, [True, affine, affine])
    for grad, other in zip(grads[: len(inputs)], expected, strict=True):
        close(grad, other)
    with pytest.raises(NotImplementedError, match="plain operators"):
        torch_norms.batch_norm_backward(*arguments, True, 1e-3, [True] * 3)
