"""The dashboard in a real Chromium, on a real service: what it shows, and that no text becomes markup."""

import os
import queue
from pathlib import Path

import pytest

from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.messages import Hello, Plan, State
from device_runtime.broker.wire.url import BrokerUrl

from .conftest import HOSTILE, PATIENCE_MS, TOKEN

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
expect = playwright.expect

TASK = (
    "rounds = 200\nmin_devices = 4\nround_deadline_s = 5\nkinds = [{ name = 'full' }, { name = 'few-shot' }]"
)


@pytest.fixture
def board(serve, fleet, mosquitto):
    """A service that has closed some rounds, with a device whose texts mean harm."""
    service = serve(TASK)
    inbox = queue.SimpleQueue()
    link = Link(BrokerUrl.parse(mosquitto.url), "mallory", inbox)
    link.connect()

    def say(leaf, message, retain=False):
        link.publish(topics.up("mallory", leaf), messages.encode(message), retain)

    fleet("full", "few-shot")
    service.wait(lambda live: live["phase"] == "collecting")  # the service hears us from here on
    say("state", State(boot=1, online=True), True)
    hello = {"profile": "<b>bold</b>", "memory_bytes": 2**20, "engine": "'\"><script>1</script>"}
    say("hello", Hello(boot=1, num_examples=1, battery_percent=80, **hello))
    say("contribution", refused(service))
    service.wait(lambda _: service.get("/api/v1/tasks/digits/contributions?device=mallory").json["entries"])
    plan = {"seconds": 1.0, "memory_bytes": 1, "energy_j": 1.0, "reasons": (HOSTILE,)}
    say("plan", Plan(task="digits", round=1, kind="", **plan))
    service.wait(lambda live: live["closed_rounds"] >= 3 and live_device(service)["why"] == HOSTILE)
    yield service
    link.close()


def live_device(service):
    """The device whose texts mean harm, as it is told of."""
    return service.get("/api/v1/tasks/digits/devices?search=mallory").json["devices"][0]


def refused(service):
    """A contribution of a kind with a name that means harm."""
    metrics = messages.Metrics(train_loss=0.5, train_time_ms=1, energy_mj=1, peak_memory_kib=1)
    run = service.live()["run"]
    fields = {"task": "digits", "run": run, "round": 1, "boot": 1, "seq": 1, "num_examples": 1, "body": b"x"}
    return messages.Contribution(kind="<i onclick=alert(1)>k</i>", metrics=metrics, **fields)


class Visit:
    """A page of its own, with what went wrong on it."""

    def __init__(self, browser, service, width, scheme):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.wrong, self.requests = [], []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console", lambda message: self.wrong.append(message.text) if message.type == "error" else None
        )
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(service.url + "/")
        self.page.wait_for_selector("#token")
        self.wrong.clear()  # Chromium itself tells of the 401 that the page asked for

    def enter(self, token=TOKEN):
        self.page.fill("#token", token)
        self.page.click("#enter button")

    def entered(self):
        self.enter()
        self.page.wait_for_selector("#fleet-table tbody tr:nth-child(4)")
        self.page.wait_for_selector("#charts figure")
        self.page.wait_for_selector("#log-table tbody tr:nth-child(3)", state="attached")
        return self


@pytest.fixture
def visit(browser, board):
    visits = []

    def make(width=1280, scheme="light"):
        visits.append(Visit(browser, board, width, scheme))
        return visits[-1]

    yield make
    for visitor in visits:
        visitor.context.close()


