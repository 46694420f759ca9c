import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.errors import TensorError
from device_runtime.strategies.codecs.chain import codec_named
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.interface.device_half import NO_TENSORS

WORDS = (
    "", "delta", "half", "int8", "deflate", "delta+half", "delta+int8", "delta+deflate", "half+deflate",
    "int8+deflate", "delta+half+deflate", "delta+int8+deflate",
)  # fmt: skip
LOSSY = [word for word in WORDS if "half" in word or "int8" in word]
EXACT = [word for word in WORDS if word not in LOSSY]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


def specs_of(update):
    return [TensorSpec(name, value.shape, value.dtype.name) for name, value in update.items()]


def sent(word, update, base, left=NO_TENSORS):
    """(decoded, what is left out), over the wire's bytes."""
    codec = codec_named(word)
    encoded = codec.encode(update, base, left)
    assert len(encoded.body) <= codec.most_bytes(specs_of(update))
    decoded = codec.decode(encoded.body, base, specs_of(update))
    tensors.check(decoded, specs_of(update))
    assert (encoded.left is None) == (word in EXACT)
    return decoded, encoded.left or {}


def trained(seed=0, step=0.01):
    rng = np.random.default_rng(seed)
    base = {
        "conv.weight": rng.standard_normal((40, 3, 3, 3), np.float32),
        "head.bias": rng.standard_normal(33, np.float32),
        "norm.running_var": np.abs(rng.standard_normal(16, np.float32)),
        "norm.num_batches": np.array(7),
    }
    update = {
        name: (value + step * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, value in base.items()
    }
    update["norm.num_batches"] = np.array(2**40 + 1)
    update["norm.running_var"] = np.abs(update["norm.running_var"])
    return base, update


@pytest.mark.parametrize("word", WORDS)
def test_each_word_names_itself(word):
    assert codec_named(word).word == word


@pytest.mark.parametrize("word", ["zstd", "delta+", "+", "int8+half", "deflate+delta", "delta+delta", "Half"])
def test_a_word_that_names_no_codec_says_what_was_expected(word):
    with pytest.raises(CodecError, match=r"some of delta, then half or int8, then deflate, as in"):
        codec_named(word)


@pytest.mark.parametrize("word", EXACT)
def test_what_has_no_short_numbers_arrives_bit_for_bit(word):
    base, update = trained()
    decoded, left = sent(word, update, base)
    assert not left
    for name, value in update.items():
        assert decoded[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("word", LOSSY)
def test_counters_statistics_and_what_the_base_does_not_have_stay_exact(word):
    base, update = trained()
    update["maps"] = np.random.default_rng(1).standard_normal((2, 5), np.float32)
    decoded, left = sent(word, update, base)
    for name in ("norm.running_var", "norm.num_batches", "maps"):
        assert decoded[name].dtype == update[name].dtype
        assert np.array_equal(decoded[name], update[name])
    assert left.keys() == {"conv.weight", "head.bias"}


@pytest.mark.parametrize(("word", "share"), [("half", 2**-11), ("int8", 0.5 / 127)])
@pytest.mark.parametrize("delta", [False, True])
def test_rounding_is_as_small_as_the_numbers_promise(word, share, delta):
    """Of the number itself with half, of the largest in its block with int8; the sum rounds once more."""
    base, update = trained()
    decoded, _ = sent(f"delta+{word}" if delta else word, update, base)
    for name in ("conv.weight", "head.bias"):
        written = update[name] - base[name] if delta else update[name]
        bound = share * np.abs(written).max() + np.abs(update[name]) * 2**-23
        assert (np.abs(decoded[name] - update[name]) <= bound).all()


@pytest.mark.parametrize("word", LOSSY)
def test_what_is_left_out_and_what_arrives_make_up_the_whole(word):
    base, update = trained()
    decoded, left = sent(word, update, base)
    for name, rest in left.items():
        np.testing.assert_allclose(decoded[name].astype(np.float64) + rest, update[name], rtol=0, atol=1e-7)
    assert any(np.abs(rest).max() > 0 for rest in left.values())


def test_what_is_left_out_of_one_update_comes_with_the_next():
    """Less than half of 1/127 of the largest number is lost; over many rounds none of it is."""
    base = {"w": np.zeros(32, np.float32)}
    update = {"w": np.array([1.0, 0.003] * 16, np.float32)}
    alone, _ = sent("delta+int8", update, base)
    assert alone["w"][1] == 0
    left, arrived = NO_TENSORS, np.zeros(32)
    for _ in range(100):
        decoded, left = sent("delta+int8", update, base, left)
        arrived += decoded["w"]
    np.testing.assert_allclose(arrived, [100, 0.3] * 16, rtol=0, atol=1 / 127)


def test_a_change_too_small_for_half_comes_when_it_has_grown():
    base = {"w": np.zeros(1, np.float32)}
    left, arrived = NO_TENSORS, 0.0
    for _ in range(8):
        decoded, left = sent("half", {"w": np.array([2.0**-27], np.float32)}, base, left)
        arrived += float(decoded["w"][0])
    assert arrived == 2.0**-24


@pytest.mark.parametrize("word", ["half", "delta+half", "half+deflate"])
def test_a_tensor_too_large_for_half_arrives_exactly_and_others_short(word):
    base = {"big": np.zeros(3, np.float32), "small": np.zeros(3, np.float32)}
    update = {"big": np.array([1e5, 1 / 3, 0], np.float32), "small": np.array([1 / 3] * 3, np.float32)}
    decoded, left = sent(word, update, base)
    assert np.array_equal(decoded["big"], update["big"])
    assert not np.array_equal(decoded["small"], update["small"])
    assert left.keys() == {"small"}


@pytest.mark.parametrize("word", ["delta+int8", "delta+half"])
def test_a_difference_that_overflows_is_sent_as_it_is(word):
    base = {"w": np.array([-3e38, 1] * 16, np.float32)}
    update = {"w": np.array([3e38, 2] * 16, np.float32)}
    decoded, left = sent(word, update, base)
    assert np.array_equal(decoded["w"], update["w"])
    assert not left


def test_what_was_left_out_goes_with_a_tensor_that_overflows():
    """Two in three updates fit into half: all of them together arrive whole, but for the last rounding."""
    base = {"w": np.zeros(2, np.float32)}
    left, arrived, exact = NO_TENSORS, np.zeros(2), np.zeros(2)
    for first in (1.0001, 1e6, 1.0001):
        update = {"w": np.array([first, 1 / 3], np.float32)}
        decoded, left = sent("half", update, base, left)
        arrived, exact = arrived + decoded["w"], exact + update["w"]
        np.testing.assert_allclose(arrived + left["w"], exact, rtol=1e-7)
    assert arrived[1] == pytest.approx(1, abs=2e-4)


def test_what_was_left_out_stays_left_out_where_it_cannot_be_added():
    base, left = {"w": np.zeros(2, np.float32)}, {"w": np.full(2, 3e38, np.float32)}
    update = {"w": np.full(2, 3e38, np.float32)}
    decoded, after = sent("half", update, base, left)
    assert np.array_equal(decoded["w"], update["w"])
    assert np.array_equal(after["w"], left["w"])


def test_what_was_left_out_of_a_tensor_waits_for_the_next_update_that_has_it():
    base = {"w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    left = {"w": np.full(2, 0.25, np.float32)}
    _, after = sent("half", {"b": np.ones(2, np.float32)}, base, left)
    assert np.array_equal(after["w"], left["w"])


def test_what_was_left_out_of_a_tensor_of_another_shape_is_forgotten():
    base = {"w": np.zeros(64, np.float32)}
    update = {"w": np.ones(64, np.float32)}
    decoded, _ = sent("delta+int8", update, base, {"w": np.full(9, 100, np.float32)})
    assert np.array_equal(decoded["w"], update["w"])


def test_a_tensor_too_small_to_gain_by_a_scale_is_sent_as_it_is():
    base, update = {"w": np.zeros(31, np.float32)}, {"w": np.full(31, 1 / 3, np.float32)}
    decoded, left = sent("int8", update, base)
    assert np.array_equal(decoded["w"], update["w"])
    assert not left


@settings(deadline=None)
@given(st.data(), st.sampled_from(WORDS), SHAPES)
def test_any_finite_update_arrives_finite_as_the_device_knows_it(data, word, shape):
    draw = arrays.arrays(np.float32, shape, elements=NUMBERS)
    base, update, left = {"w": data.draw(draw)}, {"w": data.draw(draw)}, {"w": data.draw(draw)}
    decoded, _ = sent(word, update, base, left)
    read = codec_named(word).rounded(update, base, left).read
    assert decoded["w"].tobytes() == read["w"].tobytes()
    assert np.isfinite(decoded["w"]).all()


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from(WORDS))
def test_any_bytes_are_tensors_or_refused(data, word):
    """Bytes cut out of an update, changed in places, or at random."""
    base, update = trained()
    body = bytearray(codec_named(word).encode(update, base, NO_TENSORS).body)
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    content = data.draw(st.sampled_from((bytes(body), bytes(body[:cut]), bytes(body[cut:]))))
    try:
        decoded = codec_named(word).decode(content, base, specs_of(update))
    except TensorError as error:
        assert str(error)
    else:
        assert all(isinstance(value, np.ndarray) for value in decoded.values())


@pytest.mark.parametrize(
    ("word", "wire", "text"),
    [
        ("delta", {"w": np.zeros((4, 3), np.uint8)}, r"w is uint8 \(4, 3\), expected uint8 \(4, 300\)"),
        ("delta", {"w": np.zeros((2, 300), np.uint8)}, r"w is uint8 \(2, 300\), expected uint8 \(4, 300\)"),
        ("half", {"w": np.zeros(300, np.float16)}, r"w is float16 \(300,\), expected uint8 \(2, 300\)"),
        ("int8", {"w": np.zeros(300, np.int8)}, r"w has scales that are missing, expected float32 \(2,\)"),
        (
            "int8",
            {"w": np.zeros(300, np.int8), "w/scales": np.zeros(1, np.float32)},
            r"w has scales that are float32 \(1,\), expected float32 \(2,\)",
        ),
        ("int8", {"w": np.zeros((0, 300), np.int8)}, r"w is int8 \(0, 300\), expected int8 \(300,\)"),
    ],
)
def test_tensors_that_no_codec_makes_are_refused_by_name(word, wire, text):
    base = {"w": np.zeros(300, np.float32)}
    with pytest.raises(TensorError, match=text):
        codec_named(word).decode(tensors.encode(wire), base, [TensorSpec("w", (300,))])


def test_scales_that_are_not_finite_end_as_values_that_are_not_believed():
    base, spec = {"w": np.zeros(2, np.float32)}, TensorSpec("w", (2,))
    wire = {"w": np.array([1, 0], np.int8), "w/scales": np.array([np.inf], np.float32)}
    decoded = codec_named("int8").decode(tensors.encode(wire), base, [spec])
    with pytest.raises(TensorError, match="w has 2 non-finite values"):
        tensors.check(decoded, [spec])


def test_scales_beside_a_tensor_that_came_as_it_is_are_left_for_the_check():
    base, spec = {"w": np.zeros(2, np.float32)}, TensorSpec("w", (2,))
    wire = {"w": np.zeros(2, np.float32), "w/scales": np.zeros(1, np.float32)}
    decoded = codec_named("int8").decode(tensors.encode(wire), base, [spec])
    with pytest.raises(TensorError, match="w/scales not expected"):
        tensors.check(decoded, [spec])


@pytest.mark.parametrize(("word", "most"), [("half", 0.51), ("int8", 0.27), ("delta+int8", 0.27)])
def test_short_numbers_take_as_many_bytes_as_is_predicted(word, most):
    base = {f"layer{n}.weight": np.zeros((64, 64), np.float32) for n in range(8)}
    update = {name: np.ones_like(value) for name, value in base.items()}
    size = len(codec_named(word).encode(update, base, NO_TENSORS).body)
    predicted = codec_named(word).payload_bytes(8 * 64 * 64, 8)
    assert predicted == pytest.approx(size, rel=0.02)
    assert size < most * 4 * 8 * 64 * 64


def test_values_beside_the_parameters_are_predicted_whole():
    whole, exact = (
        codec_named("int8").payload_bytes(1000, 2),
        codec_named("int8").payload_bytes(1000, 2, exact=50),
    )
    assert exact - whole == 200


def test_the_same_update_gives_the_bytes_that_it_always_gave():
    """Worked by hand: the scale is 1, and 0.5 and 1.5 go to the even numbers 0 and 2."""
    base = {"w": np.array([1, 1, 1, 1], np.float32)}
    update = {"w": np.array([128, 1.5, 2.5, -126], np.float32)}
    eight = {"w": np.tile(update["w"], 8)}, {"w": np.tile(base["w"], 8)}
    wire = tensors.decode(codec_named("delta+int8").encode(*eight, NO_TENSORS).body)
    assert wire["w"].tolist() == [127, 0, 2, -127] * 8
    assert wire["w/scales"].tolist() == [1.0]
    wire = tensors.decode(codec_named("delta+half").encode(update, base, NO_TENSORS).body)
    halves = np.array([127, 0.5, 1.5, -127], "<f2")
    assert wire["w"].tobytes() == halves.view(np.uint8).reshape(4, 2).T.tobytes()
    wire = tensors.decode(codec_named("delta").encode(update, base, NO_TENSORS).body)
    bits = np.array([128, 1.5, 2.5, -126], "<f4").view("<u4").astype(np.int64) - int("3f800000", 16)
    signed = (bits + 2**31) % 2**32 - 2**31
    folded = [2 * n if n >= 0 else -2 * n - 1 for n in signed.tolist()]
    assert wire["w"].tobytes() == np.array(folded, "<u4").view(np.uint8).reshape(4, 4).T.tobytes()
