"""The page in a real Chromium, on a scripted device: what it shows, keeps, deletes and asks for."""

import numpy as np
import pytest

from .seen import ONE, SEVEN, keep, stored

pytestmark = pytest.mark.slow

FAILING = """() => {
  const remove = IDBObjectStore.prototype.delete;
  let times = 0;
  IDBObjectStore.prototype.delete = function (key) {
    times += 1;
    if (times === 2) throw new Error("the disk is gone");
    return remove.call(this, key);
  };
}"""


def test_what_is_drawn_is_kept_here_guessed_and_deleted_and_goes_nowhere(visit):
    visitor = visit()
    page = visitor.joined()
    assert page.inner_text("#connection") == "connected"
    assert stored(page) == "Nothing"
    visitor.draw(SEVEN)
    page.get_by_text("It takes this for “7” (91 %).").wait_for()
    page.locator(".label", has_text="7").first.click()
    keep(visitor, ONE, "1")
    keep(visitor, [[(0.3, 0.2), (0.7, 0.2), (0.4, 0.8)]], "7")
    assert stored(page) == "3"
    assert page.locator("#folders > li").count() == 2
    assert "7" in page.locator("#folders > li").nth(1).inner_text()
    guess = next(message for message in visitor.messages() if message["do"] == "guess")
    assert len(guess["x"]) == 64
    changed = [message["keys"] for message in visitor.messages() if message["do"] == "samples"]
    assert [[key.split("/")[2] for key in keys] for keys in changed] == [["7"], ["1"], ["7"]]

    page.reload()
    page.wait_for_selector("#stored:not([hidden])")
    page.get_by_text("3 samples").wait_for()  # and nobody had to join again
    page.get_by_label("Delete 7, 1 of 2").click()
    page.get_by_text("2 samples").wait_for()
    page.click("#clear")
    page.click("#sure button[value=no]")
    assert stored(page) == "2"
    page.click("#clear")
    page.click("#sure button[value=yes]")
    page.get_by_text("Nothing is stored yet").wait_for()
    assert all(url.startswith(visitor.pages.origin) for url in visitor.requests)
    assert visitor.wrong == []


FOCUSED = "document.activeElement.ariaLabel ?? document.activeElement.textContent"


def test_who_deletes_by_keys_is_led_to_the_next_sample_and_at_last_to_the_heading(visit):
    visitor = visit()
    page = visitor.joined()
    for label in ("7", "7", "7", "1"):
        keep(visitor, SEVEN if label == "7" else ONE, label)
    for number, (before, after) in enumerate(
        [("Delete 7, 2 of 3", "Delete 7, 2 of 2"), ("Delete 7, 2 of 2", "Delete 7, 1 of 1")]
    ):
        page.get_by_label(before).focus()
        page.keyboard.press("Enter")
        page.get_by_text(f"{3 - number} samples,").wait_for()
        assert page.evaluate(FOCUSED).startswith(after)
    page.get_by_label("Delete all of 1", exact=True).focus()
    page.keyboard.press("Enter")
    page.click("#sure button[value=yes]")
    page.get_by_text("1 sample,").wait_for()
    assert page.evaluate(FOCUSED) == "Delete all of 7"
    page.get_by_label("Delete 7, 1 of 1").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Nothing is stored yet").wait_for()
    assert page.evaluate(FOCUSED) == "Stored on this device"


@pytest.mark.parametrize("pressed", ["Delete all of 7", "Delete all samples"])
def test_a_deletion_that_fails_half_way_is_shown_as_it_is_and_the_device_is_told(pressed, visit):
    visitor = visit()
    page = visitor.joined()
    keep(visitor, SEVEN, "7")
    keep(visitor, ONE, "7")
    page.evaluate(FAILING)
    page.get_by_role("button", name=pressed, exact=True).click()
    page.click("#sure button[value=yes]")
    page.get_by_text("the disk is gone").wait_for()
    assert stored(page) == "1"
    keys_of_messages = [message["keys"] for message in visitor.messages() if message["do"] == "samples"]
    assert [len(keys) for keys in keys_of_messages] == [1, 1, 1]
    page.get_by_label("Delete 7, 1 of 1").click()
    page.get_by_text("Nothing is stored yet").wait_for()


def test_a_label_that_is_pressed_twice_keeps_what_was_drawn_once(visit):
    visitor = visit()
    page = visitor.joined()
    visitor.draw(SEVEN)
    seven = page.locator(".label:enabled", has_text="7").first
    seven.evaluate("button => { button.click(); button.click(); }")
    page.wait_for_selector(".label:disabled")
    page.get_by_text("1 sample").first.wait_for()
    assert stored(page) == "1"
    assert not page.locator("#trouble").is_visible()
    assert visitor.wrong == []


