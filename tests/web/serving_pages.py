"""The page's files over HTTP, with the headers that `serve --web` gives them; nothing else is there."""

import base64
import hashlib
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WEB = Path(__file__).parents[2] / "web"
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "no-cache",
}


class Pages(ThreadingHTTPServer):
    """`config` is what join/config.json says; a secret in `tokens` is exchanged for its token, by one claim.

    `instead`: what stands for files, or beside them, by path; `failing`: paths that cannot be had now.
    """

    daemon_threads = True

    def __init__(
        self,
        config: dict[str, Any],
        tokens: dict[str, str],
        instead: dict[str, str | bytes],
        port: int = 0,
    ) -> None:
        from device_runtime.aggregator.http.join import JoinFiles

        self.files = JoinFiles(WEB, WEB / "vendor", ("", ""))
        self.config, self.tokens, self.instead = config, tokens, instead
        self.claims: dict[str, str] = {}
        self.failing: set[str] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/join/page/"

    def listing(self) -> dict[str, dict[str, str]]:
        """The files of the page with their hashes, as `serve --web` lists them."""
        listing = self.files.listing()
        for path, content in self.instead.items():
            digest = hashlib.sha256(content.encode() if isinstance(content, str) else content).digest()
            listing["files"][path.removeprefix("/join/")] = base64.b64encode(digest).decode()
        return listing

    def close(self) -> None:
        """Ends it, and its connections: nobody answers at its port."""
        self.shutdown()
        self.server_close()


class _Handler(SimpleHTTPRequestHandler):
    server: Pages
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
        ".svg": "image/svg+xml",
    }

    def translate_path(self, path: str) -> str:
        inside = path.split("?")[0].removeprefix("/join/")
        file = self.server.files.find(inside)
        if file:
            return str(file.path)
        return str(WEB / inside) if ".." not in inside else str(WEB / "none")

    def end_headers(self) -> None:
        from device_runtime.aggregator.http.join import computes, policies

        policy = policies(self.server.config["broker"]["url"])[computes(self.path.removeprefix("/join/"))]
        for name, value in {**HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        super().end_headers()

    def do_GET(self) -> None:
        if self.path in self.server.failing:
            self._say(503, "", "text/plain")
        elif self.path == "/join/config.json":
            self._say(200, json.dumps(self.server.config), "application/json")
        elif self.path == "/join/files.json":
            self._say(200, json.dumps(self.server.listing(), separators=(",", ":")), "application/json")
        elif self.path in self.server.instead:
            self._say(200, self.server.instead[self.path], self.guess_type(self.path))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.server.tokens.get(request["secret"])
        claim = self.server.claims.setdefault(request["secret"], request["claim"])
        if token is None or claim != request["claim"]:
            self._say(410, json.dumps({"detail": "this link was used already"}), "application/json")
        else:
            self._say(200, json.dumps({"token": token}), "application/json")

    def _say(self, status: int, content: str | bytes, kind: str) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""
