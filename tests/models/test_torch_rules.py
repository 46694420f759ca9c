"""Each rule is called as torch would call it and compared with torch's own backward."""

import pytest

torch = pytest.importorskip("torch")

from models import torch_rules as rules  # noqa: E402

functional = torch.nn.functional


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inner", "outer", "kernel", "stride", "padding", "dilation", "groups"),
    [
        (3, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        (3, 4, (3, 3), (2, 2), (1, 1), (1, 1), 1),  # a row and a column are left over
        (3, 4, (1, 1), (2, 2), (0, 0), (1, 1), 1),
        (3, 4, (5, 3), (1, 1), (2, 1), (1, 1), 1),
        (3, 4, (3, 3), (1, 1), (2, 2), (2, 2), 1),
        (3, 4, (1, 1), (1, 1), (1, 1), (1, 1), 1),  # more padding than the kernel reaches
        (4, 6, (3, 3), (2, 1), (1, 0), (1, 1), 2),
        (4, 6, (3, 3), (1, 1), (1, 1), (1, 1), 2),
        (4, 4, (3, 3), (1, 1), (1, 1), (1, 1), 4),  # depthwise
        (4, 8, (3, 3), (1, 1), (1, 1), (1, 1), 4),
        (4, 4, (3, 3), (2, 2), (1, 1), (1, 1), 4),
    ],
)
@pytest.mark.parametrize(("rows", "columns"), [(10, 8), (20, 19)])  # below and above LARGE_AREA
def test_convolution_backward(inner, outer, kernel, stride, padding, dilation, groups, rows, columns):
    torch.manual_seed(0)
    x = torch.randn(2, inner, rows, columns, requires_grad=True)
    w = torch.randn(outer, inner // groups, *kernel, requires_grad=True)
    b = torch.randn(outer, requires_grad=True)
    y = functional.conv2d(x, w, b, stride, padding, dilation, groups)
    go = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w, b), go)
    settings = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    found = rules.convolution_backward(go, x, w, [outer], *settings, [True] * 3)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    assert rules.convolution_backward(go, x, w, None, *settings, [False] * 3) == (None, None, None)


def test_transposed_convolutions_are_refused():
    x = torch.zeros(1, 1, 4, 4)
    with pytest.raises(NotImplementedError, match="not transposed"):
        rules.convolution_backward(x, x, x, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1, [True] * 3)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1)])  # apart, and overlapping
def test_max_pool_backward(kernel, stride):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    y, indices = functional.max_pool2d(x, kernel, stride, padding=1, return_indices=True)
    go = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, go)
    close(rules.max_pool_backward(go, x, kernel, stride, 1, 1, False, indices), expected)


def test_nll_loss_and_its_backward():
    torch.manual_seed(0)
    x = torch.randn(5, 3, requires_grad=True)
    y = torch.tensor([0, 2, 1, 1, 0])
    loss = functional.nll_loss(x, y)
    close(rules.nll_loss(x, y, None, rules.MEAN, -100)[0], loss)
    (expected,) = torch.autograd.grad(loss, x, torch.tensor(2.0))
    close(rules.nll_loss_backward(torch.tensor(2.0), x, y, None, rules.MEAN, -100, None), expected)
    with pytest.raises(NotImplementedError, match="plain mean"):
        rules.nll_loss(x, y, torch.ones(3), rules.MEAN, -100)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_and_its_backward(groups, affine):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 2, requires_grad=True)
    w = torch.randn(4, requires_grad=True) if affine else None
    b = torch.randn(4, requires_grad=True) if affine else None
    y, mean, rstd = rules.group_norm(x, w, b, 3, 4, 10, groups, 1e-5)
    reference = functional.group_norm(x, groups, w, b, 1e-5)
    close(y, reference)
    go = torch.randn_like(y)
    wanted = [t for t in (x, w, b) if t is not None]
    expected = torch.autograd.grad(reference, wanted, go)
    found = rules.group_norm_backward(go, x, mean, rstd, w, 3, 4, 10, groups, [True, affine, affine])
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
    found = rules.batch_norm_backward(*given, False, 1e-3, [True, affine, affine])
    for one, other in zip(found[: len(wanted)], expected, strict=True):
        close(one, other)
    with pytest.raises(NotImplementedError, match="plain operators"):
        rules.batch_norm_backward(*given, True, 1e-3, [True] * 3)


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
