"""A Chromium of this machine, and pages in it that note what went wrong and what they asked for."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .props import Props
from .serving_pages import WEB, Pages

PATIENCE_MS = 240_000
HELD = 297
DEVICES = 6
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
DETAILS = """
try {
  const name = "device-runtime details";
  if (localStorage.getItem(name) === null) localStorage.setItem(name, "open");
} catch { /* about:blank has none */ }
"""
"""Opens the details of the page at its first opening, as a person would by a tap."""
SCRIPTED = Path(__file__).parent / "scripted_worker.js"
TOKENIZER = json.loads((WEB / "vectors" / "texts.json").read_text())["byte_pairs"][0]["tokenizer"]
ABOUT = "We teach a model to read digits, for post that machines sort."
ASK = "Draw a digit from 0 to 9, as you would write it on an envelope, and say which one it is."
OPEN: dict[str, Any] = {
    "enrolment": "open",
    "broker": {"url": "ws://127.0.0.1:9", "user": "", "password": ""},
    "key": "",
    "tasks": [{"name": "digits", "title": "Read handwriting", "about": ABOUT, "ask": ASK}],
}


def needs_page() -> None:
    """Skip where the page could not be served whole."""
    pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
    if not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")


@pytest.fixture(scope="module")
def chromium(chromiums: Callable[[Sequence[str]], Any]) -> Any:
    needs_page()
    return chromiums(FLAGS)


@pytest.fixture(scope="session")
def props(tmp_path_factory: pytest.TempPathFactory) -> Props:
    return Props(tmp_path_factory.mktemp("props"))


@pytest.fixture(scope="module")
def studio(chromiums: Callable[[Sequence[str]], Any], props: Props) -> Any:
    """A Chromium of which `props` say what it hears and sees."""
    needs_page()
    return chromiums((*FLAGS, *props.flags))


class Visit:
    """A browser of its own with the page open in it. `wrong`: errors; `asked`: addresses it asked for."""

    def __init__(self, chromium: Any, pages: Pages, **context: Any) -> None:
        self.pages = pages
        self.context = chromium.new_context(permissions=["camera", "microphone"], **context)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(DETAILS)
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.context.on("weberror", lambda error: self.wrong.append(str(error.error)))
        self.context.on(
            "console", lambda line: self.wrong.append(line.text) if line.type == "error" else None
        )
        self.page = self.context.new_page()

    def open(self, fragment: str = "") -> Any:
        self.page.goto(self.pages.url + fragment)
        return self.page

    def reopened(self, fragment: str = "") -> Any:
        """In another tab; the one before is closed."""
        before, self.page = self.page, self.context.new_page()
        before.close()
        return self.open(fragment)

    def joined(self) -> Any:
        """With the task known, and the fourth round begun."""
        page = self.open()
        page.click("#join button")
        page.wait_for_selector("#teach:not([hidden])")
        page.get_by_text("Round 4: working").wait_for()
        return page

    def messages(self) -> list[dict[str, Any]]:
        """To the scripted worker."""
        messages: list[dict[str, Any]] = self.page.workers[0].evaluate(
            "JSON.parse(JSON.stringify(self.asked))"
        )
        return messages

    def draw(self, lines: list[list[tuple[float, float]]]) -> None:
        """Lines of points, as shares of the drawing area."""
        canvas = self.page.locator("canvas.paper")
        canvas.evaluate("e => e.scrollIntoView({ block: 'center' })")
        box = canvas.bounding_box()
        mouse = self.page.mouse
        for line in lines:
            for number, (x, y) in enumerate(line):
                mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=4)
                if number == 0:
                    mouse.down()
            mouse.up()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visit]]:
    """A page with a scripted device, for one of its cases; more goes to the browser's context."""
    visits: list[Visit] = []

    def make(case: str = "digits", **context: Any) -> Visit:
        script = f"self.scripted = {case!r};\nself.tokenizer = {json.dumps(TOKENIZER)};\n"
        script += SCRIPTED.read_text()
        context.setdefault("service_workers", "block")
        visits.append(Visit(chromium, Pages(OPEN, {}, {"/join/worker.js": script}), **context))
        return visits[-1]

    yield make
    for visitor in visits:
        visitor.context.close()
        visitor.pages.shutdown()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Handwritten digits: a file for each of six devices, and one to evaluate on."""
    dataset = pytest.importorskip("sklearn.datasets", reason="needs pip install scikit-learn").load_digits()
    folder = tmp_path_factory.mktemp("digits")
    order = np.random.default_rng(0).permutation(len(dataset.target))
    x, y = dataset.images.astype(np.uint8)[order], dataset.target[order]
    np.savez(folder / "held.npz", x=x[:HELD], y=y[:HELD])
    for number in range(DEVICES):
        rows = slice(HELD + number, None, DEVICES)
        np.savez(folder / f"{number}.npz", x=x[rows], y=y[rows])
    return folder
