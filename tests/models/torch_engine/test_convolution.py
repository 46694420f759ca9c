"""Compared with torch's own backward."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.torch_modules import layers as torch_convolution

functional = torch.nn.functional


def close(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


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
    grads = torch_convolution.convolution_backward(go, x, w, [outer], *settings, [True] * 3)
    for grad, other in zip(grads, expected, strict=True):
        close(grad, other)
    assert torch_convolution.convolution_backward(go, x, w, None, *settings, [False] * 3) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("inner", "outer", "kernel", "stride", "padding", "dilation", "groups"),
    [
        (3, 4, 5, 1, 2, 1, 1),
        (3, 4, 3, 2, 1, 1, 1),
        (3, 4, 3, 1, 2, 2, 1),
        (4, 6, 3, 2, 0, 1, 2),
        (4, 4, 3, 1, 1, 1, 4),  # depthwise
    ],
)
@pytest.mark.parametrize("length", [20, 301])  # below and above LARGE_AREA
def test_convolution_backward_along_one_dimension(
    inner, outer, kernel, stride, padding, dilation, groups, length
):
    torch.manual_seed(0)
    x = torch.randn(2, inner, length, requires_grad=True)
    w = torch.randn(outer, inner // groups, kernel, requires_grad=True)
    b = torch.randn(outer, requires_grad=True)
    y = functional.conv1d(x, w, b, stride, padding, dilation, groups)
    go = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w, b), go)
    settings = ([stride], [padding], [dilation], False, [0], groups)
    grads = torch_convolution.convolution_backward(go, x, w, [outer], *settings, [True] * 3)
    for grad, other in zip(grads, expected, strict=True):
        close(grad, other)


@pytest.mark.parametrize(
    ("inner", "outer", "kernel", "stride", "padding", "more", "dilation", "groups"),
    [
        (3, 4, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1),
        (3, 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
        (3, 4, (3, 2), (1, 2), (1, 0), (0, 1), (1, 1), 1),
        (3, 10, (3, 3), (1, 1), (1, 1), (0, 0), (2, 2), 1),
        (4, 6, (4, 4), (2, 2), (1, 1), (0, 0), (1, 1), 2),
        (4, 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 4),
    ],
)
@pytest.mark.parametrize("size", [5, 17])  # below and above LARGE_AREA
def test_transposed_convolution_backward(inner, outer, kernel, stride, padding, more, dilation, groups, size):
    torch.manual_seed(0)
    x = torch.randn(2, inner, size, size, requires_grad=True)
    w = torch.randn(inner, outer // groups, *kernel, requires_grad=True)
    b = torch.randn(outer, requires_grad=True)
    y = functional.conv_transpose2d(x, w, b, stride, padding, more, groups, dilation)
    go = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w, b), go)
    settings = (list(stride), list(padding), list(dilation), True, list(more), groups)
    grads = torch_convolution.convolution_backward(go, x, w, [outer], *settings, [True] * 3)
    for grad, other in zip(grads, expected, strict=True):
        close(grad, other)


def test_convolutions_along_three_dimensions_are_refused():
    x = torch.zeros(1, 1, 4, 4, 4)
    with pytest.raises(NotImplementedError, match="one or two dimensions"):
        torch_convolution.convolution_backward(
            x, x, torch.zeros(1, 1, 1, 1, 1), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1, [True] * 3
        )
