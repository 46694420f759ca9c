import msgspec
import numpy as np
import pytest

from models import manifest as manifests
from models.errors import BundleError, TensorError
from models.manifest import Graph, InputSpec


def test_manifest_comes_back_as_it_was_encoded(digits):
    assert manifests.decode(manifests.encode(digits.manifest)) == digits.manifest


def test_upper_is_everything_but_the_low_level(digits):
    levels = {p.name: p.level for p in digits.manifest.parameters}
    names = digits.manifest.names("upper")
    assert {levels[n] for n in names} == {"mid", "up", "head"}
    assert set(digits.manifest.names("all")) - set(names) == {n for n, v in levels.items() if v == "low"}


def test_parameters_of_the_digits_network_are_counted_by_hand(digits):
    def block(inner, outer, shortcut):
        return 2 * inner + inner * outer * 9 + 2 * outer + outer * outer * 9 + shortcut * inner * outer

    low = 16 * 9 + block(16, 16, 0)
    upper = block(16, 32, 1) + block(32, 64, 1) + 2 * 64
    head = 64 * 10 + 10
    assert digits.manifest.num_parameters("head") == head
    assert digits.manifest.num_parameters("upper") == upper + head
    assert digits.manifest.num_parameters() == low + upper + head


def test_unknown_tunable_set_is_refused(digits):
    with pytest.raises(BundleError, match="no tunable set 'most'; there are all, upper, head"):
        digits.manifest.specs("most")


def test_newer_format_is_refused_before_anything_else_is_read(digits):
    with pytest.raises(BundleError, match="format 2, this version reads 1"):
        manifests.decode(b'{"format": 2, "novelty": true}')


def test_unknown_fields_and_broken_json_are_refused(digits):
    data = msgspec.json.decode(manifests.encode(digits.manifest))
    with pytest.raises(BundleError, match="surprise"):
        manifests.decode(msgspec.json.encode(data | {"surprise": 1}))
    with pytest.raises(BundleError, match="not a manifest"):
        manifests.decode(b"{")


def test_prepare_scales_then_normalises_each_channel():
    spec = InputSpec((2, 1, 1), scale=0.5, mean=(1.0, 2.0), std=(2.0, 4.0))
    x = spec.prepare(np.array([[[[6]], [[20]]]], np.uint8))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, [[[[1.0]], [[2.0]]]])  # (3 - 1) / 2, (10 - 2) / 4


def test_single_channel_may_be_left_out_and_other_shapes_are_refused(digits):
    assert digits.manifest.input.prepare(np.zeros((5, 8, 8))).shape == (5, 1, 8, 8)
    with pytest.raises(TensorError, match=r"input is \(5, 64\), expected \(n, 1, 8, 8\)"):
        digits.manifest.input.prepare(np.zeros((5, 64)))


def test_prepare_leaves_the_raw_values_alone(digits):
    raw = np.full((1, 1, 8, 8), 16, np.float32)
    digits.manifest.input.prepare(raw)
    assert (raw == 16).all()


def test_activation_memory_grows_with_the_batch():
    graph = Graph("f", "", 0, (), 0, fixed_bytes=100, bytes_per_sample=7)
    assert graph.activation_bytes(3) == 121
    assert graph.memory_bytes(3) == 242
