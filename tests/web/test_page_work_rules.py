"""When the page's device works, and when the screen stays on, in a real Chromium."""

from .seen import HIDE


def test_a_hidden_page_and_its_owner_pause_the_device(visit):
    visitor = visit()
    page = visitor.joined()
    page.click("#pause")
    page.get_by_text("Paused: you paused it.").wait_for()
    assert page.get_attribute("#pause", "aria-pressed") == "true"
    page.evaluate(HIDE, True)
    page.get_by_text("Paused: you paused it, the page is hidden.").wait_for()
    page.evaluate(HIDE, False)
    page.click("#pause")
    page.get_by_text("Round 4: working").wait_for()
    commands = [(message["do"], message["why"]) for message in visitor.messages() if "why" in message]
    hidden, owner = "the page is hidden", "you paused it"
    assert commands == [("pause", owner), ("pause", hidden), ("resume", hidden), ("resume", owner)]


def test_a_device_that_comes_back_in_a_hidden_page_has_its_board(visit):
    visitor = visit()
    visitor.joined()
    hide = "Object.defineProperty(document, 'hidden', { configurable: true, value: true })"
    visitor.context.add_init_script(hide)
    page = visitor.reopened()
    page.get_by_text("Paused: the page is hidden.").wait_for()
    assert page.locator("#pause").is_visible()
    assert visitor.wrong == []


BATTERY = """
const battery = Object.assign(new EventTarget(), { level: 0.15, charging: false });
Object.defineProperty(navigator, "getBattery", { value: async () => battery });
globalThis.plug = () => { battery.charging = true; battery.dispatchEvent(new Event("chargingchange")); };
"""


def test_a_low_battery_pauses_the_device_until_it_is_plugged_in(visit):
    visitor = visit()
    visitor.context.add_init_script(BATTERY)
    page = visitor.open()
    page.click("#join button")
    page.get_by_text("Paused: the battery is low.").wait_for()
    page.evaluate("plug()")
    page.get_by_text("Round 4: working").wait_for()
    batteries = [message for message in visitor.messages() if message["do"] == "battery"]
    assert [(message["percent"], message["plugged"]) for message in batteries] == [(15, False), (15, True)]


SAVING = """
const connection = Object.assign(new EventTarget(), { saveData: true, type: "cellular" });
Object.defineProperty(navigator, "connection", { value: connection });
globalThis.spend = () => { connection.saveData = false; connection.dispatchEvent(new Event("change")); };
"""


def test_a_browser_that_saves_data_loads_nothing_ahead_and_pauses_the_device(visit):
    visitor = visit()
    visitor.context.add_init_script(SAVING)
    page = visitor.open()
    page.get_by_text("Your browser is set to save data: nothing is computed or sent").wait_for()
    assert not [url for url in visitor.requests if url.endswith(".wasm")]
    page.click("#join button")
    page.get_by_text("Paused: the browser is set to save data.").wait_for()
    assert page.inner_text("#data").startswith("This is a mobile network, which may cost money.")
    page.evaluate("spend()")
    page.get_by_text("Round 4: working").wait_for()
    assert not page.inner_text("#data").endswith("as it is now.")


def test_the_screen_stays_on_while_a_round_is_worked_on(visit):
    visitor = visit()
    visitor.context.add_init_script(
        "globalThis.locks = []; navigator.wakeLock.request = async (what) => { locks.push(what); "
        "return Object.assign(new EventTarget(), { release: async () => locks.push('released') }); }"
    )
    page = visitor.joined()
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
    visitor = visit()
    page = visitor.joined()
    locks = page.evaluate(
        """async () => {
          const { PageWorkRules } = await import("./work_rules.js");
          const held = new Set();
          const asked = [];
          navigator.wakeLock.request = () => new Promise((resolve) => asked.push(() => {
            const lock = Object.assign(new EventTarget(), { release: async () => held.delete(lock) });
            held.add(lock);
            resolve(lock);
          }));
          const none = () => {};
          const rules = new PageWorkRules({ pause: none, resume: none, battery: none, said: none });
          const said = [rules.training(true), rules.training(true), rules.training(false)];
          for (const give of asked) give();
          await Promise.all(said);
          return [asked.length, held.size];
        }"""
    )
    assert locks == [1, 0]
