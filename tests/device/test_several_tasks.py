"""A device where the aggregator has more than one task."""

import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import Hello, encode
from device_runtime.device.machine.offer_rules import ANOTHER_S


def hellos(stage):
    return [hello.task for hello in stage.link.of(Hello)]


def test_a_device_that_was_not_told_takes_the_first_that_it_hears_of(stage):
    stage.link.announce(stage.offer(task="digits", run="d"))
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    stage.link.offer = stage.offer(task="digits", run="d")
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits"]
    assert set(hellos(stage)) <= {"", "digits"}


@pytest.mark.slow
def test_it_goes_where_the_aggregator_puts_it(stage):
    stage.link.announce(stage.offer(task="digits", run="d"), retain=True, unasked=False)
    stage.link.offer = stage.offer(task="speech", run="s")  # in answer to its hello
    stage.go()
    assert [c.task for c in stage.contributions] == ["speech"]


def test_when_its_own_is_over_it_goes_on_to_another(stage):
    stage.link.announce(stage.offer(task="digits", run="d"))
    stage.go()
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    stage.go()
    stage.link.offer = stage.offer(task="speech", run="s")
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.link.offer = stage.offer(task="speech", run="s")
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits", "speech"]
    assert hellos(stage)[-1] == "speech"
    assert not stage.agent.done


def test_until_done_it_goes_on_to_no_other_and_says_which_task_it_is_in(stage, caplog):
    caplog.set_level("INFO")
    stage.agent.leave_when_done()
    stage.link.announce(stage.offer(task="dead", run="s"), retain=True, unasked=False)
    stage.link.announce(stage.offer(task="digits", run="d"))
    stage.go()
    assert "in task 'digits'" in caplog.text
    stage.link.offer = None
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits"]
    assert stage.agent.finished


@pytest.mark.slow
def test_where_two_tasks_answer_it_is_in_the_later_one_and_goes_on_to_the_other(stage):
    stage.link.offer = None
    stage.link.tell("task", encode(stage.offer(task="speech", run="s", round=0)))
    stage.go()
    stage.link.tell("task", encode(stage.offer(task="digits", run="d")))
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits"]
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.link.offer = stage.offer(task="speech", run="s")
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits", "speech"]


def test_it_does_not_go_back_to_the_one_that_is_over_though_it_heard_of_that_in_the_other(stage):
    stage.link.announce(stage.offer(task="speech", run="s"), retain=True, unasked=False)
    stage.link.announce(stage.offer(task="digits", run="d"), retain=True, unasked=False)
    stage.link.offer = None
    stage.link.tell("task", encode(stage.offer(task="digits", run="d")))
    stage.go()
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.link.offer = None
    stage.go()
    assert [c.task for c in stage.contributions] == ["digits"]
    assert hellos(stage)[-1] == "speech"


def test_one_that_begins_later_finds_who_is_free(stage):
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.link.offer = None
    stage.go()
    assert stage.agent.finished
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    stage.go()
    assert [c.task for c in stage.contributions] == ["speech"]


def test_that_a_task_was_over_before_it_came_does_not_send_it_away_while_another_may_come(stage):
    stage.link.announce(stage.offer(task="digits", run="d", done=True), retain=True, unasked=False)
    stage.link.offer = None
    stage.go()
    assert not stage.agent.finished
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    stage.go()
    assert [c.task for c in stage.contributions] == ["speech"]
    stage.clock.now += 2 * ANOTHER_S
    stage.go()
    assert not stage.agent.finished


@pytest.mark.parametrize("how", ["nobody answers", "the aggregator answers", "it was told which"])
def test_that_a_task_was_over_before_it_came_is_believed_in_the_end(stage, how):
    stage.start(task="digits" if how == "it was told which" else "")
    over = stage.offer(task="digits", run="d", done=True)
    stage.link.announce(over, retain=True, unasked=False)
    stage.link.offer = over if how == "the aggregator answers" else None
    stage.go()
    assert stage.agent.finished is (how != "nobody answers")
    stage.clock.now += ANOTHER_S
    stage.go()
    assert stage.agent.finished


def test_a_task_that_is_over_elsewhere_is_none_to_go_to(stage):
    stage.link.announce(stage.offer(task="digits", run="d"))
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    stage.link.announce(stage.offer(task="speech", run="s", done=True), unasked=False)
    stage.link.offer = stage.offer(task="digits", run="d")
    stage.go()
    stage.link.announce(stage.offer(task="digits", run="d", done=True), unasked=False)
    stage.go()
    assert stage.agent.finished
    assert "speech" not in hellos(stage)


def test_one_that_was_told_which_hears_of_no_other(stage):
    stage.start(task="speech")
    assert stage.agent.subscriptions()[0] == topics.offer("speech")
    stage.link.announce(stage.offer(task="digits", run="d"), unasked=False)
    stage.link.offer = None
    stage.go()
    assert stage.contributions == []
    assert set(hellos(stage)) == {"speech"}
    stage.link.announce(stage.offer(task="speech", run="s", done=True), unasked=False)
    stage.link.announce(stage.offer(task="digits", run="d"), unasked=False)
    stage.go()
    assert stage.agent.finished


def test_word_that_the_one_it_has_left_is_over_does_not_take_it_away_again(stage):
    stage.link.announce(stage.offer(task="digits", run="d"))
    stage.go()
    stage.link.announce(stage.offer(task="speech", run="s"), unasked=False)
    over = stage.offer(task="digits", run="d", done=True)
    stage.link.announce(over, unasked=False)
    stage.link.offer = None
    stage.go()
    stage.link.tell("task", encode(over))  # in answer to a hello from before
    stage.go()
    assert not stage.agent.finished
    stage.agent.hello()
    assert hellos(stage)[-1] == "speech"
