"""What an aggregator calls things, on a real page of 360 pixels: words stay words. And very many messages."""

import re

import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import Contribution

from .hostile import MANIFEST, AttackedPage, attacked_page, repacked

pytestmark = pytest.mark.slow

LABELS = (
    "<img src=x onerror=alert(1)>",
    "<script>self.owned = 1</script>",
    "'\"><svg onload=alert(2)>",
    "W" * 500,
    "&lt;b&gt;bold&lt;/b&gt;",
    "שלום עולם",
    "a" + "\u0301" * 300,
    "javascript:alert(3)",
    "\U0001f600" * 90,
    "{{constructor.constructor('alert(4)')()}}",
)
ELEMENTS = "script:not([src]), img, iframe, object, embed, [onerror], [onload], [onclick], base, b"
WIDE = """[...document.querySelectorAll("main *")]
  .filter((one) => !one.closest(".scroll") && one.getBoundingClientRect().right > 361)
  .map((one) => one.outerHTML.slice(0, 200))"""
SHOWN = "document.querySelectorAll('#labels .word')[0]?.textContent"


@pytest.fixture(scope="module")
def attacked(chromium, tmp_path_factory):
    with attacked_page(chromium, tmp_path_factory.mktemp("attacked")) as page_:
        page_.page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
        page_.honest_round()
        yield page_


def stays_as_it_is(attacked: AttackedPage):
    """Nothing is wider than the page, no element was made, no script has run."""
    assert attacked.page.locator(ELEMENTS).count() == 0
    assert attacked.page.evaluate("self.owned") is None
    assert attacked.page.evaluate(WIDE) == []
    assert attacked.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_labels_with_markup_of_any_length_are_shown_as_they_are(attacked: AttackedPage):
    attacked.begin()
    offer = attacked.offered(bundle=attacked.aggregator.hold(repacked(labels=list(LABELS))))
    attacked.aggregator.tell(offer)
    attacked.until(lambda: attacked.page.evaluate(SHOWN) == LABELS[0])
    assert attacked.page.locator("#labels .word").all_inner_texts() == list(LABELS)
    for label in LABELS[:4]:
        attacked.visit.draw([[(0.5, 0.1), (0.5, 0.9)]])
        attacked.page.locator("#labels button").nth(LABELS.index(label)).click()
        attacked.page.get_by_text(f"Kept as “{label}”").wait_for()
    assert attacked.page.locator("#folders h3").count() >= 4
    stays_as_it_is(attacked)
    attacked.page.click("#clear")
    attacked.page.get_by_role("button", name="Keep").click()
    attacked.aggregator.offer = None


def test_a_name_of_a_task_that_is_no_name_is_refused(attacked: AttackedPage):
    for task in ("<script>self.owned = 1</script>", "W" * 100_000, "\u202edigits", "../digits", ""):
        attacked.attack(attacked.offered(task=task))
        assert task[:200] in attacked.refused(r"ignored: offer of round 1 of '")
        stays_as_it_is(attacked)


def test_a_refusal_of_any_length_is_one_line_of_text(attacked: AttackedPage):
    attacked.begin()
    offer = attacked.offered()
    attacked.aggregator.tell(offer)
    contribution = attacked.until(lambda: attacked.aggregator.of(Contribution, offer.run))[0]
    attacked.aggregator.receipt(contribution, "refused", "<img src=x onerror=alert(1)>\n" + "W" * 100_000)
    pattern = r"Round 1: refused: <img src=x onerror=alert\(1\)> W+"
    attacked.until(lambda: re.search(pattern, attacked.page.inner_text("#state")))
    assert len(attacked.page.inner_text("#state")) < 400
    stays_as_it_is(attacked)
    attacked.honest_round()


def test_a_long_word_in_a_notice_is_broken(attacked: AttackedPage):
    attacked.begin()
    attacked.aggregator.say("W" * 2000, b"")
    attacked.attack(
        attacked.offered(bundle=attacked.aggregator.hold(repacked(name="W" * 5000, labels=["x"])))
    )
    attacked.refused(r"manifest of bundle WWW")
    stays_as_it_is(attacked)


def test_a_flood_of_messages_keeps_nobody_from_an_honest_round(attacked: AttackedPage):
    attacked.begin()
    for number in range(3000):
        attacked.aggregator.say("task", number.to_bytes(4, "big") * 20)
    for _ in range(100):
        attacked.aggregator.say("receipt", b"\x95" * 200_000)
        attacked.aggregator.link.publish(topics.offer("digits"), b"\x9f" * 200_000)
    attacked.refused(r"ignored: ")
    attacked.honest_round()


def test_offers_of_ever_other_tasks_and_runs_keep_nobody_from_an_honest_round(attacked: AttackedPage):
    attacked.begin()
    for number in range(300):
        offer = attacked.offered(task=f"task-{number}", round=0)
        attacked.aggregator.link.publish(
            topics.offer(offer.task), attacked.aggregator.signer.seal(topics.offer(offer.task), offer, 1)
        )
    attacked.honest_round()


def test_the_labels_before_are_shown_again(attacked: AttackedPage):
    attacked.honest_round()
    attacked.until(lambda: attacked.page.evaluate(SHOWN) == MANIFEST["labels"][0])
    assert attacked.page.locator("#labels .word").all_inner_texts() == MANIFEST["labels"]
