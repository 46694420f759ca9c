"""Functions that are written in others compute what torch's own do, with the same gradients."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.export.trace import SUBSTITUTES, Substitutes

functional = torch.nn.functional
IDS = torch.tensor([[1, 2, 2, 0], [0, 0, 0, 0], [3, 4, 0, 1]])


def same(compute, *shapes):
    """Compares results and gradients of a function of tensors, with substitutes and without."""
    torch.manual_seed(0)
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    results = []
    for substituted in (False, True):
        if substituted:
            with Substitutes():
                result = compute(*tensors)
        else:
            result = compute(*tensors)
        results.append((result, *torch.autograd.grad(result.square().sum(), tensors)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, -5])
def test_bags_of_words_leave_out_the_padding(mode, padding):
    same(lambda words: functional.embedding_bag(IDS, words, mode=mode, padding_idx=padding), (5, 3))


def test_a_random_leaky_relu_has_its_mean_slope_in_eval_mode():
    same(lambda x: functional.rrelu(x, 0.1, 0.3), (4, 5))


def test_distances_of_rows_have_gradients_also_where_they_are_0():
    same(torch.cdist, (4, 3), (5, 3))
    same(lambda a: torch.cdist(a, a.detach()), (4, 3))


def test_functions_without_a_counterpart_in_onnx_have_a_substitute():
    assert SUBSTITUTES[functional.rrelu](torch.ones(2)) is not None
    assert SUBSTITUTES[torch.cdist](torch.ones(2, 3), torch.ones(2, 3)) is not None
    assert SUBSTITUTES[functional.embedding_bag](IDS, torch.ones(5, 3), padding_idx=0) is not None
