import io
import tracemalloc
import zipfile

import pytest

from device_runtime.models.bundles.archive import MAX_FILES, pack_files, read_zip, unpack_files
from device_runtime.models.errors import BundleError


def zipped(*entries: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return out.getvalue()


def test_order_and_time_do_not_change_the_zip():
    assert pack_files({"a": b"1", "b": b"2"}) == pack_files({"b": b"2", "a": b"1"})
    assert b"1980" not in pack_files({"a": b""})
    assert read_zip(pack_files({"a": b"1", "b": b"2"})) == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/b", ".hidden", "c:evil", "a\\b"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    data = zipped((name, b"x"))
    with pytest.raises(BundleError, match="plain names"):
        unpack_files(data, tmp_path / "in", lambda folder: folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(BundleError, match="plain names"):
        read_zip(zipped(("a", b"1"), ("a", b"2")))


def test_bomb_is_refused_without_being_unpacked():
    with pytest.raises(BundleError, match="more than 1000 bytes"):
        read_zip(zipped(("a", b"\0" * 600), ("b", b"\0" * 10_000_000)), limit=1000)


def test_what_is_fetched_cannot_unpack_to_more_than_it_is(tmp_path):
    with pytest.raises(BundleError, match="has 'a' compressed, expected as it is"):
        unpack_files(zipped(("a", b"\0" * 10_000_000)), tmp_path / "in", lambda folder: folder)
    assert list(tmp_path.iterdir()) == []


def test_bomb_takes_no_memory_to_refuse():
    bomb = zipped(("a", b"\0" * 50_000_000))
    tracemalloc.start()
    with pytest.raises(BundleError, match="more than 1000 bytes"):
        read_zip(bomb, limit=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_too_many_files_are_refused():
    with pytest.raises(BundleError, match="at most"):
        read_zip(zipped(*((f"f{i}", b"") for i in range(MAX_FILES + 1))))


def test_damaged_zips_are_one_line_errors():
    data = bytearray(zipped(("a", b"some content that is long enough")))
    for position in range(len(data)):
        damaged = bytes(data[:position]) + bytes([data[position] ^ 0xFF]) + bytes(data[position + 1 :])
        try:
            read_zip(damaged)
        except BundleError as error:
            assert "\n" not in str(error)


def test_nothing_is_left_behind_when_verification_fails(tmp_path):
    def refuse(folder):
        raise BundleError("no")

    with pytest.raises(BundleError, match=r"^no$"):
        unpack_files(pack_files({"a": b""}), tmp_path / "in", refuse)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_content_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(BundleError, match="not empty"):
        unpack_files(pack_files({"a": b""}), tmp_path, lambda folder: folder)
