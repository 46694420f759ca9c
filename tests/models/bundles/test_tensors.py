import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.models.bundles.tensors import Flat, TensorSpec, all_finite, check, decode, encode
from device_runtime.models.errors import TensorError

SPECS = (TensorSpec("head.weight", (12, 64)), TensorSpec("head.bias", (12,)))


def fitting() -> dict[str, np.ndarray]:
    return {"head.weight": np.ones((12, 64), np.float32), "head.bias": np.zeros(12, np.float32)}


def test_tensors_come_back_as_they_were_encoded():
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "scalar": np.float32(3.5).reshape(()),
        "empty": np.zeros((0, 4), np.float16),
    }
    back = decode(encode(tensors))
    assert back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape
        np.testing.assert_array_equal(back[name], value)


def test_decoded_tensors_may_be_written_to():
    decode(encode({"a": np.zeros(3, np.float32)}))["a"][0] = 1


def test_order_of_names_does_not_change_the_bytes():
    a, b = np.zeros(2, np.float32), np.ones(3, np.float32)
    assert encode({"a": a, "b": b}) == encode({"b": b, "a": a})


def test_object_arrays_cannot_be_encoded():
    with pytest.raises(TensorError, match="cannot be encoded"):
        encode({"a": np.array([object()])})


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_tensor_errors(data):
    try:
        decode(data)
    except TensorError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "NOPE", 3])
def test_headers_numpy_cannot_express_are_tensor_errors(dtype):
    header = json.dumps({"a": {"dtype": dtype, "shape": [2], "data_offsets": [0, 4]}}).encode()
    with pytest.raises(TensorError, match="not safetensors"):
        decode(struct.pack("<Q", len(header)) + header + b"\0" * 4)


def test_truncated_file_is_refused():
    with pytest.raises(TensorError, match="not safetensors"):
        decode(encode(fitting())[:-1])


def test_fitting_tensors_pass():
    check(fitting(), SPECS)


def test_wrong_shape_is_refused_with_both_shapes():
    tensors = fitting() | {"head.weight": np.ones((10, 64), np.float32)}
    with pytest.raises(TensorError, match=r"^head.weight is \(10, 64\), expected \(12, 64\)$"):
        check(tensors, SPECS)


def test_wrong_dtype_is_refused_with_both_dtypes():
    tensors = fitting() | {"head.bias": np.zeros(12)}
    with pytest.raises(TensorError, match=r"^head.bias is float64, expected float32$"):
        check(tensors, SPECS)


def test_non_finite_values_are_counted():
    tensors = fitting()
    tensors["head.weight"][0, :3] = np.nan, np.inf, -np.inf
    with pytest.raises(TensorError, match=r"^head.weight has 3 non-finite values$"):
        check(tensors, SPECS)


def test_missing_and_extra_names_are_refused():
    tensors = fitting()
    tensors["stranger"] = tensors["head.bias"]
    with pytest.raises(TensorError, match="stranger not expected"):
        check(tensors, SPECS)
    with pytest.raises(TensorError, match=r"head.bias missing"):
        check({"head.weight": tensors["head.weight"]}, SPECS)


def test_flat_buffer_is_aligned_contiguous_and_shared_with_its_views():
    for _ in range(20):
        flat = Flat(SPECS)
        assert flat.vector.ctypes.data % 64 == 0
    assert flat.vector.shape == (12 * 64 + 12,)
    flat.views["head.bias"][...] = 7
    np.testing.assert_array_equal(flat.vector[-12:], 7)
    flat.vector[:] = 2
    assert (flat.views["head.weight"] == 2).all()


def test_flat_buffer_loads_its_own_names_and_gives_copies():
    flat = Flat(SPECS)
    flat.load({**fitting(), "other": np.zeros(1, np.float32)})
    copies = flat.tensors()
    flat.vector[:] = 0
    assert copies["head.weight"].sum() == 12 * 64


def test_flat_buffer_refuses_tensors_that_do_not_fit():
    with pytest.raises(TensorError, match=r"head.bias missing"):
        Flat(SPECS).load({"head.weight": np.ones((12, 64), np.float32)})
    with pytest.raises(TensorError, match="float32 only"):
        Flat([TensorSpec("n", (1,), "int64")])
    with pytest.raises(TensorError, match="twice"):
        Flat([TensorSpec("n", (1,)), TensorSpec("n", (2,))])


def test_a_model_is_finite_whatever_its_indices_are():
    assert all_finite({"w": np.ones(2, np.float32), "i": np.ones(2, np.int64)})
    assert not all_finite({"w": np.array([1, np.nan], np.float32)})


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_part_is_copied_alone(begin, size):
    specs = [
        TensorSpec("a", (2, 4)),
        TensorSpec("none", (0,)),
        TensorSpec("b", (3,)),
        TensorSpec("c", (5, 3)),
    ]
    given_tensors = {spec.name: np.full(spec.shape, i, np.float32) for i, spec in enumerate(specs, start=1)}
    flat = Flat(specs)
    part = flat.load_part(given_tensors, begin, size)
    whole = np.array([1] * 8 + [3] * 3 + [4] * 15, np.float32)
    copied = np.zeros(26, bool)
    copied[begin : begin + size] = True
    np.testing.assert_array_equal(flat.vector, np.where(copied, whole, 0))
    assert part.size == copied.sum() and (part.size == 0 or np.shares_memory(part, flat.vector))
