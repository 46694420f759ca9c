"""The site that `make docs` builds: it is whole, it fetches nothing, and its search answers questions."""

import functools
import http.server
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MADE = {"api", "commands", "exit-codes", "names-of-systems", "protocol"}
"""Pages of reference/ that docs/hooks.py makes."""
ELSEWHERE = {"changelog.md", "contributing.md", "report-a-vulnerability.md"}

QUESTIONS = {
    "resume": "questions.html#how-do-i-resume-a-run",
    "use my GPU": "questions.html#how-do-i-use-my-gpu",
    "write a kind": "questions.html#how-do-i-write-a-kind-a-strategy-of-my-own",
    "what leaves the device": "questions.html#what-leaves-the-device",
    "broker on AWS": "questions.html#how-do-i-use-a-broker-on-aws-aws-iot-hivemq-or-emqx",
    "add a board": "questions.html#how-do-i-add-a-board",
    "why did a device sit out": "questions.html#why-did-a-device-sit-out-a-round",
    "learning rate sweep": "questions.html#how-do-i-sweep-the-learning-rate",
    "upgrade": "questions.html#how-do-i-upgrade",
    "uninstall": "questions.html#how-do-i-uninstall-a-device",
}
"""What somebody types -> the end of the address of the first hit."""


class _Loader(yaml.SafeLoader):
    """Reads the names of Python functions in mkdocs.yml as nothing."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages(entry):
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for part in inner for page in pages(part)]


def test_the_navigation_has_every_page_once():
    navigation = pages(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)["nav"])  # noqa: S506
    docs = ROOT / "docs"
    written = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    generated = {f"reference/{name}.md" for name in MADE} | ELSEWHERE
    assert sorted(navigation) == sorted(written | generated)


def test_the_pages_beside_the_reference_are_read_in_an_afternoon():
    """45,000 words at most, without code and output."""
    nav = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)["nav"]  # noqa: S506
    reference = {page for part in nav for page in pages(part.get("Reference", ()))}
    texts = [page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")
             if str(page.relative_to(ROOT / "docs")) not in reference]  # fmt: skip
    prose = [re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) for text in texts]
    assert sum(len(text.split()) for text in prose) <= 45_000


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(site):
    loads = re.compile(
        r"""(?:<(?:script|img|iframe)[^>]*\ssrc=|<link[^>]*\shref=|url\()["']?(https?:[^"')\s>]+)"""
    )
    wrong = [
        f"{file.relative_to(site)}: {address}"
        for file in (*site.rglob("*.html"), *site.rglob("*.css"))
        for address in loads.findall(file.read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.slow
def test_the_first_hit_of_search_answers(site):
    sync = pytest.importorskip("playwright.sync_api")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("Chromium is not installed")
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync.sync_playwright() as play:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        outside = []
        page = browser.new_page()
        page.on("request", lambda request: outside.append(request.url))
        hits = {query: _first_hit(page, server.server_port, query) for query in QUESTIONS}
        browser.close()
        server.shutdown()
    assert {query: hit for query, hit in hits.items() if not hit.endswith(QUESTIONS[query])} == {}
    assert [url for url in outside if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []


def _first_hit(page, port, query):
    page.goto(f"http://127.0.0.1:{port}/index.html?q={query.replace(' ', '+')}")
    hit = page.locator(".md-search-result__item").first.locator("a.md-search-result__link")
    hit.first.wait_for(state="attached", timeout=30_000)
    addresses = [link.get_attribute("href") for link in hit.all()[:2]]  # the page, and its best section
    return re.sub(r"\?h=[^#]*", "", addresses[-1])


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
