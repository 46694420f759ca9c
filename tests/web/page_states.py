"""States of the page, for its pictures: what the device says, what the person does, the words shown."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .conftest import OPEN
from .seen import HIDE, ONE, SEVEN, keep
from .test_page import MOVE
from .test_page_work_rules import BATTERY, SAVING

Message = dict[str, Any]
TASK = {**OPEN["tasks"][0], "model_bytes": 312_328}
FRESH = {"page_bytes": 13_400_000, "tasks": [TASK]}
SECOND = {"name": "words", "title": "Hear short words", "about": "A model learns to hear yes, no and stop."}
LINKED = {**FRESH, "enrolment": "link"}
TITLE = "Handwritten digits of people who write Devanagari, Bengali, or Arabic numerals"
LONG = {"title": TITLE, "about": 6 * TASK["about"], "ask": 4 * TASK["ask"]}
WRITTEN = {"input": {"shape": [1, 8, 8], "scale": 0.0625, "dtype": "float32"}, "labels": list("0123456789")}
DEAF = """
const get = window.fetch;
const isConfig = (url) => String(url).endsWith("config.json");
window.fetch = (url, options) => (isConfig(url) ? Promise.reject(new TypeError()) : get(url, options));
"""
OFFLINE = "Object.defineProperty(navigator, 'onLine', { value: false });"
REFUSED = """
navigator.mediaDevices.getUserMedia = async () => {
  throw new DOMException("", "NotAllowedError");
};
"""
ASKED = "navigator.mediaDevices.getUserMedia = () => new Promise(() => {});"
FULL = """() => {
IDBObjectStore.prototype.put = function () { this.transaction.abort(); };
const value = new DOMException("", "QuotaExceededError");
Object.defineProperty(IDBTransaction.prototype, "error", { value });
}"""
EVICTED = "indexedDB.deleteDatabase('device-runtime-samples')"
UNSAFE = "Object.defineProperty(globalThis, 'isSecureContext', { value: false });"
OLD = "delete globalThis.DecompressionStream; delete Object.hasOwn;"
TALL = ["needs 91.0 s and has 54.0 s (mostly on the link)", "needs 1100 MB of 512 MB"]


def plan(label: str = "", *whys: str, **more: Any) -> Message:
    """What the device decided on in a round, and why."""
    cost = {"seconds": 4.2, "peakMemoryBytes": 96e6, "bytesUp": 198_000, "bytesDown": 0, "energyJ": 12.5}
    rows = [{"kind": "full", "cost": cost, "taken": False, "why": "; ".join(whys)}]
    chosen = [{"kind": label, "cost": cost, "taken": True, "why": "chosen: the richest that fits"}]
    kind = label.split(" ")[0]
    named = {"type": "plan", "round": 1, "kind": kind, "label": label, "cost": cost if label else None}
    return {**named, "rows": rows + chosen if label else rows, "straggler": True, "verdict": "", **more}


def receipt(status: str, reason: str = "") -> Message:
    return {"type": "receipt", "round": 1, "kind": "entropy-subset", "status": status, "reason": reason}


def press(*names: str) -> Callable[[Any], None]:
    """Press buttons by their names."""

    def do(visitor: Any) -> None:
        for name in names:
            visitor.page.get_by_role("button", name=name, exact=True).click()

    return do


def run(script: str, *arguments: Any) -> Callable[[Any], None]:
    return lambda visitor: visitor.page.evaluate(script, *arguments)


def fill(field: str, text: str, label: str = "") -> Callable[[Any], None]:
    """Write a sample, and keep it if a label is named."""

    def do(visitor: Any) -> None:
        visitor.page.fill(field, text)
        if label:
            visitor.page.locator(".label:enabled", has_text=label).click()
            visitor.page.wait_for_selector(".label:disabled")

    return do


def teach(*labels: str, then: Callable[[Any], Any] | None = None) -> Callable[[Any], None]:
    """Draw and keep a sample of each, and draw another."""

    def do(visitor: Any) -> None:
        for label in labels:
            keep(visitor, ONE if label == "1" else SEVEN, label)
        (then or (lambda visitor: visitor.draw(SEVEN)))(visitor)

    return do


def wait_long(visitor: Any) -> None:
    visitor.page.clock.install()
    visitor.page.clock.fast_forward(25_000)


def second_tab(visitor: Any) -> None:
    visitor.page = visitor.context.new_page()
    visitor.open()


def press_seven(visitor: Any) -> None:
    """Draw a seven, and say what it is, which the page cannot store."""
    visitor.draw(SEVEN)
    visitor.page.locator(".label", has_text="7").first.click()


def bad_files(visitor: Any) -> None:
    """Choose two files that cannot be read."""
    files = [("no.png", "image/png", b"no"), ("holiday-2025-08-31.csv", "text/csv", b"1,2,3")]
    visitor.page.click("#files summary")
    chosen = [{"name": name, "mimeType": kind, "buffer": content} for name, kind, content in files]
    visitor.page.set_input_files("#files-input", chosen)


def update_server(visitor: Any) -> None:
    """The server comes back with a newer version."""
    visitor.pages.config = {**visitor.pages.config, "protocol": 99}
    visitor.page.workers[0].evaluate("postMessage({ type: 'link', connected: true, reason: '' })")


def moved(visitor: Any) -> None:
    """Record two seconds of motion."""
    press("Record")(visitor)
    visitor.page.evaluate(MOVE, 45)
    press("Stop")(visitor)


def deed(first: Callable[[Any], Any], *others: Callable[[Any], Any]) -> Callable[[Any], None]:
    """One after another."""
    return lambda visitor: [step(visitor) for step in (first, *others)] and None


@dataclass(frozen=True)
class State:
    """A state of the page: what the device says after its `case`, what the person does, the words seen then.

    `config`: of the server, above that of the other tests. `script`: runs in the page first. `opens`: the
    page's fragment. `details`: they are open.
    """

    words: str
    case: str = "digits"
    says: tuple[Message, ...] = ()
    do: Callable[[Any], Any] = lambda visitor: None
    config: Message = field(default_factory=lambda: FRESH)
    script: str = ""
    opens: str = ""
    joins: bool = True
    details: bool = False


EMPTY: Message = {"type": "task", "manifest": {**WRITTEN, "name": "digits"}, "examples": 0}
EMPTY |= {"why": "WASM on 2 of 4 threads", "cores": 4, "memoryBytes": 512e6}
OFFER: Message = {"type": "offer", "task": "digits", "run": "r", "round": 5, "done": False, **TASK}
OVER: Message = {**OFFER, "round": 200, "done": True}
ANSWER = "ws://192.168.1.20:8766/mqtt does not answer; trying again"
LOST: Message = {"type": "link", "connected": False, "reason": "the broker does not answer"}
WARNING: Message = {"type": "log", "level": "warning", "text": ANSWER}
STATES = {
    "join": State("Draw", joins=False),
    "join-several": State("Hear short words", joins=False, config={**FRESH, "tasks": [TASK, SECOND]}),
    "join-long": State("Devanagari", joins=False, config={**FRESH, "tasks": [{**TASK, **LONG}]}),
    "join-plain": State("digits", joins=False, config={"tasks": [{"name": "digits"}]}),
    "join-over": State("over", joins=False, config={**FRESH, "tasks": [{**TASK, "over": True}]}),
    "join-saving": State("set to save data", joins=False, script=SAVING),
    "join-link": State("Join", joins=False, opens="#link=s3cret", config=LINKED),
    "link-needed": State("Open the link", joins=False, config=LINKED),
    "link-used": State("used already", joins=False, do=press("Join"), opens="#link=s3cret", config=LINKED),
    "no-network": State("no network", joins=False, script=DEAF + OFFLINE),
    "no-answer": State("does not answer", joins=False, script=DEAF),
    "newer-server": State("newer than this page", joins=False, config={**FRESH, "protocol": 99}),
    "older-server": State("older than this page", joins=False, config={**FRESH, "protocol": 1}),
    "old-browser": State("too old", joins=False, script=OLD),
    "no-https": State("https", joins=False, script=UNSAFE),
    "second-tab": State("another tab", do=second_tab),
    "connecting": State("Connecting", "digits until start"),
    "connecting-teach": State(
        "What is it?", "digits until start", config={**FRESH, "tasks": [{**WRITTEN, "name": "digits"}]}
    ),
    "unreached": State("Waiting for the network", "digits until start", says=(WARNING, LOST), details=True),
    "unreached-long": State("Since", "digits until start", says=(WARNING, LOST), do=wait_long, details=True),
    "asking-task": State("Asking for the task", "digits until link"),
    "fetching": State("Fetching the model", "digits until fetching"),
    "measuring": State(
        "model", "digits until fetching", says=({"type": "fetching", "have": 312_328, "size": 312_328},)
    ),
    "no-samples": State("needs samples", "digits until fetching", says=(EMPTY,)),
    "waiting-others": State("enough devices", "digits until task", says=({**OFFER, "round": 0},)),
    "round-open": State("Round 1 is open", "digits until offer"),
    "round-without-samples": State(
        "no samples here yet", "digits until offer", says=(plan("", reasons=["full has no local data"]),)
    ),
    "training": State("Round 4: working", do=teach("7", "1")),
    "training-details": State("Round 4: working", do=teach("7", "1", "7", "7"), details=True),
    "sent": State("done here, and sent", "digits until made"),
    "counted": State("counted", "digits until receipt"),
    "counted-details": State("counted", "digits until receipt", details=True),
    "late": State("too late", "digits until made", says=(receipt("late"),)),
    "refused": State(
        "refused",
        "digits until made",
        says=(receipt("refused", "its norm is 41.2, more than the 10.0 that the task allows"),),
    ),
    "nothing-sent": State("nothing was sent", says=({"type": "ended", "round": 4},)),
    "resting": State(
        "sits out", "digits until offer", says=(plan("", *TALL, reasons=["rests: 3 rounds"]),), details=True
    ),
    "too-slow": State(
        "sits out",
        "digits until offer",
        says=(plan("", *TALL, reasons=["full needs 91.0 s and has 54.0 s"]),),
        details=True,
    ),
    "class-means": State(
        "averages", "digits until offer", says=(plan("class-means", *TALL, reasons=[]),), details=True
    ),
    "lost": State("Waiting for the network", says=(LOST,)),
    "unloaded": State(
        "did not arrive",
        says=({"type": "unloaded", "text": "ort-wasm-simd-threaded.wasm: 503"},),
        details=True,
    ),
    "stopped": State(
        "has stopped",
        says=({"type": "stopped", "text": "the broker refuses this device's name or password"},),
    ),
    "finished": State("Thank you", says=(OVER,)),
    "finished-details": State("Thank you", says=(OVER,), details=True),
    "paused": State("you paused it", do=press("Details", "Pause")),
    "paused-all": State(
        "save data", do=deed(press("Details", "Pause"), run(HIDE, True)), script=BATTERY + SAVING
    ),
    "hidden": State("hidden", do=run(HIDE, True)),
    "battery": State("battery is low", script=BATTERY),
    "saving": State("set to save data", script=SAVING),
    "new-version": State("newer than this page", do=update_server),
    "full": State("full", do=deed(run(FULL), press_seven)),
    "evicted": State("storage", do=deed(run(EVICTED), press_seven)),
    "samples": State("Stored", do=teach(*"7171117777777777"), details=True),
    "sure": State(
        "Delete all samples of this task", do=teach("7", then=press("Details", "Delete all samples"))
    ),
    "leaving-link": State(
        "A link is good for one browser",
        opens="#link=good",
        config=LINKED,
        do=press("Details", "Leave the task"),
    ),
    "files": State("no picture that this browser", do=bad_files),
    "camera": State("Use the camera", "colours"),
    "camera-on": State("Take a picture", "colours", do=press("Use the camera")),
    "camera-taken": State("It takes this", "colours", do=press("Use the camera", "Take a picture")),
    "camera-refused": State("may not use the camera", "colours", script=REFUSED, do=press("Use the camera")),
    "camera-asked": State("Use the camera", "colours", script=ASKED, do=press("Use the camera")),
    "microphone": State("Record", "words"),
    "microphone-heard": State("It takes this", "words", do=press("Record")),
    "microphone-refused": State("may not use the microphone", "words", script=REFUSED, do=press("Record")),
    "microphone-asked": State("Record", "words", script=ASKED, do=press("Record")),
    "text": State(
        "It takes this",
        "texts",
        do=deed(
            fill("#text", "a fine film", "good"),
            fill("#text", "A film that I would not see again, though its music is good."),
        ),
    ),
    "numbers": State("2 of 3 numbers", "rows", do=fill("#numbers", "1, 2")),
    "motion": State("2 samples recorded", "motion", do=moved),
    "motion-recording": State("Stop", "motion", do=press("Record")),
    "motion-silent": State("no readings of motion", "motion", do=press("Record")),
    "climate": State("readings of heat", "climate"),
    "sentences": State("token ids", "sentences"),
    "many-labels": State(
        "It takes this", "signs", do=teach("7"), config={**FRESH, "tasks": [{"name": "signs"}]}
    ),
    "long-labels": State("Donau", "trades", do=teach("nurse"), details=True),
    "long-texts": State("Devanagari", says=({**OFFER, **LONG},), details=True),
}
"""States of the page by name."""
