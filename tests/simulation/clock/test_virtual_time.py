from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue


def test_entries_are_done_in_the_order_of_time_and_then_of_writing():
    agenda, done = VirtualTimeQueue(), []
    for when, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        agenda.at(when, lambda name=name: done.append((agenda.now, name)))
    while agenda.step():
        pass
    assert done == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    assert not agenda.step()


def test_what_is_put_down_for_the_past_is_done_now():
    agenda, done = VirtualTimeQueue(now=5.0), []
    agenda.at(1.0, lambda: done.append(agenda.now))
    assert agenda.step()
    assert done == [5.0]
    assert agenda.now == 5.0
    assert len(agenda) == 0
