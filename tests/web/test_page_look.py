"""How the page looks, in a real Chromium on a scripted device, and what it asks for."""

import json
import os
from pathlib import Path

import pytest

from device_runtime.broker.security.enrolment import Enrolment

from .page_states import STATES
from .seen import CONTRAST, ONE, SEVEN, keep


def test_the_labels_stay_where_they_are_when_the_model_says_what_it_takes_a_drawing_for(visit):
    visitor = visit(viewport={"width": 1280, "height": 800})
    page = visitor.joined()
    place = "document.querySelector('#labels').getBoundingClientRect().top + scrollY"
    before = page.evaluate(place)
    keep(visitor, SEVEN, "7")
    visitor.draw(SEVEN)
    page.get_by_text("It takes this for “7”").wait_for()
    assert page.evaluate(place) == pytest.approx(before, abs=1)


PLACES = """() => {
  const place = () => JSON.stringify(["#pad .paper", "#labels"].map(
    (name) => document.querySelector(name).getBoundingClientRect()));
  window.places = new Set([place()]);
  new MutationObserver(() => window.places.add(place()))
    .observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 640), (390, 844), (820, 1180)], ids=["small", "phone", "tablet"])
def test_pad_and_labels_are_on_the_first_screen_and_do_not_move_in_three_rounds(
    visit, size, scheme, tmp_path
):
    visitor = visit(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = visitor.joined()
    before = page.evaluate("JSON.parse(localStorage.getItem('device-runtime helped') ?? '[0]')[0]")
    page.evaluate("scrollTo(0, 0)")
    page.evaluate(PLACES)
    for number in (5, 6, 7):
        page.workers[0].evaluate(f"self.begin({number})")
        page.get_by_text(f"Round {number}: received").wait_for()
    page.get_by_text(f"You helped {before + 3} times").wait_for()
    page.evaluate("document.querySelector('#trouble').hidden = false")
    page.evaluate("document.querySelector('#trouble').textContent = 'the disk of this device is full'")
    page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"first-{size[0]}-{scheme}.png")
    (places,) = page.evaluate("[...window.places]")
    for place in json.loads(places):
        assert place["top"] >= 0
        assert place["bottom"] <= size[1]


TOUCHED = "button:visible, input:visible, select:visible, summary:visible"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 740), (1280, 800)], ids=["phone", "desk"])
def test_the_page_fits_phone_and_desk_can_be_read_and_each_control_has_a_name(visit, size, scheme, tmp_path):
    visitor = visit(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = visitor.open()
    page.wait_for_selector("#join:not([hidden])")
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"join-{size[0]}-{scheme}.png")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    keep(visitor, SEVEN, "7")
    visitor.draw(ONE)
    page.wait_for_selector(".label.best")
    for summary in ("#explain", "#files", "#chart details"):
        page.locator(f"{summary} summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 40
    assert [ratio for ratio in ratios if ratio[0] < 4.5] == []
    for element in page.locator("button:visible, input:visible, select:visible, canvas:visible").all():
        assert element.evaluate("e => Boolean(e.labels?.length || e.ariaLabel || e.textContent.trim())")
    for element in page.locator(TOUCHED).all():
        box = element.bounding_box()
        assert min(box["width"], box["height"]) >= 44, element.evaluate("e => e.outerHTML")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=pictures / f"page-{size[0]}-{scheme}.png", full_page=True)
    assert visitor.wrong == []


def test_the_page_can_be_installed(visit):
    page = visit().joined()
    app = page.evaluate(
        """async () => {
          const answer = await fetch(document.querySelector("link[rel=manifest]").href);
          return { type: answer.headers.get("content-type"), ...(await answer.json()) };
        }"""
    )
    assert (app["type"], app["display"], app["start_url"]) == (
        "application/manifest+json",
        "standalone",
        "./",
    )
    errors = page.context.new_cdp_session(page).send("Page.getAppManifest")["errors"]
    assert errors == []


def test_no_file_of_the_page_names_another_place():
    web = Path(__file__).parents[2] / "web"
    names = [*web.glob("page/*"), *web.glob("device/**/*.js"), *web.glob("*.js")]
    assert len(names) > 40
    for path in names:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
    assert json.loads((web / "package.json").read_text())["type"] == "module"


def test_the_task_has_its_words_before_join_and_after_it(visit):
    visitor = visit(viewport={"width": 360, "height": 640})
    page = visitor.open()
    page.evaluate("localStorage.setItem('device-runtime details', '')")
    page.reload()
    page.wait_for_selector("#join:not([hidden])")
    assert page.inner_text("#about") == "Read handwriting"
    assert page.inner_text("#purpose").startswith("We teach a model to read digits")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    assert page.inner_text("#title") == "Read handwriting"
    assert page.inner_text("#question").startswith("Draw a digit from 0 to 9")
    assert page.locator("#details").is_hidden()
    page.click("#more")
    assert page.locator("#task-about").is_visible()
    page.reload()
    page.get_by_text("Round 4: working").wait_for()
    assert page.locator("#task-about").is_visible()  # as this person left it
    page.click("#more")
    assert page.locator("#task-about").is_hidden()


STARTED = """() => new Promise((resolve) => {
  const look = () => (self.asked?.length ? resolve() : setTimeout(look, 20));
  look();
})"""
FAULTS = """() => {
  const name = (e) => `${e.tagName} ${e.id} ${e.className} ${e.textContent.trim().slice(0, 40)}`;
  const isVisible = (e) => e.checkVisibility() && !e.closest(".sr, .skip");
  const controls = "button, input, select, summary, textarea";
  const touched = [...document.querySelectorAll(controls)].filter(isVisible);
  const least = ({ width, height }) => Math.min(width, height);
  const small = touched.filter((e) => least(e.getBoundingClientRect()) < 44);
  const clipped = [...document.querySelectorAll("#state, #helped, button")]
    .filter(isVisible)
    .filter((e) => e.scrollHeight > e.clientHeight + 2 || e.scrollWidth > e.clientWidth + 1);
  const wide = document.documentElement.scrollWidth > innerWidth ? ["wider than the window"] : [];
  return [...small.map((e) => `below 44: ${name(e)}`), ...clipped.map((e) => `clipped: ${name(e)}`), ...wide];
}"""
SIZES = ((360, 640), (390, 844), (820, 1180))
SCHEMES = ("light", "dark")
TOKEN = Enrolment("wss://localhost:9/mqtt", "browser-3f", "secret", b"", bytes(32), 1).token


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_every_state_is_said_fits_and_can_be_read_and_touched(visit, name, tmp_path):
    state = STATES[name]
    pictures = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    pictures.mkdir(exist_ok=True)
    visitor = visit(state.case, viewport={"width": 390, "height": 844})
    visitor.pages.config = {**visitor.pages.config, **state.config}
    visitor.pages.tokens["good"] = TOKEN
    opened = json.dumps("open" if state.details else "")
    details = f"try {{ localStorage.setItem('device-runtime details', {opened}); }} catch {{}}\n"
    visitor.context.add_init_script(details + state.script)
    visitor.open(state.opens)
    if state.joins:
        with visitor.page.expect_worker() as started:
            visitor.page.click("#join button")
        started.value.evaluate(STARTED)
        started.value.evaluate(
            "(messages) => messages.forEach((message) => postMessage(message))", state.says
        )
    state.do(visitor)
    page = visitor.page
    has_words = "words => document.body.innerText.includes(words)"
    page.wait_for_function(has_words, arg=state.words)
    page.evaluate("scrollTo(0, 0)")
    faults = []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)  # the pad is painted again
            page.screenshot(path=pictures / f"page-{name}-{width}-{scheme}.png", full_page=True)
            low = [ratio for ratio in page.evaluate(CONTRAST) if ratio[0] < 4.5]
            faults += [f"{width} {scheme}: {fault}" for fault in [*low, *page.evaluate(FAULTS)]]
    assert faults == []
