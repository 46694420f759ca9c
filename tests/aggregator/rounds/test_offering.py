"""Cohorts and buffered rounds on a bench: who is offered what, and what a restart remembers."""

from device_runtime.aggregator.machine.run_events import RoundClosed, RoundExtended
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import Hello, Offer, State

DEVICES = ("a", "b", "c", "d", "e")


def offers(bench, device, since=0):
    """The rounds that a device was offered by name, from message `since` on."""
    topic = topics.down(device, "task")
    return [messages.decode(p, Offer).round for t, p in bench.link.sent[since:] if t == topic]


def cohort_of(bench, devices=DEVICES):
    """Who is asked for the open round."""
    return [
        device for device in devices if bench.service.state.asked.get(device) == bench.service.state.round
    ]


def cohort_bench(bench, make_task, **task):
    b = bench(make_task("few-shot", min_devices=5, **{"devices_per_round": 2, **task}))
    b.join(*DEVICES)
    return b


def test_only_the_cohort_is_offered_the_round_and_all_are_told_of_the_lobby(bench, make_task):
    b = cohort_bench(bench, make_task)
    cohort = cohort_of(b)
    assert len(cohort) == 2
    for device in DEVICES:
        assert offers(b, device)[-1] == (1 if device in cohort else 0)
    assert (b.offer.round, b.offer.kinds) == (0, ())


def test_a_round_closes_when_its_cohort_has_answered_and_the_next_draws_another(bench, make_task, update_of):
    b = cohort_bench(bench, make_task, rounds=9)
    cohorts = []
    for number in range(1, 10):
        cohorts.append(tuple(cohort_of(b)))
        sent = len(b.link.sent)
        for device in cohorts[-1]:
            b.contribute(device, b.contribution("few-shot", update_of("few-shot"), number))
        assert topics.offer(b.task.name) not in [topic for topic, _ in b.link.sent[sent:]] or number == 9
    assert [c.record.participants for c in b.heard(RoundClosed)] == [2] * 9
    assert len(set(cohorts)) > 2
    assert set().union(*cohorts) == set(DEVICES)
    assert b.offer.done


def test_a_first_round_that_asks_all_is_offered_to_all_and_the_next_to_its_cohort(
    bench, make_task, update_of
):
    b = cohort_bench(bench, make_task, ask_all_rounds=1)
    assert (b.offer.round, cohort_of(b)) == (1, [])
    for device in DEVICES:
        b.contribute(device, b.contribution("few-shot", update_of("few-shot")))
    assert [c.record.participants for c in b.heard(RoundClosed)] == [5]
    cohort = cohort_of(b)
    assert (b.offer.round, b.offer.kinds, len(cohort)) == (0, (), 2)
    assert [offers(b, device)[-1:] == [2] for device in DEVICES] == [d in cohort for d in DEVICES]


def test_the_same_task_asks_the_same_devices(bench, make_task):
    assert cohort_of(cohort_bench(bench, make_task)) == cohort_of(cohort_bench(bench, make_task))
    draws = {tuple(cohort_of(cohort_bench(bench, make_task, seed=seed))) for seed in range(8)}
    assert len(draws) > 1


def test_a_hello_is_answered_with_the_round_while_the_device_owes_it_and_else_with_the_lobby(
    bench, make_task, update_of
):
    b = cohort_bench(bench, make_task)
    first, second = cohort_of(b)
    b.contribute(first, b.contribution("few-shot", update_of("few-shot")))
    sent = len(b.link.sent)
    b.join(*DEVICES)
    for device in DEVICES:
        assert offers(b, device, sent) == [1 if device == second else 0]


def test_the_contribution_of_a_device_that_was_not_asked_is_refused(bench, make_task, update_of):
    b = cohort_bench(bench, make_task)
    other = next(device for device in DEVICES if device not in cohort_of(b))
    [receipt] = b.contribute(other, b.contribution("few-shot", update_of("few-shot")))
    assert receipt.status == "refused"
    assert receipt.reason == f"update from {other} refused: {other} was not asked for round 1"
    assert b.service.state.contributions == 0


def test_an_extended_round_is_offered_again_to_those_who_owe_it_and_to_others_in_place_of_the_rest(
    bench, make_task, update_of
):
    b = cohort_bench(bench, make_task, min_contributions=2)
    first, second = cohort_of(b)
    b.contribute(first, b.contribution("few-shot", update_of("few-shot")))
    sent = len(b.link.sent)
    b.wait(10.0)
    assert len(b.heard(RoundExtended)) == 1
    [new] = set(cohort_of(b)) - {first, second}
    devices = [device for device in DEVICES if offers(b, device, sent)]
    assert sorted(devices) == sorted([second, new])
    b.contribute(new, b.contribution("few-shot", update_of("few-shot")))
    assert b.service.state.round == 1  # second is still waited for
    b.say(second, "state", State(boot=1, online=False, leaving=True))
    assert b.service.state.round == 2


