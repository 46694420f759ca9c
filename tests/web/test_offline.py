"""The page without a network, in a real Chromium: it opens, takes samples, and is of one version."""

from urllib.parse import urlsplit

import pytest

from .conftest import Visit
from .seen import ONE, SEVEN, keep, stored
from .services import Services
from .serving_pages import Pages

KEPT = """Promise.race([
  navigator.serviceWorker.ready.then(() => true),
  new Promise((_, refuse) => setTimeout(() => refuse(new Error("no service worker in a minute")), 60_000)),
])"""
KEYS = """async () => {
  const cache = await caches.open("device-runtime-page");
  return (await cache.keys()).map(({ url }) => url);
}"""


@pytest.fixture
def visit_kept(visit):
    """A page that has joined, and whose files the browser keeps."""

    def make():
        visitor = visit(service_workers="allow")
        page = visitor.joined()
        page.evaluate(KEPT)
        return visitor, page

    return make


def restarted(pages, **instead):
    """The server once more at its port; `instead` by path below /join/."""
    more = {f"/join/{path}": text for path, text in instead.items()}
    return Pages(pages.config, pages.tokens, pages.instead | more, pages.server_address[1])


def test_the_page_opens_without_its_server_takes_samples_and_has_them_when_it_is_back(visit_kept):
    visitor, page = visit_kept()
    page.get_by_text("This page opens without a network, too.").wait_for()
    keep(visitor, SEVEN, "7")
    visitor.pages.close()
    page.reload()
    page.get_by_text("1 sample,").wait_for()
    assert page.evaluate("crossOriginIsolated")
    keep(visitor, ONE, "1")
    assert stored(page) == "2"
    visitor.pages = restarted(visitor.pages)
    page.reload()
    page.get_by_text("2 samples,").wait_for()
    page.get_by_text("Round 4: working").wait_for()


@pytest.mark.slow
def test_the_first_opening_after_an_update_shows_the_new_version_and_keeps_no_old_file(visit_kept):
    visitor, page = visit_kept()
    index = page.evaluate("fetch('/join/page/index.html').then((answer) => answer.text())")
    visitor.pages.close()
    newer = index.replace("Train with this device", "A newer page")
    visitor.pages = restarted(visitor.pages, **{"page/index.html": newer})
    page.reload()
    assert page.title() == "A newer page"
    visitor.pages.close()
    page.reload()
    assert page.title() == "A newer page"
    page.wait_for_selector("#teach:not([hidden])")
    keys = page.evaluate(KEYS)
    assert len(keys) == len(set(keys)) > 10
    assert len([key for key in keys if "page/index.html" in key]) == 1


@pytest.mark.slow
def test_an_update_of_which_a_file_is_missing_changes_nothing(visit_kept):
    visitor, page = visit_kept()
    title = page.title()
    visitor.pages.close()
    newer = {"page/index.html": "<title>half</title>", "page/page.css": "/* newer */"}
    pages = restarted(visitor.pages, **newer)
    visitor.pages = pages
    pages.failing.add("/join/page/page.css")
    page.reload()
    page.wait_for_selector("#teach:not([hidden])")
    assert page.title() == title


@pytest.mark.slow
def test_a_page_that_is_older_than_the_wire_of_its_server_says_so(visit_kept):
    visitor, page = visit_kept()
    visitor.pages.config = {**visitor.pages.config, "protocol": 5}
    page.workers[0].evaluate("() => postMessage({ type: 'link', connected: true, reason: '' })")
    page.get_by_text("The server is newer than this page. Reload the page").wait_for()
    page.reload()
    page.get_by_text("The server is newer than this page. Reload the page").wait_for()
    assert page.locator("#board").is_hidden()


@pytest.mark.slow
def test_only_files_of_the_page_are_kept_and_deleting_everything_deletes_them(visit_kept):
    _, page = visit_kept()
    page.evaluate("fetch('/join/config.json')")
    paths = [key.partition("/join/")[2].partition("?")[0] for key in page.evaluate(KEYS)]
    assert "page/main.js" in paths
    others = {path for path in paths if not path.startswith(("page/", "device/", "vendor/"))}
    assert others - {"rpc.js"} == {"files.json", "offline.js", "worker.js"}
    page.click("#forget")
    page.click("#sure button[value=yes]")
    page.wait_for_selector("#join:not([hidden])")
    assert page.evaluate("caches.keys()") == []
    assert page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0


@pytest.mark.slow
def test_what_is_added_while_the_server_is_away_counts_when_it_is_back(
    chromium, launched, eventually, digits, tmp_path
):
    serve = Services(launched, eventually, tmp_path)
    options = ("--bundle", "digits-wrn-10-1", "--rounds", 500, "--kinds", "full", "--deadline", 20)
    with serve(*options) as served:
        visitor = Visit(chromium, served.pages)
        page = visitor.open()
        page.get_by_text("It loads about ").wait_for()
        page.click("#join button")
        page.click("#files summary")
        page.set_input_files("#files-input", digits / "0.npz")
        page.get_by_text("250 samples,").wait_for()
        page.get_by_text("You helped").wait_for()
        page.evaluate(KEPT)
    page.reload()
    page.get_by_text("Waiting for the network.").wait_for()
    page.click("#files summary")
    page.set_input_files("#files-input", digits / "1.npz")
    page.get_by_text("500 samples,").wait_for()
    before = helped(page)
    with serve(*options, port=urlsplit(visitor.pages.origin).port) as served:
        eventually(lambda: helped(page) > before)
        rounds = [row["round"] for row in served.contributions() if row["device"].startswith("browser-")]
        assert len(rounds) == len(set(rounds)) >= before
    visitor.context.close()


HELPED = "Number(document.querySelector('#helped').textContent.match(/[0-9]+/)?.[0] ?? 0)"


def helped(page):
    return page.evaluate(HELPED)
