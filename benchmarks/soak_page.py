"""A page that takes part in a soak run: a Chromium of its own, whose connections all pass through a proxy.

It is reloaded, hidden, frozen as phones freeze a page, taken off the network, crashed and killed. What the
page hears from the aggregator stays in the browser's storage until `sync` writes it to the log of a device.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Error, Playwright

from tests.network import Proxy
from tests.web.seen import HIDE

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
WAYS = {"reload": 6, "hide": 3, "freeze": 2, "offline": 4, "crash": 1, "kill": 1}
"""What is done to a page, and how often beside the others."""
PATIENCE_MS, CALM_LOOKS, ATTEMPTS = 60_000, 60, 120
LOG = "soak log"
STORE_LOG = f"""{{
  const Plain = Worker;
  globalThis.Worker = class extends Plain {{
    constructor(...words) {{
      super(...words);
      this.addEventListener("message", ({{ data }}) => {{
        if (data.type === "log") localStorage[{LOG!r}] = (localStorage[{LOG!r}] ?? "") + data.text + "\\n";
      }});
    }}
  }};
}}"""
TAKEN_LOG = f"""() => {{
  const text = localStorage[{LOG!r}] ?? "";
  localStorage.removeItem({LOG!r});
  return text;
}}"""
OUTBOX = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("device-runtime");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const database = opening.result;
    const files = database.transaction("files").objectStore("files");
    const range = IDBKeyRange.bound("outbox/0", "outbox/9\\uffff");
    const [keys, values] = [files.getAllKeys(range), files.getAll(range)];
    files.transaction.oncomplete = () => {
      database.close();
      resolve(keys.result.map((key, i) => [key, [...values.result[i]]]));
    };
  };
})"""
HELPED = "JSON.parse(localStorage['device-runtime helped'] ?? '[0]')[0]"


class Page:
    """A device of this name in a browser, with the samples of a file; what it stores is in `folder`."""

    def __init__(self, name: str, playwright: Playwright, proxy: Proxy, samples: Path) -> None:
        self.name, self.folder = name, samples.with_suffix("")
        self.log = samples.with_suffix(".log")
        self._playwright, self._proxy, self._samples = playwright, proxy, samples
        self.helped = 0
        """In how many rounds, as the page says."""
        self._context: Any = None
        self._page: Any = None

    def start(self) -> None:
        """Open the browser, and join with the samples at the first start."""
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        self._context = self._playwright.chromium.launch_persistent_context(
            self.folder / "browser", executable_path=program, args=FLAGS
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.add_init_script(STORE_LOG)
        self._open(self._context.pages[0])
        self._page.wait_for_selector("#join:not([hidden]), #teach:not([hidden])")
        if self._page.is_hidden("#join"):
            return
        self._page.fill("#name", self.name)
        self._page.click("#join button")
        self._page.wait_for_selector("#teach:not([hidden])")
        self._page.click("#files summary")
        self._page.set_input_files("#files-input", self._samples)
        while not self._page.evaluate("document.querySelector('#totals').textContent.trim()"):
            self._page.wait_for_timeout(100)

    def _open(self, page: Any) -> None:
        self._page = page
        for _ in range(ATTEMPTS):
            with suppress(Error):  # Chromium may be reloading a page that did not come, by itself
                page.goto(f"http://127.0.0.1:{self._proxy.port}/join/", wait_until="commit")
                return
            page.wait_for_timeout(500)
        raise RuntimeError(f"{self.name}: the page does not open again")

    def disturb(self, draw: random.Random) -> str:
        """Disturb the page in one of WAYS, in a third of cases after its next contribution; returns which."""
        if draw.random() < 1 / 3:
            for _ in range(CALM_LOOKS):
                if self._evaluated(HELPED) > self.helped:
                    break
                self._page.wait_for_timeout(500)
            self._page.wait_for_timeout(draw.uniform(0, 1000))
        self.sync()
        way = draw.choices(list(WAYS), list(WAYS.values()))[0]
        try:
            getattr(self, f"_{way}")(draw)
        except Error:  # it was navigating, or is gone
            self._proxy.refuses = False
            self._another()
        return way

    def _another(self) -> None:
        """The page in another tab."""
        before = self._page
        self._open(self._context.new_page())
        before.close()

    def _reload(self, draw: random.Random) -> None:
        """Once, or again and again before it has loaded."""
        for _ in range(draw.choice([1, 1, 2, 5])):
            self._page.reload(wait_until="commit")
            self._page.wait_for_timeout(draw.uniform(0, 400))

    def _hide(self, draw: random.Random) -> None:
        self._page.evaluate(HIDE, True)
        self._page.wait_for_timeout(draw.uniform(0, 2500))
        if draw.random() < 0.3:
            self._page.reload(wait_until="commit")
        else:
            self._page.evaluate(HIDE, False)

    def _freeze(self, draw: random.Random) -> None:
        session = self._context.new_cdp_session(self._page)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        self._context.pages[0].wait_for_timeout(draw.uniform(0, 2500))
        session.send("Page.setWebLifecycleState", {"state": "active"})
        session.detach()

    def _offline(self, draw: random.Random) -> None:
        """The connections end, or nothing passes through them any more; others are refused."""
        (self._proxy.cut if draw.random() < 0.5 else self._proxy.freeze)()
        self._proxy.refuses = True
        self._page.wait_for_timeout(draw.uniform(0, 2500))
        if draw.random() < 0.3:
            with suppress(Error):  # nothing answers, where the page is not kept yet
                self._page.reload(wait_until="commit", timeout=5000)
        self._page.wait_for_timeout(draw.uniform(0, 500))
        self._proxy.refuses = False
        self._proxy.cut()
        if not self._page.evaluate("location.protocol").startswith("http"):
            self._open(self._page)

    def _crash(self, draw: random.Random) -> None:
        with suppress(Error):
            self._page.goto("chrome://crash")
        self._another()

    def _kill(self, draw: random.Random) -> None:
        """The browser, as a phone does that runs short of memory."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if f"--user-data-dir={self.folder / 'browser'}" in process.cmdline():
                    process.kill()
        with suppress(Error):
            self._context.close()
        self.start()

    def sync(self) -> None:
        """Write the page's new log lines and its outbox to files, as a device does."""
        if self._context is None:
            return
        with self.log.open("a") as out:
            out.write(self._evaluated(TAKEN_LOG))
        shutil.rmtree(self.folder / "outbox", ignore_errors=True)
        for key, content in self._evaluated(OUTBOX):
            path = self.folder / f"{key}.msg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(content))
        self.helped = int(self._evaluated(HELPED))

    def _evaluated(self, script: str) -> Any:
        """In the page, once it is there."""
        for _ in range(ATTEMPTS):
            with suppress(Error):
                return self._page.evaluate(script)
            self._page.wait_for_timeout(500)
        self._another()
        return self._page.evaluate(script)

    def close(self) -> None:
        """End it in order."""
        self.sync()
        self._context.close()
        self._context = None
        self._proxy.close()
