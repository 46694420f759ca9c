"""Each rule is called as torch would call it and compared with torch's own backward."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.torch_modules import rules

functional = torch.nn.functional


def close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1)])  # apart, and overlapping
def test_max_pool_backward(kernel, stride):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    y, indices = functional.max_pool2d(x, kernel, stride, padding=1, return_indices=True)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.max_pool_backward(go, x, kernel, stride, 1, 1, False, indices), expected)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 0), (3, 1, 1), (3, 2, 1)])
def test_avg_pool_backward(kernel, stride, padding):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 7, requires_grad=True)
    y = functional.avg_pool2d(x, kernel, stride, padding)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    pairs = [[size, size] for size in (kernel, stride, padding)]
    close(rules.avg_pool_backward(go, x, *pairs, False, True, None), expected)
    y = functional.avg_pool2d(x, kernel, stride, padding, count_include_pad=False)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.avg_pool_backward(go, x, *pairs, False, False, None), expected)
    with pytest.raises(NotImplementedError, match="only average pooling without ceil_mode"):
        rules.avg_pool_backward(go, x, [2, 2], [2, 2], [0, 0], True, True, None)


@pytest.mark.parametrize("sizes", [(1, 1), (4, 3), (2, 6)])
def test_adaptive_pooling(sizes):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 6, requires_grad=True)
    y = functional.adaptive_avg_pool2d(x, sizes)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.adaptive_avg_pool_backward(go, x), expected)
    y, places = functional.adaptive_max_pool2d(x, sizes, return_indices=True)
    (expected,) = torch.autograd.grad(y, x, go)
    for ours, reference in zip(rules.adaptive_max_pool(x, sizes), (y, places), strict=True):
        close(ours, reference)
    close(rules.max_pool_backward(go, x, places), expected)
    with pytest.raises(NotImplementedError, match="adaptive pooling of 8x6 to 3x6 cannot be trained"):
        rules.adaptive_max_pool(x, (3, 6))


def test_nll_loss_and_its_backward():
    torch.manual_seed(0)
    x = torch.randn(5, 3, requires_grad=True)
    y = torch.tensor([0, 2, 1, 1, 0])
    loss = functional.nll_loss(x, y)
    close(rules.nll_loss(x, y, None, rules.MEAN, -100)[0], loss)
    (expected,) = torch.autograd.grad(loss, x, torch.tensor(2.0))
    close(rules.nll_loss_backward(torch.tensor(2.0), x, y, None, rules.MEAN, -100, None), expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignore", [-100, 1])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.5])])
def test_nll_loss_of_weighted_and_ignored_samples(reduction, ignore, weight):
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0])
    expected = functional.nll_loss(x, y, weight, ignore_index=ignore, reduction=reduction)
    code = ["none", "mean", "sum"].index(reduction)
    ours, total = rules.nll_loss(x, y, weight, code, ignore)
    close(ours, expected)
    go = torch.randn_like(expected)
    (reference,) = torch.autograd.grad(expected, x, go)
    close(rules.nll_loss_backward(go, x, y, weight, code, ignore, total), reference)


@pytest.mark.parametrize("step", [2, 3])
def test_slice_backward_of_every_second_and_third_value(step):
    x = torch.randn(2, 7, 4, requires_grad=True)
    y = x[:, 1:6:step]
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.slice_backward(go, x.shape, 1, 1, 6, step), expected)


def test_backward_of_relu_and_relu6_at_and_between_their_bounds():
    x = torch.tensor([-1.0, 0.0, 2.0, 6.0, 7.0], requires_grad=True)
    go = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    y = functional.relu(x)
    close(rules.threshold_backward(go, y, 0), torch.autograd.grad(y, x, go)[0])
    (expected,) = torch.autograd.grad(functional.relu6(x), x, go)
    close(rules.hardtanh_backward(go, x, 0.0, 6.0), expected)


@pytest.mark.parametrize(("dim", "index"), [(0, 1), (1, 0), (-1, -1), (2, 3)])
def test_select_backward(dim, index):
    x = torch.randn(2, 3, 4, requires_grad=True)
    y = x.select(dim, index)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.select_backward(go, x.shape, dim, index), expected)


@pytest.mark.parametrize(("dim", "start", "end"), [(1, 1, 3), (-1, 0, 2**63 - 1), (0, -1, 2**63 - 1)])
def test_slice_backward(dim, start, end):
    x = torch.randn(2, 3, 4, requires_grad=True)
    y = torch.ops.aten.slice.Tensor(x, dim, start, end, 1)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.slice_backward(go, x.shape, dim, start, end, 1), expected)


def test_embedding_backward_adds_up_rows_that_occur_twice():
    table = torch.randn(5, 3, requires_grad=True)
    indices = torch.tensor([[0, 4], [4, 2]])
    y = functional.embedding(indices, table)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, table, go)
    close(rules.embedding_backward(go, indices, 5, -1, False), expected)
