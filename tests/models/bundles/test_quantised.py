import numpy as np
import pytest

from device_runtime.models.bundles.manifest import Derived, Graph
from device_runtime.models.bundles.weights import derive, has_exact_int8, holds_float16, initialisers
from device_runtime.models.errors import TensorError


def graph_of(*derived: Derived, frozen: tuple[str, ...] = ()) -> Graph:
    return Graph("forward.int8.onnx", "", 0, (), 0, 0, 0, frozen=frozen, derived=derived)


def int8(parameter: str, *, transposed: bool = False, columns: bool = False) -> list[Derived]:
    kinds = ("int8", "int8.scale", "int8.zero_point")
    return [Derived(kind, parameter, kind, transposed, columns) for kind in kinds]


def test_int8_is_symmetric_around_0_with_one_scale_for_each_column():
    # columns reach 127 and 2; scales are 127/127 and 2/127; 0.5 / 1 rounds to the even 0
    weights = {"w": np.array([[-127, 1], [0.5, -2], [3, 0]], np.float32)}
    parts = derive(int8("w", columns=True), weights)
    np.testing.assert_array_equal(
        parts["int8"], [[-127, 64], [0, -127], [3, 0]]
    )  # 63.5 rounds to the even 64
    np.testing.assert_array_equal(parts["int8.scale"], np.array([1, 2 / 127], np.float32))
    np.testing.assert_array_equal(parts["int8.zero_point"], [0, 0])
    assert parts["int8"].dtype == parts["int8.zero_point"].dtype == np.int8


def test_int8_of_a_whole_tensor_has_one_scale():
    parts = derive(int8("w"), {"w": np.array([[-254, 2], [4, 127]], np.float32)})  # 254 / 127
    assert parts["int8.scale"] == 2 and parts["int8.scale"].shape == ()
    np.testing.assert_array_equal(parts["int8"], [[-127, 1], [2, 64]])  # 63.5 rounds to the even 64


def test_transposed_is_of_the_matrix_that_has_a_row_for_each_output():
    kernel = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    kernel_t = derive([Derived("w", "k", "float32", True)], {"k": kernel})["w"]
    np.testing.assert_array_equal(kernel_t, kernel.reshape(3, 4).T)
    assert kernel_t.flags.c_contiguous


def test_uint8_goes_from_the_least_to_the_largest_value():
    kinds = ("uint8", "uint8.scale", "uint8.zero_point")
    weights = {"w": np.array([[-1, 0], [1, 4]], np.float32)}  # 5 in 255 steps; 0 is 1 / (5 / 255) = 51
    parts = derive([Derived(kind, "w", kind) for kind in kinds], weights)
    np.testing.assert_array_equal(parts["uint8"], [[0, 51], [102, 255]])
    assert parts["uint8.scale"] == np.float32(5 / 255) and parts["uint8.zero_point"] == 51
    assert parts["uint8"].dtype == parts["uint8.zero_point"].dtype == np.uint8


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_what_is_quantised_is_within_half_a_step(kind, sign):
    values = np.random.default_rng(0).standard_normal((40, 30), np.float32) * np.float32(0.1) + sign
    kinds = (kind, f"{kind}.scale", f"{kind}.zero_point")
    parts = derive([Derived(each, "w", each) for each in kinds], {"w": values})
    restored = parts[kinds[1]] * (parts[kind].astype(np.float32) - parts[kinds[2]])
    assert np.abs(restored - values).max() <= 0.501 * parts[kinds[1]]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_weights_that_are_all_0_stay_0_with_scale_1(kind):
    kinds = (kind, f"{kind}.scale", f"{kind}.zero_point")
    parts = derive([Derived(each, "w", each) for each in kinds], {"w": np.zeros((2, 2), np.float32)})
    assert not parts[kind].any() and parts[kinds[1]] == 1 and parts[kinds[2]] == 0


def test_float16_is_rounded_and_must_not_overflow():
    half = [Derived("w.float16", "w", "float16")]
    float16 = derive(half, {"w": np.array([[1 + 2**-12, 65504]], np.float32)})["w.float16"]
    assert float16.dtype == np.float16
    np.testing.assert_array_equal(float16, [[1, 65504]])
    with pytest.raises(TensorError, match=r"^w reaches 7e\+04, float16 holds at most 65504"):
        derive(half, {"w": np.array([[-70000]], np.float32)})


def test_initialisers_are_the_frozen_parameters_themselves_and_the_derived_ones():
    weights = {"w": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32), "unused": np.ones(1)}
    graph = graph_of(*int8("w"), frozen=("b",))
    tensors = initialisers(graph, weights)
    assert set(tensors) == {"b", "int8", "int8.scale", "int8.zero_point"}
    assert tensors["b"] is weights["b"]
    with pytest.raises(TensorError, match=r"^w is missing, which the graph forward.int8.onnx needs"):
        initialisers(graph, {"b": weights["b"]})


def test_only_graphs_with_float16_must_not_be_folded():
    assert holds_float16(graph_of(Derived("w.float16", "w", "float16")))
    assert not holds_float16(graph_of(*int8("w")))


def test_int8_is_known_to_be_exact_where_the_processor_has_vnni(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    assert not has_exact_int8(cpuinfo)
    cpuinfo.write_text("flags : fpu avx2 avx512f")
    assert not has_exact_int8(cpuinfo)
    cpuinfo.write_text("flags : fpu avx2 avx512_vnni")
    assert has_exact_int8(cpuinfo)
