"""A file is replaced as a whole, with its own permissions, and nothing is left beside it."""

import os
import stat

import pytest

from device_runtime.broker.wire.durable_files import replace_file


def test_a_secret_never_lies_in_a_file_that_others_may_read(tmp_path):
    beside = tmp_path / ".key.new"
    beside.write_text("half of an earlier one")
    beside.chmod(0o644)
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_what_could_not_be_written_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    replace_file(tmp_path / "kept", b"old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "kept", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"
