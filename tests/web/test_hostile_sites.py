"""What the page's policy keeps out of it, and what a page of another site can do to it: nothing."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .conftest import OPEN, Visit
from .serving_pages import Pages

pytestmark = pytest.mark.slow

SECRET = "the-secret-of-a-link-0123456789"
HERE = Path(__file__).parent
TRIED = (HERE / "policy_tried.js").read_text()
IN_A_WORKER = """(elsewhere) => new Promise((done) => setTimeout(async () => {
  const found = [];
  const fetched = () => fetch(`${elsewhere}/y`, { mode: "no-cors" });
  const made = () => new Function("1")();
  for (const deed of [() => (0, eval)("1"), made, () => import(`${elsewhere}/x.js`), fetched]) {
    try { await deed(); found.push("done"); } catch (error) { found.push(error.name); }
  }
  done(found);
}))"""
KEPT = "JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie, history.state])"


class Elsewhere(ThreadingHTTPServer):
    """Another site, at another name of this machine. `asked`: (path, headers) of each request."""

    daemon_threads = True

    def __init__(self, page: str = "") -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.page = page
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.server_address[1]}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests if path != "/favicon.ico"]


class _Handler(BaseHTTPRequestHandler):
    server: Elsewhere

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    do_POST = do_GET  # noqa: N815 - the library's name

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def elsewhere():
    site = Elsewhere("<title>elsewhere</title>")
    yield site
    site.shutdown()
    site.server_close()


def test_the_policy_keeps_scripts_and_connections_of_others_out_of_the_page(visit, elsewhere):
    page = visit().joined()
    came = page.evaluate(TRIED, elsewhere.origin)
    assert came["owned"] is None
    assert came["found"]["eval"] == came["found"]["Function"] == "EvalError"
    assert {came["found"][name] for name in ("module", "data", "blob", "fetch")} == {"TypeError"}
    directives = {"script-src", "script-src-elem", "script-src-attr", "connect-src", "img-src", "frame-src"}
    assert directives | {"style-src-elem", "base-uri", "form-action", "worker-src"} <= set(came["broken"])
    assert came["base"].startswith("http://127.0.0.1:")
    assert elsewhere.paths == []
    assert page.get_by_text("Round 4").count() > 0


def test_the_policy_binds_the_worker_too(visit, elsewhere):
    visitor = visit()
    visitor.joined()
    came = visitor.page.workers[0].evaluate(IN_A_WORKER, elsewhere.origin)
    assert came == ["EvalError", "EvalError", "TypeError", "TypeError"]
    assert elsewhere.paths == []


def test_a_page_of_another_site_gets_nothing_from_the_service(
    chromium, elsewhere, launched, eventually, tmp_path
):
    pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
    log = tmp_path / "serve.log"
    where = ("--http", "127.0.0.1:0", "--web", "--run-dir", tmp_path / "run")
    with launched(log, "serve", "--bundle", "digits-wrn-10-1", "--rounds", "1", *where):
        match = eventually(lambda: re.search(r"browsers join at (http://[^/]+)/join/", log.read_text()))
        elsewhere.page = (HERE / "another_site.html").read_text().replace("ORIGIN", match[1])
        context = chromium.new_context()
        page = context.new_page()
        page.goto(elsewhere.origin)
        came = json.loads(page.evaluate("self.all"))
        assert came["config"] == "TypeError"
        assert (came["script"], came["plain"], came["worker"]) == ("refused", "refused", "SecurityError")
        assert (came["enrol"], came["socket"]) == ("TypeError", "refused")
        assert "device-runtime" not in came["storage"]
        assert came["frame"] == "not readable"

        def framed():
            page.evaluate("0")  # what has happened to its frames is heard of with an answer
            return [frame.url for frame in page.frames if frame != page.main_frame]

        eventually(lambda: framed() == ["chrome-error://chromewebdata/"])

        with context.expect_page() as opening:
            page.evaluate("(url) => { self.opened = open(url); }", f"{match[1]}/join/page/")
        opened = opening.value
        opened.wait_for_selector("#join:not([hidden])")
        assert opened.evaluate("opener") is None
        assert page.evaluate("opened.closed || opened.location === undefined")
        page.evaluate("opened.postMessage({ do: 'leave', type: 'stopped', text: 'pwned' }, '*')")
        assert "pwned" not in opened.inner_text("body")
        context.close()


def test_the_secret_of_a_link_is_in_no_request_no_history_and_no_referrer(chromium, elsewhere):
    pages = Pages({**OPEN, "enrolment": "link"}, {}, {})
    visitor = Visit(chromium, pages)
    try:
        page = visitor.open(f"#link={SECRET}")
        page.wait_for_selector("#join:not([hidden])")
        assert SECRET not in page.url
        assert SECRET not in page.evaluate(KEPT)
        assert not any(SECRET in url for url in visitor.requests)
        page.evaluate("(url) => { location.href = url; }", elsewhere.origin + "/after")
        page.wait_for_url(elsewhere.origin + "/after")
        [(_, headers)] = [request for request in elsewhere.requests if request[0] == "/after"]
        assert not any(name.lower() == "referer" for name in headers)
        page.go_back()
        page.wait_for_selector("#join:not([hidden])")
        assert SECRET not in page.url
    finally:
        visitor.context.close()
        pages.shutdown()
