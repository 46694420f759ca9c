"""Microphone and camera, for which Chromium takes files: what is kept of them, and when they go off."""

import os
from pathlib import Path

import numpy as np
import pytest

from .conftest import FLAGS, OPEN, SCRIPTED, Visit
from .props import BANDS, FAST_HZ, FRAMES, nearest, record
from .seen import CONTRAST, HIDE
from .serving_pages import Pages

pytestmark = pytest.mark.slow

SCALE, MEAN, STD = 1 / 255, 0.305, 0.376
"""Of the scripted device's words, but for the scale of colours: the same."""
REFUSING = (*FLAGS, "--use-fake-ui-for-media-stream=deny")
WITHOUT = tuple(flag for flag in FLAGS if flag != "--use-fake-device-for-media-stream")
TRACKS = """
globalThis.tracks = [];
const get = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  const stream = await get(wanted);
  tracks.push(...stream.getTracks());
  return stream;
};
const stop = MediaStreamTrack.prototype.stop;
MediaStreamTrack.prototype.stop = function () {
  stop.call(this);
  sessionStorage.setItem("stopped", Number(sessionStorage.getItem("stopped")) + 1);
};
"""

ALLOWED_LATER = """
() => {
  const get = navigator.mediaDevices.getUserMedia;
  navigator.mediaDevices.getUserMedia = (wanted) =>
    new Promise((resolve) => {
      globalThis.allow = async () => resolve(await get(wanted));
    });
}
"""


@pytest.fixture
def joined():
    """A page with a scripted device, for one of its cases, in a browser."""
    visits = []

    def make(browser, case, **context):
        script = f"self.scripted = {case!r};\n" + SCRIPTED.read_text()
        visits.append(Visit(browser, Pages(OPEN, {}, {"/join/worker.js": script}), **context))
        visits[-1].context.add_init_script(TRACKS)
        visits[-1].joined()
        return visits[-1]

    yield make
    for visitor in visits:
        visitor.context.close()
        visitor.pages.shutdown()


def word(height, begin_s, long_s=0.5, whole_s=6.0, rate=FAST_HZ):
    """A tone that rises from 300 to 3000 Hz, in the noise of a quiet room: samples (n,)."""
    noise = np.random.default_rng(0).normal(0, 10, round(whole_s * rate))
    at = np.arange(round(long_s * rate)) / rate
    tone = np.sin(2 * np.pi * (300 * at + 2700 * at**2 / (2 * long_s)))
    first = round(begin_s * rate)
    noise[first : first + len(tone)] += height * tone
    return np.rint(noise)


def guessed(visitor):
    """What the model was last asked of, raw, flat."""
    x = [message for message in visitor.messages() if message["do"] == "guess"][-1]["x"]
    return (np.array(list(x.values())) * STD + MEAN) / SCALE


def stopped(page):
    """How many tracks were stopped, in this tab's whole life."""
    return page.evaluate("Number(sessionStorage.getItem('stopped'))")


def states(page):
    return page.evaluate("tracks.map((track) => track.readyState)")


@pytest.mark.parametrize("begin_s", [1.2, 2.0])
def test_the_second_around_a_word_is_kept_with_the_features_that_python_makes_of_it(
    begin_s, props, studio, joined
):
    sound = word(8000, begin_s)
    props.say(sound, FAST_HZ)
    visitor = joined(studio, "words")
    record(visitor.page)
    visitor.page.get_by_text("Recorded.").wait_for()
    first_s, far = nearest(guessed(visitor).reshape(FRAMES, BANDS), sound, FAST_HZ)
    assert abs(first_s + 0.5 - (begin_s + 0.25)) < 0.1  # the middle of one in the middle of the other
    assert far.mean() < 0.3  # steps of half a decibel, of 255
    assert np.quantile(far, 0.99) < 2.5
    assert states(visitor.page) == ["ended"]
    visitor.page.locator(".label:enabled", has_text="stop").click()
    visitor.page.get_by_text("1 sample,").wait_for()
    assert visitor.wrong == []


def test_who_says_nothing_is_told_so_and_may_keep_it(props, studio, joined):
    props.say(np.zeros(100), FAST_HZ)
    visitor = joined(studio, "words")
    record(visitor.page)
    visitor.page.get_by_text("Nothing at all was heard").wait_for()
    props.say(word(0, 0), FAST_HZ)
    record(visitor.page)
    visitor.page.get_by_text("It was quiet.").wait_for()
    assert visitor.page.locator(".label:enabled").count() == 3
    assert states(visitor.page) == ["ended", "ended"]


def test_a_page_that_is_hidden_while_it_listens_lets_go_of_the_microphone(props, studio, joined):
    props.say(np.zeros(100), FAST_HZ)
    visitor = joined(studio, "words")
    visitor.page.get_by_role("button", name="Record").click()
    visitor.page.get_by_text("Speak now").wait_for()
    assert states(visitor.page) == ["live"]
    visitor.page.evaluate(HIDE, True)
    visitor.page.get_by_text("The microphone is off: the page was hidden.").wait_for()
    assert states(visitor.page) == ["ended"]
    assert visitor.page.locator(".label:enabled").count() == 0
    visitor.page.evaluate(HIDE, False)
    record(visitor.page)
    assert states(visitor.page) == ["ended", "ended"]
    assert visitor.page.locator("#trouble").is_hidden()