def test_the_dashboard_shows_fleet_rounds_charts_and_refusals(visit, board, tmp_path):
    visitor = visit()
    page = visitor.page
    visitor.enter("not the token at all")
    expect(page.locator("#denied")).to_contain_text("does not take", timeout=PATIENCE_MS)
    assert page.is_hidden("#board")
    visitor.wrong.clear()  # of that 401, too
    visitor.entered()

    fleet = page.inner_text("#fleet-table")
    for text in ("pi-full", "pi-few-shot", "liar", "idle", "mallory", "80 %", "<b>bold</b>", HOSTILE[:30]):
        assert text in fleet
    assert page.locator("#fleet-table").locator("b, i, img, script").count() == 0
    titles = page.locator("figcaption").all_inner_texts()
    for kind in ("Contributions", "Bytes up, by kind", "Energy, by kind", "Training time of one, by kind"):
        assert kind in titles
    assert page.locator("#charts rect").count() > 3
    assert "Accuracy" not in titles  # it was not measured
    expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE_MS)

    page.select_option("#log-status", "refused")
    expect(page.locator("#log-table .tag.accepted")).to_have_count(0, timeout=PATIENCE_MS)
    assert "liar" in page.inner_text("#log-table")
    page.select_option("#log-status", "")
    page.fill("#log-device", "mallory")
    expect(page.locator("#log-table tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    assert "<i onclick=alert(1)>k</i>" in page.inner_text("#log-table")
    page.fill("#fleet-search", "few")
    expect(page.locator("#fleet-table tbody tr")).to_have_count(1, timeout=PATIENCE_MS)

    tile = page.locator(".tile dd").first  # "7 of 200"
    expect(tile).not_to_have_text(tile.inner_text(), timeout=PATIENCE_MS)

    with page.expect_download() as downloading:
        page.click("#model")
    assert Path(downloading.value.path()).stat().st_size > 100_000
    assert page.evaluate("Object.keys(sessionStorage)") == ["device-runtime-token"]
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    assert all(url.startswith((board.url, "blob:")) and TOKEN not in url for url in visitor.requests)
    assert visitor.wrong == []
    page.click("#leave")
    page.wait_for_selector("#token")
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_dashboard_fits_a_phone_and_a_desk_in_light_and_dark(visit, width, scheme, tmp_path):
    visitor = visit(width, scheme)
    page = visitor.entered().page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground[4:-1].split(",")) / 3
    assert (brightness > 128) == (scheme == "light")
    for element in page.locator("main button:visible, main input:visible, main select:visible").all():
        assert element.evaluate("e => Boolean(e.labels?.length || e.textContent.trim())")
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"{width}-{scheme}.png", full_page=True)
    page.goto(page.url + "docs")
    page.wait_for_selector(".operation")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.inner_text("main")
    assert "/api/v1/tasks/{name}/contributions" in text
    assert "last_seen" in text
    page.screenshot(path=pictures / f"docs-{width}-{scheme}.png")
    assert visitor.wrong == []


@pytest.mark.slow
def test_without_the_service_the_page_says_so(visit, board):
    visitor = visit()
    page = visitor.entered().page
    board.process.terminate()
    board.process.wait()
    expect(page.locator("#connection")).to_contain_text("lost", timeout=PATIENCE_MS)
    expect(page.locator("#doubt")).to_contain_text("these figures are from", timeout=PATIENCE_MS)
    assert "pi-full" in page.inner_text("#fleet-table")


@pytest.mark.slow
def test_a_token_that_is_taken_no_more_ends_all_that_it_showed(browser, serve):
    service = serve(TASK)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(
        """
        window.timers = new Set();
        const [begin, end] = [window.setInterval, window.clearInterval];
        window.setInterval = (...given) => { const id = begin(...given); window.timers.add(id); return id; };
        window.clearInterval = (id) => { window.timers.delete(id); end(id); };
        """
    )
    page.route("**/events", lambda route: route.fulfill(status=401), times=1)
    page.goto(service.url + "/")
    page.fill("#token", TOKEN)
    page.click("#enter button")
    expect(page.locator("#denied")).to_contain_text("does not take", timeout=PATIENCE_MS)
    assert page.evaluate("window.timers.size") == 0
    page.fill("#token", TOKEN)
    page.click("#enter button")
    expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE_MS)
    assert page.evaluate("window.timers.size") == 2
    context.close()
