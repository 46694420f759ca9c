from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.models.bundles.graph_check import (
    DELIMITED,
    VARINT,
    delimited_field,
    fields,
    number_field,
    varint,
)
from device_runtime.models.errors import BundleError

PART = st.one_of(
    st.tuples(st.integers(1, 500), st.binary(max_size=300)),
    st.tuples(st.integers(1, 500), st.integers(0, 2**63)),
)


def test_numbers_are_encoded_as_the_guide_has_them():
    assert varint(150) == b"\x96\x01"
    assert number_field(1, 150) == b"\x08\x96\x01"
    assert delimited_field(2, b"testing") == b"\x12\x07testing"


@given(st.lists(PART))
def test_what_is_written_is_read_again(parts):
    message = b"".join(
        delimited_field(n, v) if isinstance(v, bytes) else number_field(n, v) for n, v in parts
    )
    read = list(fields(message))
    assert b"".join(field.encoded for field in read) == message
    assert [(f.number, f.kind) for f in read] == [
        (n, DELIMITED if isinstance(v, bytes) else VARINT) for n, v in parts
    ]
    assert [f.content for f in read] == [v if isinstance(v, bytes) else b"" for _, v in parts]


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_refused(message):
    with suppress(BundleError):
        assert b"".join(field.encoded for field in fields(message)) == message


def test_a_field_s_number_has_29_bits():
    largest = varint((1 << 29) - 1 << 3) + b"\x01"
    assert [field.number for field in fields(largest)] == [(1 << 29) - 1]
    with pytest.raises(BundleError, match="a field with the number 536870912"):
        list(fields(varint(1 << 32) + b"\x01"))


@pytest.mark.parametrize("message", [b"\x08", b"\x12\x07test", b"\x0b", b"\xff" * 11, b"\x0d\x00"])
def test_a_message_that_breaks_off_is_refused(message):
    with pytest.raises(BundleError, match="protocol buffer"):
        list(fields(message))
