"""The ways to a browser that is driven: Marionette, which Firefox speaks, and WebDriver over HTTP."""

import json
import socket
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any, Protocol

PATIENCE_S = 240.0
WORDS = {
    "session": "WebDriver:NewSession",
    "url": "WebDriver:Navigate",
    "execute/async": "WebDriver:ExecuteAsyncScript",
    "element": "WebDriver:FindElement",
    "actions": "WebDriver:PerformActions",
    "screenshot": "WebDriver:TakeScreenshot",
}
"""What WebDriver calls a command, and what Marionette calls it."""
ERRORS = """
return Services.console.getMessageArray()
  .filter((one) => one instanceof Ci.nsIScriptError && !(one.flags & 1))
  .filter((one) => /^(https?|wss?|blob):/.test(one.sourceName))
  .map((one) => `${one.errorMessage} (${one.sourceName}:${one.lineNumber})`);
"""


class DriverError(Exception):
    """The browser did not do what it was told to, or is gone."""


class Line(Protocol):
    """`what`: a command by its path in WebDriver; its value comes back. Raises DriverError."""

    def do(self, what: str, body: dict[str, Any]) -> Any: ...


class Marionette:
    """Commands as JSON, with their length before them."""

    def __init__(self, port: int) -> None:
        self._line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._number = 0
        self._receive()

    def do(self, what: str, body: dict[str, Any]) -> Any:
        if what.startswith("element/"):
            return self._call("WebDriver:ElementSendKeys", {"id": what.split("/")[1], **body})
        return self._call(WORDS[what], body)

    def in_chrome(self, script: str) -> Any:
        """Run it where the browser's own windows are."""
        self._call("Marionette:SetContext", {"value": "chrome"})
        value = self._call("WebDriver:ExecuteScript", {"script": script, "args": []})
        self._call("Marionette:SetContext", {"value": "content"})
        return value

    def errors(self) -> list[str]:
        """Of pages and their workers, what they may not do (CSP) included."""
        errors: list[str] = self.in_chrome(ERRORS)
        return errors

    def _call(self, command: str, body: dict[str, Any]) -> Any:
        self._number += 1
        text = json.dumps([0, self._number, command, body]).encode()
        self._line.sendall(b"%d:%b" % (len(text), text))
        _, _, error, value = self._receive()
        if error:
            raise DriverError(f"{command}: {error['error']}: {error['message']}")
        return value["value"] if isinstance(value, dict) and set(value) == {"value"} else value

    def _receive(self) -> Any:
        length = b""
        while (byte := self._line.recv(1)) != b":":
            if not byte:
                raise DriverError("the browser is gone")
            length += byte
        text = b""
        while len(text) < int(length):
            text += self._line.recv(int(length) - len(text))
        return json.loads(text)


class Remote:
    """JSON over HTTP."""

    def __init__(self, port: int) -> None:
        self._port, self._path = port, "/session"

    def do(self, what: str, body: dict[str, Any]) -> Any:
        way = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        path = self._path if what == "session" else f"{self._path}/{what}"
        if what == "screenshot":
            way.request("GET", path)
        else:
            way.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        value = json.load(answer := way.getresponse())["value"]
        if answer.status != HTTPStatus.OK:
            raise DriverError(f"{what}: {value}")
        if what == "session":
            self._path += f"/{value['sessionId']}"
        return value
