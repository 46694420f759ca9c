"""Files of the join page: which are for browsers, which are not, and with what they are told to be read."""

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from device_runtime.aggregator.errors import MissingExtra
from device_runtime.aggregator.http import join
from device_runtime.aggregator.http.join import WEB, JoinFiles, policies

BROKER = "wss://fl.example.org:8884/mqtt"
SCRIPT = "export const there = true;\n" * 100
FILES = {
    "page/index.html": "<!doctype html><title>join</title>",
    "page/main.js": SCRIPT,
    "page/picture.svg": "<svg/>",
    "device/kinds/few_shot.js": SCRIPT,
    "worker.js": SCRIPT,
    "vendor.js": SCRIPT,
    "bundle.js": SCRIPT,
    "package.json": "{}",
    "tests/a.test.js": SCRIPT,
    "node/run.js": SCRIPT,
    "node_modules/x/index.js": SCRIPT,
    "page/.secret.js": SCRIPT,
    "page/notes.txt": "notes",
}
LIBRARIES = {"ort/ort-wasm-simd-threaded.wasm": "\0asm", "mqtt.js": SCRIPT, "mqtt.js.br": "pressed"}


def lay(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def web(tmp_path):
    return lay(tmp_path / "web", FILES), lay(tmp_path / "libraries", LIBRARIES)


@pytest.fixture
def shelf(web):
    return JoinFiles(*web, policies(BROKER))


def get(shelf, path, **headers):
    return shelf.answer(path, Headers({name.replace("_", "-"): value for name, value in headers.items()}))


def test_what_a_browser_needs_is_there_with_its_type(shelf):
    for path, kind in (
        ("page/", "text/html; charset=utf-8"),
        ("page/main.js", "text/javascript; charset=utf-8"),
        ("page/picture.svg", "image/svg+xml"),
        ("device/kinds/few_shot.js", "text/javascript; charset=utf-8"),
        ("worker.js", "text/javascript; charset=utf-8"),
        ("vendor/mqtt.js", "text/javascript; charset=utf-8"),
        ("vendor/ort/ort-wasm-simd-threaded.wasm", "application/wasm"),
    ):
        answer = get(shelf, path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind), path


@pytest.mark.parametrize(
    "path",
    [
        "vendor.js",
        "bundle.js",
        "package.json",
        "tests/a.test.js",
        "node/run.js",
        "node_modules/x/index.js",
        "page/.secret.js",
        "page/notes.txt",
        "page/nothing.js",
        "page",
        "vendor/mqtt.js.br",
        "vendor/",
        "../web/worker.js",
        "page/../worker.js",
        "page/../../outside.js",
        "vendor/../worker.js",
        "page//main.js",
        "/page/main.js",
        "page/main.js/",
        "page\\main.js",
        "page/main.js\0",
        "page/%2e%2e/worker.js",
        "./worker.js",
        "outside.js",
        "page/outside.js",
        "page/beyond/outside.js",
    ],
)
def test_nothing_else_is_wherever_the_path_leads(shelf, web, tmp_path, path):
    (tmp_path / "outside.js").write_text(SCRIPT)
    (web[0] / "page" / "outside.js").symlink_to(tmp_path / "outside.js")
    (web[0] / "page" / "beyond").symlink_to(tmp_path)
    assert shelf.find(path) is None
    assert get(shelf, path).status_code == 404


def test_only_what_computes_may_compile_and_nothing_may_run_what_stands_in_a_page(shelf):
    page, worker = (get(shelf, path).headers for path in ("page/", "worker.js"))
    library = get(shelf, "vendor/ort/ort-wasm-simd-threaded.wasm").headers
    assert "'wasm-unsafe-eval'" not in page["content-security-policy"]
    for computes in (worker, library):
        assert "script-src 'self' 'wasm-unsafe-eval';" in computes["content-security-policy"]
    for headers in (page, worker, library):
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "connect-src 'self' wss://fl.example.org:8884;" in policy
        assert "unsafe-inline" not in policy
        assert "'unsafe-eval'" not in policy
        assert "*" not in policy
        assert headers["cross-origin-embedder-policy"] == "require-corp"
        assert "microphone=(self)" in headers["permissions-policy"]


def test_a_file_is_sent_again_only_when_it_has_changed(shelf, web):
    first = get(shelf, "page/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = get(shelf, "page/main.js", if_none_match=f'"other", {first.headers["etag"]}')
    assert (again.status_code, again.body) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    file = web[0] / "page" / "main.js"
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1))
    assert get(shelf, "page/main.js", if_none_match=first.headers["etag"]).status_code == 200


