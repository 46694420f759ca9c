"""The page in a real Chromium, on a scripted device: what it shows, keeps, deletes and asks for."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from broker.enrolment import Enrolment

SEVEN = [[(0.25, 0.15), (0.8, 0.15), (0.45, 0.9)]]
ONE = [[(0.5, 0.1), (0.5, 0.9)]]
CONTRAST = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).map(Number);
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return colour.startsWith("rgb(") || !node.parentElement ? colour : ground(node.parentElement);
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!words || !node.getClientRects().length || node.closest(":disabled, svg")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


def stored(page):
    """How many samples the page says that it keeps."""
    return page.inner_text("#totals").split()[0]


def keep(one, lines, label):
    one.draw(lines)
    one.page.locator(".label:enabled", has_text=label).first.click()
    one.page.wait_for_selector(".label:disabled")


def test_what_is_drawn_is_kept_here_guessed_and_deleted_and_goes_nowhere(visit):
    one = visit()
    page = one.joined()
    assert page.inner_text("#connection") == "connected"
    assert stored(page) == "Nothing"
    one.draw(SEVEN)
    page.get_by_text("It takes this for “7” (91 %).").wait_for()
    page.locator(".label", has_text="7").first.click()
    keep(one, ONE, "1")
    keep(one, [[(0.3, 0.2), (0.7, 0.2), (0.4, 0.8)]], "7")
    assert stored(page) == "3"
    assert page.locator("#folders > li").count() == 2
    assert "7" in page.locator("#folders > li").nth(1).inner_text()
    guess = next(said for said in one.said() if said["do"] == "guess")
    assert len(guess["x"]) == 64
    changed = [said["keys"] for said in one.said() if said["do"] == "samples"]
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
    assert all(url.startswith(one.pages.origin) for url in one.asked)
    assert one.wrong == []


FOCUSED = "document.activeElement.ariaLabel ?? document.activeElement.textContent"


def test_who_deletes_by_keys_is_led_to_the_next_sample_and_at_last_to_the_heading(visit):
    one = visit()
    page = one.joined()
    for label in ("7", "7", "7", "1"):
        keep(one, SEVEN if label == "7" else ONE, label)
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


def test_nothing_is_said_of_a_connection_before_somebody_joins(visit):
    one = visit("unreached")
    page = one.open()
    page.wait_for_selector("#join:not([hidden])")
    assert page.locator("#connection").is_hidden()
    page.click("#join button")
    page.get_by_text("connecting …", exact=True).wait_for()


def test_the_labels_stay_where_they_are_when_the_model_says_what_it_takes_a_drawing_for(visit):
    one = visit(viewport={"width": 1280, "height": 800})
    page = one.joined()
    place = "document.querySelector('#labels').getBoundingClientRect().top + scrollY"
    before = page.evaluate(place)
    keep(one, SEVEN, "7")
    one.draw(SEVEN)
    page.get_by_text("It takes this for “7”").wait_for()
    assert page.evaluate(place) == pytest.approx(before, abs=1)


def test_a_label_that_is_pressed_twice_keeps_what_was_drawn_once(visit):
    one = visit()
    page = one.joined()
    one.draw(SEVEN)
    seven = page.locator(".label:enabled", has_text="7").first
    seven.evaluate("button => { button.click(); button.click(); }")
    page.wait_for_selector(".label:disabled")
    page.get_by_text("1 sample").first.wait_for()
    assert stored(page) == "1"
    assert not page.locator("#trouble").is_visible()
    assert one.wrong == []


def test_a_device_that_is_not_connected_for_long_says_since_when(visit):
    one = visit("unreached")
    one.page.clock.install()
    page = one.open()
    page.click("#join button")
    page.get_by_text("no broker answers").wait_for()
    assert page.inner_text("#waiting") == ""
    page.clock.fast_forward(60_000)
    page.get_by_text("this device has waited for a connection. What you teach it is kept here").wait_for()
    assert page.inner_text("#connection") == "connecting …"


def test_the_page_says_what_is_trained_why_and_what_is_sent(visit):
    page = visit().joined()
    now = page.inner_text("section[aria-labelledby=now-head]")
    for said in (
        "trains the upper part of the model on those of your samples that it is least sure of",
        "4.2 s",
        "13 J",
        "198 kB, 49,400 numbers: the upper part of the model after training",
    ):
        assert said in now
    assert page.locator("#progress").evaluate("bar => bar.value") == pytest.approx(0.4)
    page.click("#explain summary")
    assert "too much for this device this time (needs 91.0 s, 54.0 s are left)" in page.inner_text("#verdict")
    rows = page.locator("#rows tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert "needs 91.0 s, 54.0 s are left" in rows[0]
    assert "estimates" in page.inner_text("#explain")
    assert "71\xa0% right: 29 of 41" in page.inner_text("#judged")
    assert page.locator("#chart circle").count() == 3
    assert "3" in page.inner_text("#device")


def test_a_drawing_can_be_made_by_keys_alone(visit):
    one = visit()
    page = one.joined()
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


def test_words_are_recorded(visit):
    one = visit("words")
    page = one.joined()
    page.get_by_role("button", name="Record").click()
    page.get_by_text("It was quiet.").wait_for()  # Chromium's own beeps are too short for a word
    page.locator(".label:enabled", has_text="stop").click()
    page.get_by_text("1 sample,").wait_for()
    guess = next(said for said in one.said() if said["do"] == "guess")
    assert len(guess["x"]) == 61 * 40
    assert (
        len({round(value, 3) for value in guess["x"].values()}) > 20
    )  # the beeps of Chromium's own microphone
    assert one.wrong == []


def test_pictures_are_taken(visit):
    one = visit("colours")
    page = one.joined()
    page.get_by_role("button", name="Use the camera").click()
    page.get_by_role("button", name="Take a picture").click()
    page.locator(".label:enabled", has_text="dog").click()
    page.get_by_text("1 sample,").wait_for()
    red, green, blue = np.array(list(one.said()[-2]["x"].values())).reshape(3, -1).mean(axis=1)
    assert green > red + 1
    assert green > blue + 1  # Chromium's own camera shows green
    assert one.wrong == []


def test_pictures_and_arrays_are_taken_from_files(visit, tmp_path):
    x = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8) % 17
    np.savez_compressed(tmp_path / "some.npz", x=x, y=np.array([0, 1, 2, 3, 3, 9]))
    np.savez(tmp_path / "other.npz", x=x[:, :5], y=np.arange(6))
    one = visit()
    page = one.joined()
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
    assert one.wrong == []


def test_a_task_of_numbers_takes_numbers_and_one_of_texts_says_that_it_takes_none(visit):
    page = visit("rows").joined()
    page.fill("#numbers", "1, 2")
    page.get_by_text("2 of 3 numbers").wait_for()
    page.fill("#numbers", "1, 2\n3.5")
    page.locator(".label:enabled", has_text="low").click()
    page.get_by_text("1 sample,").wait_for()
    assert "texts, which this page cannot take yet" in visit("sentences").joined().inner_text("#teach")


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_page_and_its_owner_pause_the_device(visit):
    one = visit()
    page = one.joined()
    page.click("#pause")
    page.get_by_text("Paused: you paused it.").wait_for()
    assert page.get_attribute("#pause", "aria-pressed") == "true"
    page.evaluate(HIDE, True)
    page.get_by_text("Paused: you paused it, the page is hidden.").wait_for()
    page.evaluate(HIDE, False)
    page.click("#pause")
    page.get_by_text("Round 4: working").wait_for()
    told = [(said["do"], said["why"]) for said in one.said() if "why" in said]
    hidden, owner = "the page is hidden", "you paused it"
    assert told == [("pause", owner), ("pause", hidden), ("resume", hidden), ("resume", owner)]


BATTERY = """
const battery = Object.assign(new EventTarget(), { level: 0.15, charging: false });
Object.defineProperty(navigator, "getBattery", { value: async () => battery });
globalThis.plug = () => { battery.charging = true; battery.dispatchEvent(new Event("chargingchange")); };
"""


def test_a_low_battery_pauses_the_device_until_it_is_plugged_in(visit):
    one = visit()
    one.context.add_init_script(BATTERY)
    page = one.open()
    page.click("#join button")
    page.get_by_text("Paused: the battery is low.").wait_for()
    page.evaluate("plug()")
    page.get_by_text("Round 4: working").wait_for()
    batteries = [said for said in one.said() if said["do"] == "battery"]
    assert [(said["percent"], said["plugged"]) for said in batteries] == [(15, False), (15, True)]


def test_the_screen_stays_on_while_a_round_is_worked_on(visit):
    one = visit()
    one.context.add_init_script(
        "globalThis.locks = []; navigator.wakeLock.request = async (what) => { locks.push(what); "
        "return Object.assign(new EventTarget(), { release: async () => locks.push('released') }); }"
    )
    page = one.joined()
    last = "() => new Promise((resolve) => setTimeout(() => resolve(locks.at(-1))))"
    assert page.evaluate(last) == "screen"
    page.evaluate(HIDE, True)
    assert page.evaluate(last) == "released"
    page.evaluate(HIDE, False)
    assert page.evaluate(last) == "screen"
    page.click("#pause")
    assert page.evaluate(last) == "released"
    page.click("#pause")
    assert page.evaluate(last) == "screen"
    page.workers[0].evaluate("() => postMessage({ type: 'ended', round: 4 })")  # without an update
    page.get_by_text("Round 4: nothing was sent.").wait_for()
    assert page.evaluate(last) == "released"
    assert page.locator("#progress").is_hidden()


def test_the_screen_is_kept_on_once_and_let_go_though_the_browser_took_its_time(visit):
    one = visit()
    page = one.joined()
    held = page.evaluate(
        """async () => {
          const { Manners } = await import("./manners.js");
          const held = new Set();
          const asked = [];
          navigator.wakeLock.request = () => new Promise((resolve) => asked.push(() => {
            const lock = Object.assign(new EventTarget(), { release: async () => held.delete(lock) });
            held.add(lock);
            resolve(lock);
          }));
          const none = () => {};
          const manners = new Manners({ pause: none, resume: none, battery: none, said: none });
          const said = [manners.training(true), manners.training(true), manners.training(false)];
          for (const give of asked) give();
          await Promise.all(said);
          return [asked.length, held.size];
        }"""
    )
    assert held == [1, 0]


def test_whoever_leaves_or_deletes_everything_is_asked_to_join_again(visit):
    one = visit()
    page = one.joined()
    keep(one, SEVEN, "7")
    page.click("#leave")
    page.wait_for_selector("#join:not([hidden])")
    page.click("#join button")
    page.get_by_text("1 sample,").wait_for()  # leaving deletes no samples
    page.click("#forget")
    page.click("#sure button[value=yes]")
    page.wait_for_selector("#join:not([hidden])")
    page.click("#join button")
    page.get_by_text("Nothing is stored yet").wait_for()


def test_a_second_tab_does_not_become_the_same_device_again(visit):
    one = visit()
    one.joined()
    other = one.context.new_page()
    other.goto(one.pages.url)
    other.get_by_text("This device is open in another tab").wait_for()
    assert other.locator("#board").is_hidden()


def test_what_the_device_warns_of_is_shown_as_it_is_and_never_becomes_markup(visit):
    one = visit()
    page = one.joined()
    text = "ignored: <img src=x onerror=alert(1)> is not signed by the aggregator"
    page.workers[0].evaluate("(text) => postMessage({ type: 'log', level: 'warning', text })", text)
    page.get_by_text(f"{text}.").wait_for()
    assert page.locator("#notice *").count() == 0
    assert one.wrong == []


def test_a_device_that_breaks_says_so(visit):
    one = visit()
    page = one.joined()
    page.workers[0].evaluate("setTimeout(() => { throw new Error('out of memory') })")
    page.get_by_text("The device has stopped").wait_for()
    assert "out of memory" in page.inner_text("#trouble")


LOADS = """
import { wasmRuntime } from "./device/runtime.js";
self.asked = [];
onmessage = async ({ data }) => {
  self.asked.push(data);
  if (data.do !== "start") return;
  await wasmRuntime().then(
    ({ why }) => postMessage({ type: "log", level: "warning", text: `it computes by ${why}` }),
    ({ message }) => postMessage({ type: "unloaded", text: message }),
  );
};
"""


@pytest.mark.parametrize(
    "missing", ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]
)
def test_a_runtime_that_does_not_come_is_loaded_again_and_the_page_says_so(visit, missing):
    one = visit()
    one.page.clock.install()
    one.pages.instead["/join/worker.js"] = LOADS
    path = f"/join/vendor/ort/{missing}"
    one.pages.failing.add(path)
    page = one.open()
    page.click("#join button")
    page.click("#pause")
    said = "A part of this page's program could not be loaded. Trying again in"
    page.get_by_text("Paused: you paused it.").wait_for()
    page.get_by_text("its WASM build: ").wait_for()
    page.click("#pause")
    page.get_by_text(f"{said} 2.0 s").wait_for()
    assert page.inner_text("#connection") == "offline"
    page.clock.fast_forward(2_000)
    page.get_by_text(f"{said} 4.0 s").wait_for()
    one.pages.failing.clear()
    page.clock.fast_forward(4_000)
    page.get_by_text("it computes by WASM").wait_for()
    assert [told["do"] for told in one.said() if told["do"] != "battery"] == ["start"]


def test_a_device_whose_own_program_does_not_come_is_begun_again_and_is_still_paused(visit):
    one = visit()
    one.page.clock.install()
    one.pages.failing.add("/join/worker.js")
    page = one.open()
    page.click("#join button")
    page.get_by_text("could not be loaded. Trying again in 2.0 s").wait_for()
    page.click("#pause")
    one.pages.failing.clear()
    page.clock.fast_forward(2_000)
    page.wait_for_selector("#teach:not([hidden])")
    told = [told for told in one.said() if told["do"] in ("start", "pause")]
    assert [(said["do"], said.get("why")) for said in told] == [("start", None), ("pause", "you paused it")]
    page.click("#pause")
    page.get_by_text("Round 4: working").wait_for()


def test_without_the_link_that_a_task_asks_for_nobody_is_let_in(visit):
    one = visit()
    one.pages.config = {**one.pages.config, "enrolment": "link"}
    page = one.open()
    page.get_by_text("Open the link, or scan the code").wait_for()
    assert page.locator("#join").is_hidden()


def test_a_link_is_used_once_leaves_the_address_bar_and_is_remembered_as_a_token(visit):
    token = Enrolment("wss://localhost:9/mqtt", "browser-3f", "secret", b"", bytes(32), 1).token
    one = visit()
    one.pages.config = {**one.pages.config, "enrolment": "link"}
    one.pages.tokens["s3cret"] = token
    page = one.open("#link=s3cret")
    page.wait_for_selector("#join:not([hidden])")
    assert page.url == one.pages.url
    assert page.locator("#naming").is_hidden()
    page.reload()  # before it was used: nothing is lost
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    settings = one.said()[0]["settings"]
    assert (settings["name"], settings["token"]) == ("browser-3f", token)
    assert "browser-3f" in page.inner_text("#device")
    page.reload()
    page.get_by_text("Round 4: working").wait_for()
    assert one.said()[0]["settings"] == settings
    assert len(one.pages.claims["s3cret"]) == 64
    page = one.reopened("#link=s3cret")  # the code is read once more
    page.get_by_text("Round 4: working").wait_for()
    assert one.said()[0]["settings"] == settings
    assert one.wrong == []


def test_a_link_whose_answer_was_lost_with_its_tab_is_this_browser_s_still(visit):
    token = Enrolment("wss://localhost:9/mqtt", "browser-3f", "secret", b"", bytes(32), 1).token
    one = visit()
    one.pages.config = {**one.pages.config, "enrolment": "link"}
    page = one.open("#link=s3cret")
    page.click("#join button")
    page.get_by_text("The server says no (410)").wait_for()  # which the claim has reached
    one.pages.tokens["s3cret"] = token
    page = one.reopened("#link=s3cret")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    assert one.said()[0]["settings"]["token"] == token


def test_another_link_stands_over_what_is_remembered_and_a_token_is_a_link_too(visit):
    first, second, third = (
        Enrolment("wss://localhost:9/mqtt", name, "secret", b"", bytes(32), 1).token
        for name in ("browser-1", "browser-2", "browser-3")
    )
    one = visit()
    one.pages.config = {**one.pages.config, "enrolment": "link"}
    one.pages.tokens |= {"one": first, "two": second}
    for fragment, token in (("#link=one", first), ("#link=two", second), (f"#{third}", third), ("", third)):
        page = one.reopened(fragment)
        if fragment:
            page.click("#join button")
        page.get_by_text("Round 4: working").wait_for()
        assert one.said()[0]["settings"]["token"] == token
        assert page.url == one.pages.url


def test_a_link_that_another_browser_has_used_is_refused_with_the_reason(visit):
    one = visit()
    one.pages.config = {**one.pages.config, "enrolment": "link"}
    one.pages.tokens["s3cret"] = "fl1.none"
    one.pages.claims["s3cret"] = "another"
    page = one.open("#link=s3cret")
    page.click("#join button")
    page.get_by_text("The server says no (410): this link was used already.").wait_for()
    assert page.locator("#join").is_visible()


TOUCHED = "button:visible, input:visible, select:visible, summary:visible"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 740), (1280, 800)], ids=["phone", "desk"])
def test_the_page_fits_phone_and_desk_can_be_read_and_each_control_has_a_name(visit, size, scheme, tmp_path):
    one = visit(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = one.open()
    page.wait_for_selector("#join:not([hidden])")
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"join-{size[0]}-{scheme}.png")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    keep(one, SEVEN, "7")
    one.draw(ONE)
    page.wait_for_selector(".label.best")
    for summary in ("#explain", "#files", "#chart details"):
        page.locator(f"{summary} summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 40
    assert [one for one in ratios if one[0] < 4.5] == []
    for element in page.locator("button:visible, input:visible, select:visible, canvas:visible").all():
        assert element.evaluate("e => Boolean(e.labels?.length || e.ariaLabel || e.textContent.trim())")
    for element in page.locator(TOUCHED).all():
        box = element.bounding_box()
        assert min(box["width"], box["height"]) >= 44, element.evaluate("e => e.outerHTML")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=pictures / f"page-{size[0]}-{scheme}.png", full_page=True)
    assert one.wrong == []


def test_no_file_of_the_page_names_another_place():
    web = Path(__file__).parents[2] / "web"
    names = [*web.glob("page/*"), *web.glob("device/**/*.js"), *web.glob("*.js")]
    assert len(names) > 40
    for path in names:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
    assert json.loads((web / "package.json").read_text())["type"] == "module"


DISK = """async () => {
  const { openDisk, deleteDisk } = await import("/join/page/disk_indexeddb.js");
  const disk = await openDisk("of-a-test");
  const bytes = Uint8Array.of(0, 1, 2, 3).subarray(1);
  await disk.put("a/1", bytes);
  bytes[0] = 9;
  await disk.put("a/2", Uint8Array.of(4));
  await disk.put("b/1", new Uint8Array(0));
  const found = [[...(await disk.get("a/1"))], await disk.get("a/3"), (await disk.keys("a/")).sort()];
  await disk.delete("a/1");
  await disk.delete("a/3");
  disk.close();
  const again = await openDisk("of-a-test");
  found.push((await again.keys()).sort(), (await again.get("b/1")).length);
  again.close();
  const refused = await again.get("b/1").catch((error) => `${error.name}: ${error.message}`);
  await deleteDisk("of-a-test");
  const none = await openDisk("of-a-test");
  return [...found, refused, await none.keys()];
}"""


def test_what_is_put_on_the_browsers_disk_is_there_when_it_is_opened_again(visit):
    page = visit().open()
    whole, none, named, left, empty, refused, after = page.evaluate(DISK)
    assert (whole, none, named) == ([1, 2, 3], None, ["a/1", "a/2"])
    assert (left, empty) == (["a/2", "b/1"], 0)
    assert refused.startswith("DiskError: the browser's storage is closed")
    assert after == []