def test_a_picture_is_what_the_camera_sees(props, studio, joined):
    rng = np.random.default_rng(0)
    quarters = rng.integers(40, 216, (2, 2, 3)).astype(np.uint8)
    props.show(np.kron(quarters, np.ones((8, 8, 1), np.uint8)))
    visitor = joined(studio, "colours")
    visitor.page.get_by_role("button", name="Use the camera").click()
    visitor.page.get_by_role("button", name="Take a picture").click()
    visitor.page.wait_for_selector(".label.best:enabled")
    x = [message for message in visitor.messages() if message["do"] == "guess"][-1]["x"]
    picture = (np.array(list(x.values())) * 0.2 + 0.5).reshape(3, 32, 32) * 255
    for row in range(2):
        for column in range(2):
            part = picture[:, 16 * row + 2 : 16 * row + 14, 16 * column + 2 : 16 * column + 14]
            np.testing.assert_allclose(part.mean(axis=(1, 2)), quarters[row, column], atol=6)
    assert visitor.wrong == []


def camera_on(visitor):
    visitor.page.get_by_role("button", name="Use the camera").click()
    visitor.page.get_by_role("button", name="Take a picture").wait_for()
    assert states(visitor.page)[-1] == "live"


WORDS = {"shape": [1, 61, 40], "scale": 1 / 255, "mean": [0.3], "std": [0.4], "dtype": "float32"}
OTHER = {
    "type": "task",
    "manifest": {"name": "other", "input": {**WORDS, "vocabulary": None}, "labels": ["yes", "no"]},
    "engine": "",
    "why": "",
    "cores": 1,
    "memoryBytes": 1,
    "forwardS": 1,
    "examples": 1,
}


def test_the_camera_goes_off_by_its_button_when_the_page_is_hidden_or_left_and_for_another_model(
    studio, joined
):
    visitor = joined(studio, "colours")
    camera_on(visitor)
    visitor.page.get_by_role("button", name="Switch it off").click()
    assert states(visitor.page) == ["ended"]
    assert visitor.page.locator("video").is_hidden()

    camera_on(visitor)
    visitor.page.evaluate(HIDE, True)
    assert states(visitor.page) == ["ended"] * 2
    visitor.page.evaluate(HIDE, False)
    visitor.page.get_by_role("button", name="Use the camera").wait_for()
    assert visitor.page.get_by_role("button", name="Take a picture").is_hidden()

    camera_on(visitor)
    visitor.page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    assert states(visitor.page) == ["ended"] * 3

    visitor.page.reload()
    visitor.page.get_by_text("Round 4: working").wait_for()
    camera_on(visitor)
    visitor.page.workers[0].evaluate("(told) => postMessage(told)", OTHER)
    visitor.page.get_by_role("button", name="Record").wait_for()
    assert states(visitor.page) == ["ended"]
    assert visitor.wrong == []


def test_a_camera_that_is_allowed_only_when_the_page_is_hidden_can_be_switched_on_later(studio, joined):
    visitor = joined(studio, "colours")
    visitor.page.evaluate(ALLOWED_LATER)
    button = visitor.page.get_by_role("button", name="Use the camera")
    button.click()
    visitor.page.evaluate(HIDE, True)
    visitor.page.get_by_text("The camera is off: the page was hidden.").wait_for()
    visitor.page.evaluate("allow()")
    visitor.page.evaluate(HIDE, False)
    assert states(visitor.page) == ["ended"]
    visitor.page.get_by_role("button", name="Use the camera").click()
    visitor.page.evaluate("allow()")
    visitor.page.get_by_role("button", name="Take a picture").wait_for()
    visitor.page.get_by_role("button", name="Switch it off").click()
    assert states(visitor.page) == ["ended", "ended"]
    assert visitor.wrong == []


def test_whoever_leaves_with_the_camera_on_has_it_switched_off(studio, joined):
    visitor = joined(studio, "colours")
    camera_on(visitor)
    visitor.page.click("#leave")
    visitor.page.wait_for_selector("#join:not([hidden])")
    assert stopped(visitor.page) == 1


@pytest.mark.parametrize("case", ["words", "colours"])
@pytest.mark.parametrize(
    ("flags", "message"), [(REFUSING, "This page may not use the {}"), (WITHOUT, "This device has no {}")]
)
def test_what_the_browser_does_not_give_is_said_and_may_be_tried_again(
    flags, message, case, chromiums, joined
):
    browser = chromiums(flags)
    visitor = joined(browser, case)
    button, what = {"words": ("Record", "microphone"), "colours": ("Use the camera", "camera")}[case]
    for _ in range(2):
        visitor.page.get_by_role("button", name=button).click()
        visitor.page.get_by_text(message.format(what)).wait_for()
        assert "Files can be chosen without it" in visitor.page.inner_text("#trouble")
    assert visitor.page.get_by_role("button", name=button).is_enabled()
    assert visitor.wrong == []
    browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("case", ["words", "colours"])
def test_microphone_and_camera_fit_a_phone_and_can_be_read(case, scheme, props, studio, joined, tmp_path):
    props.say(word(8000, 1.2), FAST_HZ)
    props.show(np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8))
    visitor = joined(studio, case, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page, pictures = visitor.page, Path(os.environ.get("SCREENSHOTS", tmp_path))
    if case == "words":
        page.get_by_role("button", name="Record").click()
        page.get_by_text("Listening").or_(page.get_by_text("Speak now")).wait_for()
        page.locator("#teach").screenshot(path=pictures / f"listening-{scheme}.png")
    else:
        camera_on(visitor)
        page.get_by_role("button", name="Take a picture").click()
    page.wait_for_selector(".label.best:enabled")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [ratio for ratio in page.evaluate(CONTRAST) if ratio[0] < 4.5] == []
    page.locator("#teach").screenshot(path=pictures / f"{case}-{scheme}.png")
    assert visitor.wrong == []
