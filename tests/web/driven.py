"""Firefox, and WebKit as GTK has it, with a page open, driven by the commands of W3C WebDriver."""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from .driver_lines import DriverError, Line, Marionette, Remote

T = TypeVar("T")
PATIENCE_S = 240.0
WIDTH = 1000
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""What a reference to an element is called in WebDriver."""
PREFERENCES = {
    "marionette.port": 0,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.enabled": False,
    "toolkit.startup.max_resumed_crashes": -1,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}
BELIEVE = """
Cc["@mozilla.org/security/x509certdb;1"].getService(Ci.nsIX509CertDB).addCertFromBase64("%s", "C,,");
"""
OPENS_WEBKIT = Path(__file__).parent / "open_webkit.py"
SYSTEM_PYTHON = "/usr/bin/python3"
"""That has Debian's gir1.2-webkit2-4.1."""
AWAITED = """
const told = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);
(async () => { %s })().then((value) => told({ value }), (error) => told({ error: `${error}` }));
"""
OPENED = "document.querySelector('#more:not([hidden])[aria-expanded=false]')?.click();"
BOX = """
const paper = document.querySelector("canvas.paper");
paper.scrollIntoView({ block: "center" });
const { x, y, width, height } = paper.getBoundingClientRect();
return [x, y, width, height];
"""


class Tab:
    """A page in a browser that is driven. `wrong`: what the browser says of errors in it so far."""

    def __init__(self, line: Line, wrong: Callable[[], list[str]]) -> None:
        self._line, self.wrong = line, wrong

    def open(self, url: str) -> None:
        self._line.do("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The body of a function, which may await; what it returns, through JSON. Raises DriverError."""
        reply = self._line.do("execute/async", {"script": AWAITED % script, "args": list(arguments)})
        if "error" in reply:
            raise DriverError(f"{script}: {reply['error']}")
        return reply.get("value")

    def text(self) -> str:
        """The text that can be seen with the details open."""
        return str(self.run(f"{OPENED} return document.body.innerText"))

    def until(self, ready: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
        """What it gave in the end. Raises DriverError with what the page says."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if value := ready():
                return value
            time.sleep(0.1)
        raise DriverError(f"not within {timeout_s} s; the page says:\n{self.text()}\n{self.wrong()}")

    def reads(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """What the page says that is like this, once it does."""
        match = self.until(lambda: re.search(pattern, self.text()), timeout_s)
        assert match
        return match

    def click(self, selector: str) -> None:
        """Once it can be seen."""
        is_visible = "return Boolean(document.querySelector(given[0])?.checkVisibility())"
        self.until(lambda: self.run(is_visible, selector))
        self.run("document.querySelector(given[0]).click()", selector)

    def choose(self, selector: str, path: Path) -> None:
        """A file, for an input of files."""
        element = self._line.do("element", {"using": "css selector", "value": selector})
        self._line.do(f"element/{element[ELEMENT]}/value", {"text": str(path)})

    def draw(self, lines: list[list[tuple[float, float]]]) -> None:
        """By the mouse: lines of points, as shares of the drawing area."""
        left, top, width, height = self.run(BOX)
        moves: list[dict[str, Any]] = []
        for line in lines:
            for number, (x, y) in enumerate(line):
                place = {"x": round(left + x * width), "y": round(top + y * height), "origin": "viewport"}
                moves.append({"type": "pointerMove", "duration": 20, **place})
                if number == 0:
                    moves.append({"type": "pointerDown", "button": 0})
            moves.append({"type": "pointerUp", "button": 0})
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}
        self._line.do("actions", {"actions": [mouse]})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._line.do("screenshot", {})))


Browser = Callable[..., AbstractContextManager[Tab]]


@contextmanager
def firefox(folder: Path, width: int = WIDTH, authority: str = "") -> Iterator[Tab]:
    """With the profile in `folder`; `authority`: a certificate, PEM, of one that it believes. Leaving
    kills it, as -9 does.
    """
    folder.mkdir(exist_ok=True)
    words = [f"user_pref({name!r}, {json.dumps(value)});\n" for name, value in PREFERENCES.items()]
    (folder / "user.js").write_text("".join(words))
    port = folder / "MarionetteActivePort"
    port.unlink(missing_ok=True)
    program = shutil.which("firefox-esr") or shutil.which("firefox") or "firefox"
    flags = ("--headless", "--marionette", "--remote-allow-system-access", "--no-remote")
    command = [program, *flags, "--profile", str(folder)]
    with _running(command, folder / "log.txt", HOME=str(folder)) as process:
        line = Marionette(int(_waited(lambda: port.exists() and port.read_text(), process)))
        line.do("session", {})
        if authority:
            line.in_chrome(BELIEVE % "".join(authority.splitlines()[1:-1]))
        line.in_chrome(f"gBrowser.selectedBrowser.style = 'min-width: {width}px; max-width: {width}px'")
        yield Tab(line, line.errors)


@contextmanager
def webkit(folder: Path, width: int = WIDTH, authority: str = "") -> Iterator[Tab]:
    """What it stores is in `folder`; with an `authority` it believes any certificate: GTK's has no list of
    its own. Leaving kills it, as -9 does.
    """
    folder.mkdir(exist_ok=True)
    log, port = folder / "log.txt", _free_port()
    command = ["WebKitWebDriver", f"--port={port}", "--host=127.0.0.1"]
    how = {"binary": SYSTEM_PYTHON, "args": [str(OPENS_WEBKIT), str(folder), str(width)]}
    capabilities = {"acceptInsecureCerts": bool(authority), "webkitgtk:browserOptions": how}
    with ExitStack() as stack:
        screen = stack.enter_context(_screen())
        process = stack.enter_context(_running(command, log, DISPLAY=screen, HOME=str(folder)))
        _waited(lambda: _answers(port), process)
        line = Remote(port)
        line.do("session", {"capabilities": {"alwaysMatch": capabilities}})
        yield Tab(line, lambda: re.findall(r"^CONSOLE .*ERROR.*", log.read_text(), re.M))


def missing(which: str) -> str:
    """Why it cannot be driven here; empty: it can be."""
    if which == "firefox":
        return "" if shutil.which("firefox-esr") or shutil.which("firefox") else "no Firefox is installed"
    has_programs = all(map(shutil.which, ("WebKitWebDriver", "Xvfb", SYSTEM_PYTHON)))
    command = [SYSTEM_PYTHON, "-c", "import gi; gi.require_version('WebKit2', '4.1')"]
    if has_programs and subprocess.run(command, capture_output=True).returncode == 0:
        return ""
    return "needs webkit2gtk-driver, gir1.2-webkit2-4.1 and xvfb of Debian"


@contextmanager
def _running(command: list[str], log: Path, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """In the end it is killed, with all that it has started."""
    variables = {**os.environ, **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=variables)
    try:
        yield process
    finally:
        for part in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                part.kill()
        process.wait()


@contextmanager
def _screen() -> Iterator[str]:
    """A display that nobody sees: its name."""
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1280x1000x24", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    try:
        with os.fdopen(reading) as output:
            yield f":{output.readline().strip()}"
    finally:
        process.terminate()  # it removes its socket and its lock, as one that is killed does not
        process.wait()


def _waited(ready: Callable[[], T], process: "subprocess.Popen[bytes]") -> T:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        if value := ready():
            return value
        time.sleep(0.05)
    raise DriverError(f"{process.args!r} is not there after {PATIENCE_S} s (exit status {process.poll()})")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=120):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