def test_after_a_restart_the_cohort_is_the_same_and_what_it_sends_counts(bench, make_task, update_of):
    b = cohort_bench(bench, make_task)
    cohort = cohort_of(b)
    b.contribute(cohort[0], b.contribution("few-shot", update_of("few-shot")))
    b = b.restart()
    assert (b.offer.round, cohort_of(b)) == (0, cohort)
    sent = len(b.link.sent)
    b.join(*DEVICES)
    b.wait(SETTLE_S)
    assert cohort_of(b) == cohort
    for device in DEVICES:
        assert offers(b, device, sent) == [1 if device == cohort[1] else 0]
    assert b.contribute(cohort[1], b.contribution("few-shot", update_of("few-shot")))[0].status == "accepted"
    assert [c.record.participants for c in b.heard(RoundClosed)] == [2]


def test_a_restart_between_a_round_and_its_draw_draws_when_it_is_known_who_is_there(
    bench, make_task, monkeypatch
):
    from device_runtime.aggregator.rounds import runner

    expected = cohort_of(cohort_bench(bench, make_task))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "draw", lambda *_: ())  # killed before anything was written
        b = cohort_bench(bench, make_task)
    assert cohort_of(b) == []
    b = b.restart()
    b.join(*reversed(DEVICES))
    assert cohort_of(b) == []
    b.wait(SETTLE_S)
    assert cohort_of(b) == expected


def test_a_device_without_the_bundle_is_not_drawn_until_it_is_ready(bench, make_task):
    b = bench(make_task("few-shot", devices_per_round=2))
    b.join("a")
    assert cohort_of(b) == ["a"]
    hello = Hello(boot=1, num_examples=0, profile="pi", memory_bytes=1, engine="onnx")
    b.say("b", "hello", hello)
    assert cohort_of(b) == ["a"]
    b.join("b")
    assert cohort_of(b) == ["a", "b"]
    assert offers(b, "b")[0] == 0
    assert offers(b, "b")[-1] == 1


def test_a_buffered_run_of_all_offers_the_next_round_when_the_buffer_is_full(bench, make_task, update_of):
    b = bench(make_task("few-shot", buffer_size=2, rounds=2))
    b.join(*DEVICES[:3])
    assert b.offer.round == 1
    for device in ("a", "b"):
        b.contribute(device, b.contribution("few-shot", update_of("few-shot")))
    assert b.offer.round == 2
    b.contribute("c", b.contribution("few-shot", update_of("few-shot")))
    b.contribute("a", b.contribution("few-shot", update_of("few-shot"), 2))
    assert b.offer.done
    assert [(s.device, s.round) for s in b.store.contributions.of_round(2)] == [("a", 2), ("c", 1)]


def test_a_buffered_cohort_is_kept_as_large_as_it_may_be(bench, make_task, update_of):
    b = cohort_bench(bench, make_task, buffer_size=3, devices_per_round=2)
    first, second = cohort_of(b)
    b.contribute(first, b.contribution("few-shot", update_of("few-shot")))
    [third] = set(cohort_of(b)) - {first, second}
    b.sit_out(second, 1)
    [fourth] = set(cohort_of(b)) - {first, second, third}
    b.say(third, "state", State(boot=1, online=False, leaving=True))
    [fifth] = set(cohort_of(b)) - {first, second, third, fourth}
    assert b.service.state.waiting == {fourth, fifth}


def test_a_buffered_cohort_after_a_restart_is_the_same_and_has_what_was_counted(bench, make_task, update_of):
    b = cohort_bench(bench, make_task, buffer_size=2, devices_per_round=3, rounds=2)
    first, second, third = cohort_of(b)
    b.contribute(first, b.contribution("few-shot", update_of("few-shot")))
    [fourth] = set(cohort_of(b)) - {first, second, third}
    cohort = cohort_of(b)
    b = b.restart()
    b.join(*DEVICES)
    b.wait(SETTLE_S)
    assert (cohort_of(b), b.service.state.contributions) == (cohort, 1)
    assert b.service.state.waiting == {second, third, fourth}
    b.contribute(second, b.contribution("few-shot", update_of("few-shot")))
    assert b.service.state.round == 2
    b = b.restart()
    b.join(*DEVICES)
    for device, status in ((third, "accepted"), (first, "duplicate"), (fourth, "accepted")):
        [receipt] = b.contribute(device, b.contribution("few-shot", update_of("few-shot")))
        assert receipt.status == status
    assert b.offer.done
