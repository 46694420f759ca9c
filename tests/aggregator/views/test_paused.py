"""Devices whose owners let them do no work for now: rounds go on without them."""

from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.broker.wire.messages import Plan, State


def test_a_round_does_not_wait_for_a_device_that_pauses_and_counts_it_again_after_its_hello(
    bench, make_task, update_of
):
    b = bench(make_task("few-shot", round_deadline_s=600.0))
    b.join("pi-01", "pi-02")
    b.say("pi-02", "state", State(boot=1, online=True, paused=True))
    assert (set(b.service.state.ready), set(b.service.state.online)) == ({"pi-01"}, {"pi-01", "pi-02"})
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    assert b.service.state.round == 2
    b.say("pi-02", "state", State(boot=1, online=True))
    assert set(b.service.state.ready) == {"pi-01"}
    b.join("pi-02")
    assert set(b.service.state.waiting) == {"pi-01", "pi-02"}


def test_what_a_device_sends_that_paused_in_the_round_counts(bench, make_task, update_of):
    b = bench(make_task("few-shot", round_deadline_s=600.0))
    b.join("pi-01", "pi-02")
    b.say("pi-02", "state", State(boot=1, online=True, paused=True))
    nothing = {"kind": "", "seconds": 0.0, "memory_bytes": 0, "energy_j": 0.0}
    b.say(
        "pi-02",
        "plan",
        Plan(task=b.task.name, round=1, reasons=("paused: on battery power",), **nothing),
    )
    b.join("pi-02")
    receipts = b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot", 2)))
    assert [receipt.status for receipt in receipts] == ["accepted"]
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [2]
