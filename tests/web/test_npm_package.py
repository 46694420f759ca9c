"""The npm package of the browser's device: packed, installed without a network, and used as others use it."""

import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sklearn.datasets import load_digits

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire.messages import RELEASE

from .serving_pages import WEB

NODE, NPM = shutil.which("node"), shutil.which("npm")
TSC = WEB / "node_modules" / "typescript" / "bin" / "tsc"
pytestmark = pytest.mark.skipif(
    NODE is None or NPM is None or not (WEB / "vendor" / "ort").exists(),
    reason="needs Node, npm, and: npm ci && npm run vendor in web/",
)
PATIENCE_S = 300.0
TYPES = (WEB / "npm" / "index.d.ts").read_text()


def run(folder, *words, typed=""):
    ended = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An app's folder in which the package was installed without a network."""
    packed, app = tmp_path_factory.mktemp("packed"), tmp_path_factory.mktemp("app")
    output = run(packed, NODE, WEB / "npm" / "pack.js", packed)
    [tarball] = packed.glob("*.tgz")
    assert str(tarball) in output
    (app / "package.json").write_text('{"name": "app", "private": true, "type": "module"}')
    run(app, NPM, "install", "--offline", "--no-audit", "--no-fund", "--cache", packed / "cache", tarball)
    shutil.rmtree(app / "node_modules")
    run(app, NPM, "ci", "--offline", "--no-audit", "--no-fund", "--cache", packed / "other-cache")
    return app


def test_installed_in_an_empty_folder_it_joins_a_broker_and_its_contribution_counts(
    installed, broker, launched, lines, tmp_path
):
    digits = load_digits()
    samples = [
        [str(label), image.ravel().tolist()]
        for image, label in zip(digits.images[:80], digits.target[:80], strict=True)
    ]
    program = installed / "train.mjs"
    shutil.copyfile(installed / "node_modules" / "device-runtime-web" / "npm/example/train.mjs", program)
    task = ("--bundle", "digits-wrn-10-1", "--kinds", "few-shot", "--rounds", "1", "--deadline", "200")
    serving = (*task, "--broker", broker.url, "--run-dir", tmp_path / "run", "--min-devices", "1")
    with launched(tmp_path / "serve.log", "serve", *serving) as service:
        words = (NODE, program, broker.url, tmp_path / "state")
        output = run(installed, *words, typed=json.dumps(samples))
        assert service.wait(PATIENCE_S) == 0
    assert output == "round 1: few-shot accepted\n"
    [row] = lines(tmp_path / "run" / "contributions.jsonl")
    assert (row["device"], row["round"], row["kind"]) == ("node-1", 1, "few-shot")
    assert 40 <= row["num_examples"] <= 80  # about a fifth is held out


class Static(SimpleHTTPRequestHandler):
    """The files of a folder, as any web server serves them."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_):
        """Tests have no log of requests."""


@pytest.mark.slow
@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_the_example_page_of_ten_lines_contributes_from_a_browser(
    installed, chromium, launched, eventually, lines, tmp_path
):
    port = web = find_port(BrokerOptions())
    while web == port:
        web = find_port(BrokerOptions())
    listeners = f"listener {port} 127.0.0.1\nlistener {web} 127.0.0.1\nprotocol websockets\n"
    (tmp_path / "mosquitto.conf").write_text(f"allow_anonymous true\n{listeners}")
    package = installed / "node_modules" / "device-runtime-web"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Static, directory=str(package)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    task = ("--bundle", "digits-wrn-10-1", "--kinds", "class-means", "--rounds", "1", "--deadline", "200")
    serving = (*task, "--run-dir", tmp_path / "run", "--min-devices", "1")
    broker = (str(mosquitto.find()), "-c", str(tmp_path / "mosquitto.conf"))
    log, page = tmp_path / "serve.log", chromium.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    with (
        launched(tmp_path / "mosquitto.log", other=broker),
        launched(log, "serve", *serving, "--broker", f"mqtt://127.0.0.1:{port}"),
    ):
        address = f"http://127.0.0.1:{server.server_address[1]}/npm/example/"
        page.goto(f"{address}#ws://127.0.0.1:{web}")
        page.wait_for_function("document.querySelector('output').value.startsWith('10 labels')")
        for _ in range(20):
            page.click("button")
        page.wait_for_function("document.querySelector('output').value == 'round 1: class-means accepted'")
        rows = eventually(lambda: lines(tmp_path / "run" / "contributions.jsonl"))
    page.close()
    server.shutdown()
    assert [row["device"] for row in rows] == ["browser-1"]


def test_types_name_every_export_and_every_member(installed):
    printing = "import('device-runtime-web').then((m) => console.log(%s))"
    exported = re.findall(r"'(\w+)'", run(installed, NODE, "-e", printing % "Object.keys(m)"))
    assert sorted(exported) == sorted(re.findall(r"^export (?:class|function) (\w+)", TYPES, re.MULTILINE))
    names = printing % "Object.getOwnPropertyNames(m.TaskDevice.prototype)"
    members = set(re.findall(r"'(\w+)'", run(installed, NODE, "-e", names))) - {"constructor"}
    typed = re.search(r"export class TaskDevice \{(.*?)^\}", TYPES, re.MULTILINE | re.DOTALL)[1]
    assert members == set(re.findall(r"^  (\w+)\(", typed, re.MULTILINE)) - {"constructor"}
    events = (WEB / "device" / "event_reporter.js").read_text()
    declared = set(re.findall(r'\{type: "(\w+)"', events))
    assert declared == set(re.findall(r'\{ type: "(\w+)"', TYPES))


@pytest.mark.skipif(not TSC.exists(), reason="needs npm ci in web/")
def test_a_program_in_typescript_is_checked_by_its_types(installed):
    right = """import { join, type Guess } from "device-runtime-web";
const samples = [["7", [1, 2]], ["8", new Float32Array(2)]] as const;
const device = await join({ token: "fl1.x", samples, on: (e) => {
  if (e.type === "receipt") console.log(e.status); } });
const { shape } = await device.task();
await device.add("7", new Float32Array(shape.reduce((a, b) => a * b)));
const guesses: Guess[] | null = await device.predict([1, 2]);
console.log(guesses?.[0].share, (await device.counts())[0].held);
await device.leave();
"""
    options = ("--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom")
    (installed / "right.mts").write_text(right)
    run(installed, NODE, TSC, *options, "right.mts")
    (installed / "wrong.mts").write_text(right.replace("token:", "tokn:").replace("e.status", "e.state"))
    ended = subprocess.run(
        [str(NODE), str(TSC), *options, "wrong.mts"], cwd=installed, capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "'tokn' does not exist" in ended.stdout and "'state' does not exist" in ended.stdout


def test_the_example_page_has_ten_lines_and_no_file_names_a_registry(installed):
    package = installed / "node_modules" / "device-runtime-web"
    page = (package / "npm" / "example" / "index.html").read_text()
    script = page.split('<script type="module">')[1].split("</script>")[0]
    assert len(script.strip().splitlines()) <= 10
    assert json.loads((package / "package.json").read_text())["version"] == RELEASE
    for name in ("package.json", "README.md", "npm/index.d.ts"):
        assert "registry" not in (package / name).read_text()
    lock = (WEB / "package-lock.json").read_text()
    assert "://" not in re.sub(r'"url": "[^"]*"', "", lock)
