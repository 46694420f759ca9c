"""What tests of the page draw, and what they read from it."""

import re

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


def keep(visitor, lines, label):
    visitor.draw(lines)
    begins = re.compile(f"^{label}")  # what follows is how sure the model is: 1 %
    visitor.page.locator(".label:enabled", has_text=begins).first.click()
    visitor.page.wait_for_selector(".label:disabled")


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
