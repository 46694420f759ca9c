"""A real service: `device-runtime serve` as a process, on a real Mosquitto, spoken to over real HTTP."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")

SERVE = "import sys; from device_runtime.cli import main; sys.exit(main(['serve', *sys.argv[1:]]))"
TOKEN = "a-token-of-more-than-sixteen-characters"
HOSTILE = "full needs <script>document.title='owned'</script> <img src=x onerror=alert(1)> \"quoted\" & more"
PATIENCE_MS = 240_000
"""Of a page."""


@pytest.fixture(scope="module")
def browser(chromiums):
    return chromiums(["--no-sandbox", "--disable-dev-shm-usage"])


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Running:
    """The process, its folder, and where it answers. `log` holds all that it has printed."""

    process: subprocess.Popen
    folder: object
    url: str
    log: object

    def get(self, path, token=TOKEN, method="GET", **headers):
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, headers=headers, method=method)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def live(self, task="digits"):
        return self.get(f"/api/v1/tasks/{task}").json["live"]

    def wait(self, true, timeout_s=300):
        """Until something is true of `live`; the test fails when it does not become so."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            if true(live := self.live()):
                return live
            time.sleep(0.1)
        raise AssertionError(f"not in {timeout_s} s: {self.live()}\n{self.log.read_text()}")


@pytest.fixture
def mosquitto():
    if not (shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")):
        pytest.skip("mosquitto is not installed")
    from device_runtime.broker.servers.mosquitto import Mosquitto

    running = Mosquitto()
    yield running
    running.stop()


@pytest.fixture
def serve(tmp_path, mosquitto):
    """Start `serve` from a server file; `task` and `http` are lines of TOML."""
    running = []

    def start(task="rounds = 3", http='token_file = "token"', *flags, log='format = "json"'):
        folder = tmp_path / f"server-{len(running)}"
        folder.mkdir()
        (folder / "digits.toml").write_text(f'bundle = "digits-wrn-10-1"\n{task}\n')
        (folder / "token").write_text(TOKEN + "\n")
        (folder / "server.toml").write_text(
            f'tasks = ["digits.toml"]\nrun_dir = "run"\n[broker]\nurl = "{mosquitto.url}"\n'
            f"[log]\n{log}\n[http]\nport = 0\n{http}\n"
        )
        log_file = folder / "log"
        with log_file.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVE, "--config", str(folder / "server.toml"), *flags],
                stdout=out,
                stderr=out,
            )
        running.append(process)
        end = time.monotonic() + 150
        while time.monotonic() < end and process.poll() is None:
            for word in log_file.read_text().replace('"', " ").split():
                if word.startswith(("http://", "https://")):
                    return Running(process, folder, word, log_file)
            time.sleep(0.05)
        raise AssertionError(f"no address: {log_file.read_text()}")

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def started(tmp_path):
    """Run `serve` with a server file to its end: (exit status, what it said)."""

    def run(text, *flags, **files):
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        (tmp_path / "server.toml").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", SERVE, "--config", str(tmp_path / "server.toml"), *flags],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        return done.returncode, done.stderr + done.stdout

    return run


@pytest.fixture
def fleet(scripted, mosquitto, update_of):
    """Devices on the same broker: three that send what they should, one that lies, one that sits out."""

    def join(*kinds):
        def script(kind):
            def contribute(offer):
                return kind, *update_of(kind, offer.round)

            return contribute

        devices = [scripted(f"pi-{kind}", mosquitto.url, script(kind)) for kind in kinds]
        liar = scripted(
            "liar", mosquitto.url, lambda offer: ("full", {"nonsense": update_of("zeroth-order")[0]["g"]}, 5)
        )
        idle = scripted("idle", mosquitto.url, lambda offer: None)
        return [*devices, liar, idle]

    return join
