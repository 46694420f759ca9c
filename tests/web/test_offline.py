"""The page without a network, in a real Chromium: it opens, takes samples, and is of one version."""

import pytest

from .seen import ONE, SEVEN, keep, stored
from .serving_pages import Pages

pytestmark = pytest.mark.slow

KEPT = "navigator.serviceWorker.ready.then(() => true)"
VERSION = "export const VERSION = 4;"


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
    keys = page.evaluate(
        "caches.open('device-runtime-page').then((cache) => cache.keys()).then((all) => all.map((r) => r.url))"
    )
    assert len(keys) == len(set(keys)) > 100
    assert len([key for key in keys if "page/index.html" in key]) == 1


def test_an_update_of_which_a_file_is_missing_changes_nothing(visit_kept):
    visitor, page = visit_kept()
    title = page.title()
    visitor.pages.close()
    pages = restarted(visitor.pages, **{"page/index.html": "<title>half</title>", "page/dom.js": "// newer"})
    visitor.pages = pages
    pages.failing.add("/join/page/dom.js")
    page.reload()
    page.wait_for_selector("#teach:not([hidden])")
    assert page.title() == title


def test_a_page_that_is_older_than_the_wire_of_its_server_says_so(visit_kept):
    visitor, page = visit_kept()
    visitor.pages.config = {**visitor.pages.config, "protocol": 5}
    page.workers[0].evaluate("() => postMessage({ type: 'link', connected: true, reason: '' })")
    page.get_by_text("The server is newer than this page. Reload the page").wait_for()
    page.reload()
    page.get_by_text("The server is newer than this page. Reload the page").wait_for()
    assert page.locator("#board").is_hidden()


def test_settings_credentials_and_the_list_itself_are_not_kept_and_deleting_everything_deletes_the_page(
    visit_kept,
):
    visitor, page = visit_kept()
    page.evaluate("fetch('/join/config.json')")
    urls = """caches.keys().then((names) => Promise.all(names.map((name) => caches.open(name))))
      .then((all) => Promise.all(all.map((cache) => cache.keys())))
      .then((all) => all.flat().map((request) => new URL(request.url).pathname))"""
    paths = page.evaluate(urls)
    assert "/join/page/main.js" in paths
    assert all(path.endswith("/files.json") or not path.endswith(".json") for path in paths)
    assert not [path for path in paths if "enrol" in path.rsplit("/", 1)[1].removesuffix(".js") and "." not in path]
    page.click("#forget")
    page.click("#sure button[value=yes]")
    page.wait_for_selector("#join:not([hidden])")
    assert page.evaluate("caches.keys()") == []
    assert page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0