def test_texts_are_sent_in_few_bytes_to_who_can_read_them(shelf, web):
    plain, pressed = (
        get(shelf, "page/main.js"),
        get(shelf, "page/main.js", accept_encoding="gzip, deflate, br"),
    )
    assert "content-encoding" not in plain.headers
    assert pressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(pressed.body).decode() == SCRIPT
    assert plain.headers["etag"] != pressed.headers["etag"]
    assert pressed.headers["vary"] == "accept-encoding"
    (web[0] / "page" / "main.js").write_text(SCRIPT + "// more\n")
    changed = get(shelf, "page/main.js", accept_encoding="gzip")
    assert gzip.decompress(changed.body).decode().endswith("// more\n")
    assert "content-encoding" not in get(shelf, "page/index.html", accept_encoding="gzip").headers  # short

    library = get(shelf, "vendor/mqtt.js", accept_encoding="gzip, br;q=0.9")
    assert (library.headers["content-encoding"], library.path.name) == ("br", "mqtt.js.br")
    assert library.headers["content-type"] == "text/javascript; charset=utf-8"


def test_without_the_libraries_it_is_said_what_brings_them(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "data_folder", lambda: tmp_path / "home")
    web = lay(tmp_path / "web", {"package-lock.json": "{}"})
    with pytest.raises(MissingExtra, match="run `device-runtime web fetch`"):
        join.library_folder(web)
    folder = lay(join.fetched_library_folder(web), LIBRARIES)
    assert folder.is_relative_to(tmp_path / "home")
    assert join.library_folder(web) == folder
    lay(web, {"package-lock.json": '{"of": "another release"}'})
    with pytest.raises(MissingExtra):
        join.library_folder(web)
    lay(web / "vendor", LIBRARIES)
    assert join.library_folder(web) == web / "vendor"


def test_no_page_of_ours_has_script_or_style_of_its_own():
    """Which the policy would not let run."""
    text = (WEB / "page" / "index.html").read_text()
    assert "style=" not in text
    assert "<style" not in text
    assert " on" not in {word[:3] for word in text.split("<") if "=" in word}
    assert all('src="' in part.partition(">")[0] for part in text.split("<script")[1:])


def test_the_page_s_files_are_listed_by_their_hashes_and_the_webgpu_build_apart(web, shelf):
    later = "ort/ort-wasm-simd-threaded.asyncify.wasm"
    lay(web[1], {later: "\0asm"})
    listing = json.loads(get(shelf, "files.json").body)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert listing["files"]["page/main.js"] == digest
    assert sorted(listing["files"]) == [
        "device/kinds/few_shot.js",
        "page/index.html",
        "page/main.js",
        "page/picture.svg",
        "vendor/mqtt.js",
        "vendor/ort/ort-wasm-simd-threaded.wasm",
        "worker.js",
    ]
    assert list(listing["later"]) == [f"vendor/{later}"]
    (web[0] / "page" / "main.js").write_text("export const other = true;\n")
    assert json.loads(get(shelf, "files.json").body)["files"]["page/main.js"] != digest


def test_the_bytes_of_a_first_visit_are_those_of_the_answers_to_a_browser(shelf):
    sent = []
    for path in shelf.listing()["files"]:
        answer = get(shelf, path, accept_encoding="gzip, deflate, br")
        sent.append(len(answer.body) if hasattr(answer, "body") else Path(answer.path).stat().st_size)
    assert shelf.first_visit_bytes == sum(sent) > 0


def test_scripts_are_sent_as_one_file_as_long_as_it_is_of_these_modules(shelf, web):
    pages, libraries = web
    modules = ("page/main.js", "device/kinds/few_shot.js")
    hashes = {
        path: base64.b64encode(hashlib.sha256((pages / path).read_bytes()).digest()) for path in modules
    }
    inputs = json.dumps({path: digest.decode() for path, digest in hashes.items()})
    bundle = {
        "bundled/page/main.js": "bundle",
        "bundled/page/main.js.br": "short",
        "bundled/inputs.json": inputs,
    }
    alone = set(shelf.listing()["files"])
    lay(libraries, bundle)
    assert Path(get(shelf, "page/main.js").path) == libraries / "bundled/page/main.js"
    assert Path(get(shelf, "page/main.js", accept_encoding="br").path).read_text() == "short"
    assert get(shelf, "device/kinds/few_shot.js").status_code == 200  # for a page that began with the modules
    assert set(shelf.listing()["files"]) == alone - {"device/kinds/few_shot.js"}
    assert (
        shelf.listing()["files"]["page/main.js"]
        == base64.b64encode(hashlib.sha256(b"bundle").digest()).decode()
    )
    (pages / "device/kinds/few_shot.js").write_text("changed")
    assert Path(get(shelf, "page/main.js").path) == pages / "page/main.js"
    assert set(shelf.listing()["files"]) == alone


def test_the_listing_is_sent_once_and_compressed(shelf):
    plain, zipped = (get(shelf, "files.json", accept_encoding=names) for names in ("", "gzip, br"))
    assert gzip.decompress(zipped.body) == plain.body
    again = get(shelf, "files.json", if_none_match=zipped.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")
