"""The commit of the code that runs, in a repository made for the test."""

import subprocess

import pytest

from benchmarks.papers import stamps


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.delenv(stamps.ENV, raising=False)

    def git(*words):
        who = ("-c", "user.name=n", "-c", "user.email=n@example.com")
        subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    def change(path):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.read_text() + "more\n" if file.exists() else "some\n")
        git("add", "-A")
        git("commit", "-q", "-m", path)

    git("init", "-q")
    change("device_runtime/models/one.py")
    return tmp_path, change


def test_a_commit_is_marked_if_the_package_was_changed_since(repository):
    folder, _ = repository
    clean = stamps.commit(folder)
    assert len(clean) >= 7
    (folder / "notes.txt").touch()
    assert stamps.commit(folder) == clean
    (folder / "device_runtime" / "two.py").touch()
    assert stamps.commit(folder) == f"{clean}+"


def test_commits_are_counted_that_changed_the_paths(repository):
    folder, change = repository
    first = stamps.commit(folder)
    change("docs/page.md")
    assert stamps.commits_since(first, ["device_runtime/models"], folder) == 0
    change("device_runtime/models/one.py")
    change("device_runtime/models/two.py")
    assert stamps.commits_since(f"{first}+", ["device_runtime/models"], folder) == 2
    assert stamps.commits_since("0123456", ["device_runtime/models"], folder) is None


def test_without_git_the_commit_is_unknown_or_given(tmp_path, monkeypatch):
    monkeypatch.delenv(stamps.ENV, raising=False)
    assert stamps.commit(tmp_path) == ""
    monkeypatch.setenv(stamps.ENV, "abc1234")
    assert stamps.commit(tmp_path) == "abc1234"


def test_the_parts_that_decide_results_exist():
    assert all((stamps.ROOT / part).is_dir() for part in (*stamps.DECIDES, stamps.CODE))
