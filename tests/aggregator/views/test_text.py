"""Texts about devices, for people."""

from device_runtime.aggregator.machine.events import GiveUp, GiveUpSums
from device_runtime.aggregator.views.text import abandoned_text, unopened_text


def test_why_a_run_is_given_up_names_the_first_devices_and_what_they_said():
    given_up = GiveUp(2, 5, 3.0, ("a", "b", "c", "d"), ("e",))
    text = abandoned_text(given_up, {"a": "full needs 5 s of 3 s; few-shot needs 4 s"})
    assert text.startswith(
        "round 2 is abandoned: 5 deadlines in a row, the last of 3 s, brought no contribution; "
        "4 sit out: a (full needs 5 s of 3 s), b, c, .., 1 missed the deadline: e. "
    )


def test_where_what_was_sent_did_not_count_it_is_not_said_that_nobody_was_asked():
    text = abandoned_text(GiveUp(1, 5, 3.0, (), ()), {})
    assert "brought no contribution; no device sent anything that counts. " in text


def test_why_a_round_is_not_opened_names_the_mask_helpers():
    assert "brought no answer of mask helpers site-a, site-b. Nothing is lost" in unopened_text(
        GiveUpSums(3, 5, 60.0), ("site-a", "site-b")
    )
