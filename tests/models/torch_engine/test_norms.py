"""Compared with torch's own norms."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.torch_engine import layers as torch_norms

functional = torch.nn.functional


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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
    wanted = [t for t in (x, w, b) if t is not None]
    expected = torch.autograd.grad(reference, wanted, go)
    found = torch_norms.group_norm_backward(go, x, mean, rstd, w, 3, 4, 10, groups, [True, affine, affine])
    for one, other in zip([f for f in found if f is not None], expected, strict=True):
        close(one, other)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_backward_with_running_statistics(affine):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 2, requires_grad=True)
    w = torch.randn(4, requires_grad=True) if affine else None
    b = torch.randn(4, requires_grad=True) if affine else None
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    y = functional.batch_norm(x, mean, variance, w, b, training=False, eps=1e-3)
    go = torch.randn_like(y)
    wanted = [t for t in (x, w, b) if t is not None]
    expected = torch.autograd.grad(y, wanted, go)
    given = (go, x, w, mean, variance, None, None)
    found = torch_norms.batch_norm_backward(*given, False, 1e-3, [True, affine, affine])
    for one, other in zip(found[: len(wanted)], expected, strict=True):
        close(one, other)
    with pytest.raises(NotImplementedError, match="plain operators"):
        torch_norms.batch_norm_backward(*given, True, 1e-3, [True] * 3)