def test_the_page_says_what_is_trained_why_and_what_is_sent(visit):
    page = visit().joined()
    now = page.inner_text("section[aria-labelledby=now-head]")
    for text in (
        "trains the upper part of the model on a quarter of your samples, those it is least sure of",
        "4.2 s",
        "13 J",
        "198 kB, 49,400 numbers: the upper part of the model after training",
    ):
        assert text in now
    assert page.locator("#progress").evaluate("bar => bar.value") == pytest.approx(0.4)
    page.click("#explain summary")
    assert "too much for this device this time (needs 91.0 s, 54.0 s are left)" in page.inner_text("#verdict")
    rows = page.locator("#rows tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert "needs 91.0 s, 54.0 s are left" in rows[0]
    assert "estimates" in page.inner_text("#explain")
    assert "71\xa0% right: 29 of 41" in page.inner_text("#judged")
    assert "the one in use may have another last layer" in page.inner_text("#judged")
    assert page.locator("#chart circle").count() == 3
    assert "3" in page.inner_text("#device")


def test_a_drawing_can_be_made_by_keys_alone(visit):
    visitor = visit()
    page = visitor.joined()
    page.focus("canvas.paper")
    for key in [*["ArrowUp"] * 6, " ", *["ArrowDown"] * 12, " "]:
        page.keyboard.press(key)
    page.wait_for_selector(".label:enabled")
    assert "up" in page.inner_text("#pen")
    page.keyboard.press("Tab")  # undo
    page.keyboard.press("Tab")  # clear
    page.keyboard.press("Tab")  # the first label
    assert page.evaluate("document.activeElement.querySelector('.word').textContent") == "0"
    page.keyboard.press("Enter")
    page.get_by_text("1 sample,").wait_for()
    page.focus("canvas.paper")
    page.keyboard.press(" ")
    page.keyboard.press("Backspace")
    assert page.locator(".label:enabled").count() == 0
    page.keyboard.press("ArrowUp")  # the pen is up again: nothing is drawn
    assert "up" in page.inner_text("#pen")
    assert visitor.wrong == []


def test_words_are_recorded(visit):
    visitor = visit("words")
    page = visitor.joined()
    page.get_by_role("button", name="Record").click()
    page.get_by_text("It was quiet.").wait_for()  # Chromium's own beeps are too short for a word
    page.locator(".label:enabled", has_text="stop").click()
    page.get_by_text("1 sample,").wait_for()
    guess = next(message for message in visitor.messages() if message["do"] == "guess")
    assert len(guess["x"]) == 61 * 40
    assert (
        len({round(value, 3) for value in guess["x"].values()}) > 20
    )  # the beeps of Chromium's own microphone
    assert visitor.wrong == []


def test_pictures_are_taken(visit):
    visitor = visit("colours")
    page = visitor.joined()
    page.get_by_role("button", name="Use the camera").click()
    page.get_by_role("button", name="Take a picture").click()
    page.locator(".label:enabled", has_text="dog").click()
    page.get_by_text("1 sample,").wait_for()
    red, green, blue = np.array(list(visitor.messages()[-2]["x"].values())).reshape(3, -1).mean(axis=1)
    assert green > red + 1
    assert green > blue + 1  # Chromium's own camera shows green
    assert visitor.wrong == []


def test_pictures_and_arrays_are_taken_from_files(visit, tmp_path):
    x = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8) % 17
    np.savez_compressed(tmp_path / "some.npz", x=x, y=np.array([0, 1, 2, 3, 3, 9]))
    np.savez(tmp_path / "other.npz", x=x[:, :5], y=np.arange(6))
    visitor = visit()
    page = visitor.joined()
    page.click("#files summary")
    page.set_input_files("#files-input", [tmp_path / "some.npz", tmp_path / "other.npz"])
    page.get_by_text(
        "6 samples kept. other.npz: samples are (6,5,8), the task's input is (1,8,8)."
    ).wait_for()
    assert stored(page) == "6"
    page.get_by_label("Delete all of 3", exact=True).click()
    page.click("#sure button[value=yes]")
    page.get_by_text("4 samples").wait_for()
    picture = tmp_path / "five.png"
    page.locator("canvas.paper").screenshot(path=picture)
    page.select_option("#files-label", "5")
    page.set_input_files("#files-input", picture)
    page.get_by_text("5 samples,").wait_for()
    page.set_input_files("#files-input", {"name": "no.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.get_by_text("no.png is no picture that this browser can read").wait_for()
    assert visitor.wrong == []


def test_a_task_of_numbers_takes_numbers_and_one_of_ids_without_a_tokenizer_says_that_it_takes_none(visit):
    page = visit("rows").joined()
    page.fill("#numbers", "1, 2")
    page.get_by_text("2 of 3 numbers").wait_for()
    page.fill("#numbers", "1, 2\n3.5")
    page.locator(".label:enabled", has_text="low").click()
    page.get_by_text("1 sample,").wait_for()
    assert "token ids without a tokenizer" in visit("sentences").joined().inner_text("#teach")


def test_texts_are_written_shown_as_the_model_reads_them_and_guessed_by_their_ids(visit):
    visitor = visit("texts")
    page = visitor.joined()
    page.fill("#text", "a fine film")
    page.locator(".label:enabled", has_text="good").click()
    page.get_by_text("1 sample,").wait_for()
    assert page.inner_text(".thumb.text") == "a fine film"
    guess = next(message for message in visitor.messages() if message["do"] == "guess")
    ids = list(guess["x"].values())
    assert (len(ids), ids[0], ids[-1]) == (12, 2, 1)
    assert page.input_value("#text") == ""
    page.fill("#text", "   ")
    assert page.locator(".label:enabled").count() == 0
    page.reload()
    page.get_by_text("1 sample,").wait_for()
    assert page.inner_text(".thumb.text") == "a fine film"
    assert visitor.wrong == []


MOVE = """async (count) => {
  for (let i = 0; i < count; i++) {
    const reading = { x: i, y: 9.81, z: -i / 2 };
    const event = new DeviceMotionEvent("devicemotion", { accelerationIncludingGravity: reading });
    Object.defineProperty(event, "timeStamp", { value: 50 * i });
    dispatchEvent(event);
  }
}"""
"""Readings as of a sensor that gives 20 a second."""


def test_motion_is_recorded_in_windows_of_the_task_s_length(visit):
    visitor = visit("motion")
    page = visitor.joined()
    page.get_by_text("how many a second, the task does not say").wait_for()
    page.get_by_role("button", name="Record").click()
    page.evaluate(MOVE, 10)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Too short: a sample is 20 readings.").wait_for()
    assert page.locator(".label:enabled").count() == 0
    page.get_by_role("button", name="Record").click()
    page.evaluate(MOVE, 45)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("2 samples recorded. This device gives 20 readings a second.").wait_for()
    page.locator(".label:enabled", has_text="walking").click()
    page.get_by_text("2 samples kept as “walking”").wait_for()
    assert stored(page) == "2"
    guess = next(message for message in visitor.messages() if message["do"] == "guess")
    assert list(guess["x"].values())[:3] == [0, 1, 2]
    assert visitor.wrong == []


def test_motion_is_recorded_at_the_rate_that_the_task_says(visit):
    """31 readings are of 1.5 s, and 76 time steps at 50 a second: three windows of 20."""
    visitor = visit("motion at 50")
    page = visitor.joined()
    page.get_by_text("with gravity; 50 a second").wait_for()
    page.get_by_role("button", name="Record").click()
    page.evaluate(MOVE, 31)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("3 samples recorded.").wait_for()
    page.get_by_text("gives only 20 readings a second, and the task is of 50").wait_for()
    page.locator(".label:enabled", has_text="walking").click()
    page.get_by_text("3 samples kept as “walking”").wait_for()
    guess = next(message for message in visitor.messages() if message["do"] == "guess")
    assert list(guess["x"].values())[:4] == pytest.approx([0, 0.4, 0.8, 1.2])
    assert visitor.wrong == []


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("delete globalThis.DeviceMotionEvent", "This browser reads no motion sensor."),
        ("DeviceMotionEvent.requestPermission = async () => 'denied'", "may not read the motion sensor"),
        ("0", "This device gives no readings of motion"),
    ],
    ids=["missing", "denied", "silent"],
)
def test_a_device_without_motion_says_why(visit, script, text):
    visitor = visit("motion")
    visitor.context.add_init_script(script)
    page = visitor.joined()
    page.get_by_role("button", name="Record").click()
    page.get_by_text(text).wait_for()
    assert page.get_by_role("button", name="Record").is_visible()


def test_readings_that_a_phone_does_not_give_are_refused_in_words(visit):
    page = visit("climate").joined()
    page.get_by_text("readings of heat, light, which the motion sensor of a phone does not give").wait_for()
    assert page.locator("#numbers").is_visible()
