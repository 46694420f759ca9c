"""Who joins by the page, in a real Chromium on a scripted device: forms, links, and leaving."""

import pytest

from device_runtime.broker.security.enrolment import Enrolment

from .seen import SEVEN, keep

pytestmark = pytest.mark.slow


def test_nothing_is_said_of_a_connection_before_somebody_joins(visit):
    visitor = visit("unreached")
    page = visitor.open()
    page.wait_for_selector("#join:not([hidden])")
    assert page.locator("#connection").is_hidden()
    page.click("#join button")
    page.get_by_text("connecting …", exact=True).wait_for()


def test_whoever_leaves_or_deletes_everything_is_asked_to_join_again(visit):
    visitor = visit()
    page = visitor.joined()
    keep(visitor, SEVEN, "7")
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
    visitor = visit()
    visitor.joined()
    other = visitor.context.new_page()
    other.goto(visitor.pages.url)
    other.get_by_text("This device is open in another tab").wait_for()
    assert other.locator("#board").is_hidden()


def test_without_the_link_that_a_task_asks_for_nobody_is_let_in(visit):
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    page = visitor.open()
    page.get_by_text("Open the link, or scan the code").wait_for()
    assert page.locator("#join").is_hidden()


def test_a_link_is_used_once_leaves_the_address_bar_and_is_remembered_as_a_token(visit):
    token = Enrolment("wss://localhost:9/mqtt", "browser-3f", "secret", b"", bytes(32), 1).token
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    visitor.pages.tokens["s3cret"] = token
    page = visitor.open("#link=s3cret")
    page.wait_for_selector("#join:not([hidden])")
    assert page.url == visitor.pages.url
    assert page.locator("#naming").is_hidden()
    page.reload()  # before it was used: nothing is lost
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    settings = visitor.messages()[0]["settings"]
    assert (settings["name"], settings["token"]) == ("browser-3f", token)
    assert "browser-3f" in page.inner_text("#device")
    page.reload()
    page.get_by_text("Round 4: working").wait_for()
    assert visitor.messages()[0]["settings"] == settings
    assert len(visitor.pages.claims["s3cret"]) == 64
    page = visitor.reopened("#link=s3cret")  # the code is read once more
    page.get_by_text("Round 4: working").wait_for()
    assert visitor.messages()[0]["settings"] == settings
    assert visitor.wrong == []


def test_a_link_whose_answer_was_lost_with_its_tab_is_this_browser_s_still(visit):
    token = Enrolment("wss://localhost:9/mqtt", "browser-3f", "secret", b"", bytes(32), 1).token
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    page = visitor.open("#link=s3cret")
    page.click("#join button")
    page.get_by_text("ask the organisers for another link").wait_for()  # which the claim has reached
    visitor.pages.tokens["s3cret"] = token
    page = visitor.reopened("#link=s3cret")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    assert visitor.messages()[0]["settings"]["token"] == token


def test_another_link_stands_over_what_is_remembered_and_a_token_is_a_link_too(visit):
    first, second, third = (
        Enrolment("wss://localhost:9/mqtt", name, "secret", b"", bytes(32), 1).token
        for name in ("browser-1", "browser-2", "browser-3")
    )
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    visitor.pages.tokens |= {"one": first, "two": second}
    for fragment, token in (("#link=one", first), ("#link=two", second), (f"#{third}", third), ("", third)):
        page = visitor.reopened(fragment)
        if fragment:
            page.click("#join button")
        page.get_by_text("Round 4: working").wait_for()
        assert visitor.messages()[0]["settings"]["token"] == token
        assert page.url == visitor.pages.url


def test_a_link_that_was_opened_and_not_joined_by_is_good_when_it_is_opened_again(visit):
    first, second = (
        Enrolment("wss://localhost:9/mqtt", name, "secret", b"", bytes(32), 1).token
        for name in ("browser-1", "browser-2")
    )
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    visitor.pages.tokens |= {"one": first, "two": second}
    visitor.open("#link=one").click("#join button")
    visitor.page.get_by_text("Round 4: working").wait_for()
    visitor.reopened("#link=two").wait_for_selector("#join:not([hidden])")
    page = visitor.reopened()  # it is the device that it was
    page.get_by_text("Round 4: working").wait_for()
    assert visitor.messages()[0]["settings"]["token"] == first
    page = visitor.reopened("#link=two")
    page.click("#join button")
    page.get_by_text("Round 4: working").wait_for()
    assert visitor.messages()[0]["settings"]["token"] == second


def test_a_link_that_another_browser_has_used_is_refused_with_the_reason(visit):
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link"}
    visitor.pages.tokens["s3cret"] = "fl1.none"
    visitor.pages.claims["s3cret"] = "another"
    page = visitor.open("#link=s3cret")
    page.click("#join button")
    page.get_by_text("This link was used already: ask the organisers for another link.").wait_for()
    assert page.locator("#join").is_visible()


def test_a_link_of_another_aggregator_is_not_taken(visit):
    """Else whoever sends somebody a link makes a device of theirs that believes another."""
    token = Enrolment("wss://localhost:9/mqtt", "theirs", "secret", b"", bytes(32), 1).token
    visitor = visit()
    visitor.pages.config = {**visitor.pages.config, "enrolment": "link", "key": "ab" * 32}
    page = visitor.open(f"#{token}")
    page.click("#join button")
    page.get_by_text("of another aggregator").wait_for()
    assert page.locator("#board").is_hidden()
