"""A page whose device breaks, warns, or does not come, in a real Chromium."""

import pytest

pytestmark = pytest.mark.slow


def test_a_device_that_is_not_connected_for_long_says_since_when(visit):
    visitor = visit("unreached")
    visitor.page.clock.install()
    page = visitor.open()
    page.click("#join button")
    page.get_by_text("no broker answers").wait_for()
    assert page.inner_text("#waiting") == ""
    page.clock.fast_forward(60_000)
    page.get_by_text("this device has waited for a connection. What you teach it is kept here").wait_for()
    assert page.inner_text("#connection") == "connecting …"


def test_what_the_device_warns_of_is_shown_as_it_is_and_never_becomes_markup(visit):
    visitor = visit()
    page = visitor.joined()
    text = "ignored: <img src=x onerror=alert(1)> is not signed by the aggregator"
    page.workers[0].evaluate("(text) => postMessage({ type: 'log', level: 'warning', text })", text)
    page.get_by_text(f"{text}.").wait_for()
    assert page.locator("#notice *").count() == 0
    assert visitor.wrong == []


def test_a_device_that_breaks_says_so(visit):
    visitor = visit()
    page = visitor.joined()
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
    visitor = visit()
    visitor.page.clock.install()
    visitor.pages.instead["/join/worker.js"] = LOADS
    path = f"/join/vendor/ort/{missing}"
    visitor.pages.failing.add(path)
    page = visitor.open()
    page.click("#join button")
    page.click("#pause")
    trouble = "A part of the page did not arrive. Trying again in"
    page.get_by_text("Paused: you paused it.").wait_for()
    page.get_by_text("its WASM build: ").wait_for()
    page.click("#pause")
    page.get_by_text(f"{trouble} 2.0 s").wait_for()
    assert page.inner_text("#connection") == "offline"
    page.clock.fast_forward(2_000)
    page.get_by_text(f"{trouble} 4.0 s").wait_for()
    visitor.pages.failing.clear()
    page.clock.fast_forward(4_000)
    page.get_by_text("it computes by WASM").wait_for()
    assert [message["do"] for message in visitor.messages() if message["do"] != "battery"] == ["start"]


def test_a_device_whose_own_program_does_not_come_is_begun_again_and_is_still_paused(visit):
    visitor = visit()
    visitor.page.clock.install()
    visitor.pages.failing.add("/join/worker.js")
    page = visitor.open()
    page.click("#join button")
    page.get_by_text("did not arrive. Trying again in 2.0 s").wait_for()
    page.click("#pause")
    visitor.pages.failing.clear()
    page.clock.fast_forward(2_000)
    page.wait_for_selector("#teach:not([hidden])")
    commands = [message for message in visitor.messages() if message["do"] in ("start", "pause")]
    assert [(command["do"], command.get("why")) for command in commands] == [
        ("start", None),
        ("pause", "you paused it"),
    ]
    page.click("#pause")
    page.get_by_text("Round 4: working").wait_for()


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


def test_samples_that_the_browser_does_not_give_are_said_to_be_so(visit):
    visitor = visit()
    visitor.context.add_init_script(
        "IDBObjectStore.prototype.getAllKeys = () => { throw new Error('its files are damaged'); }"
    )
    page = visitor.open()
    page.click("#join button")
    page.get_by_text("its files are damaged").wait_for()
    assert page.locator("#board").is_visible()


def test_what_is_put_on_the_browsers_disk_is_there_when_it_is_opened_again(visit):
    page = visit().open()
    whole, none, named, left, empty, refused, after = page.evaluate(DISK)
    assert (whole, none, named) == ([1, 2, 3], None, ["a/1", "a/2"])
    assert (left, empty) == (["a/2", "b/1"], 0)
    assert refused.startswith("DiskError: the browser's storage is closed")
    assert after == []
