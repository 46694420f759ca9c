"""`device-runtime web fetch`: the page's libraries, as npm brings them, or why it could not."""

import argparse
import os

import pytest

from device_runtime.aggregator.errors import MissingExtra
from device_runtime.aggregator.http import join
from device_runtime.cli.operator import web as web_command
from device_runtime.cli.operator.web import FetchError

NPM = (
    '#!/bin/sh\ntest -f package-lock.json || exit 1\nmkdir -p node_modules\necho "$@" > node_modules/asked\n'
)
NODE = (
    "#!/bin/sh\nmkdir -p vendor/ort\ncp node_modules/asked vendor/asked\n"
    f"echo fetched > vendor/{join.NEEDED}\ntest -f vendor.js\n"
)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """What stands for npm and node on the PATH; no other program is on it but the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(**texts):
        for name, text in texts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(web_command.shutil, "which", lambda name: (folder / name).exists() or None)
    return put


def fetched(into):
    return web_command.run(argparse.Namespace(action="fetch", into=into))


def test_what_the_lock_file_names_is_fetched_and_none_of_its_scripts_is_run(programs, tmp_path, capsys):
    programs(npm=NPM, node=NODE)
    target = tmp_path / "kept" / "vendor"
    assert fetched(target) == 0
    assert (target / join.NEEDED).read_text() == "fetched\n"
    requests = (target / "asked").read_text().split()
    assert requests[0] == "ci"
    assert "--ignore-scripts" in requests
    assert f"the page's libraries are in {target}" in capsys.readouterr().out
    (target / "older").write_text("")
    assert fetched(target) == 0
    assert not (target / "older").exists()


def test_without_node_it_is_said_what_to_install(programs, tmp_path):
    with pytest.raises(MissingExtra, match="npm is not installed: it comes with Node.js 20"):
        fetched(tmp_path / "vendor")
    programs(npm=NPM)
    with pytest.raises(MissingExtra, match="node is not installed"):
        fetched(tmp_path / "vendor")


def test_what_fails_says_so_and_leaves_what_was_there(programs, tmp_path):
    target = tmp_path / "vendor"
    programs(npm=NPM, node=NODE)
    fetched(target)
    programs(npm="#!/bin/sh\necho 'npm error network is away' >&2\nexit 1\n")
    with pytest.raises(FetchError, match="`npm ci` failed: npm error network is away"):
        fetched(target)
    programs(npm=NPM, node="#!/bin/sh\nexit 3\n")
    with pytest.raises(FetchError, match="`node vendor.js` failed: it says nothing"):
        fetched(target)
    assert (target / join.NEEDED).read_text() == "fetched\n"


def test_a_folder_that_cannot_be_made_is_said(programs, tmp_path):
    programs(npm=NPM, node=NODE)
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot keep the libraries in"):
        fetched(tmp_path / "file" / "vendor")
