"""A picture of the join page, as docs/browser.png: two browsers as narrow as a phone, light and dark.

    .venv/bin/python benchmarks/join_picture.py docs/browser.png    # about a minute

A real `serve --web`, and two Chromiums with 240 handwritten digits each. After some rounds a digit is drawn
in each; nothing in the picture is made up.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from join_page import FLAGS, SAMPLES, Service, chromium
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits

WIDTH, HEIGHT, SHARPNESS = 360, 1180, 2
SCHEMES = ("light", "dark")
ROUNDS, SHOWN = 20, 12
SEVEN = ((0.3, 0.2), (0.72, 0.2), (0.6, 0.45), (0.45, 0.85))
"""As shares of the drawing area."""


def joined(browser: Any, url: str, scheme: str, samples: Path) -> Any:
    """A page that takes part with these samples."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SHARPNESS, color_scheme=scheme
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.click("#join button")
    page.wait_for_selector("#teach:not([hidden])")
    page.click("#files summary")
    page.set_input_files("#files-input", samples)
    page.click("#files summary")
    return page


def drawn(page: Any) -> None:
    """A seven, by the mouse; and what the model takes it for."""
    canvas = page.locator("canvas.paper")
    canvas.evaluate("e => e.scrollIntoView({ block: 'center' })")
    box = canvas.bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in SEVEN]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()
    page.wait_for_timeout(1000)


def picture(page: Any) -> Image.Image:
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    return Image.open(io.BytesIO(page.screenshot()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="of the picture, .png")
    path = parser.parse_args().path
    digits = load_digits()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        service = Service(folder, f"--rounds {ROUNDS} --min-devices 2 --kinds full --deadline 60")
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            pages = []
            for number, scheme in enumerate(SCHEMES):
                rows = slice(number * SAMPLES, (number + 1) * SAMPLES)
                x, y = digits.images[rows].astype(np.uint8), digits.target[rows]
                np.savez(folder / f"{scheme}.npz", x=x, y=y)
                pages.append(joined(browser, service.url, scheme, folder / f"{scheme}.npz"))
            for page in pages:
                page.get_by_text(f"Round {SHOWN}").first.wait_for()
            for page in pages:
                drawn(page)
            shots = [picture(page) for page in pages]
        finally:
            browser.close()
            service.process.kill()
            service.process.wait()
    whole = Image.new("RGB", (sum(shot.width for shot in shots), shots[0].height))
    for number, shot in enumerate(shots):
        whole.paste(shot, (number * shot.width, 0))
    whole.quantize(128).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
