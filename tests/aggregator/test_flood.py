"""A device that never stops sending is not heard any more; the others are, and it is again later."""

from aggregator.flood import BURST, Flood


def taken(flood, device, messages, now):
    return sum(flood.lets(device, now) for _ in range(messages))


def test_a_burst_is_taken_and_then_as_many_as_the_bucket_fills_by():
    flood = Flood(burst=10, rate=2)
    assert taken(flood, "a", 50, 0.0) == 10
    assert taken(flood, "a", 50, 3.0) == 6
    assert taken(flood, "a", 50, 1000.0) == 10


def test_devices_do_not_share_a_bucket_and_a_clock_that_goes_back_gives_nothing():
    flood = Flood(burst=3, rate=1)
    assert taken(flood, "a", 5, 10.0) == 3
    assert taken(flood, "b", 5, 10.0) == 3
    assert taken(flood, "a", 5, 5.0) == 0


def test_only_so_many_devices_are_remembered():
    flood = Flood(burst=1, rate=0, most=2)
    for device in ("a", "b", "c"):
        assert flood.lets(device, 0.0)
    assert flood.lets("a", 0.0)  # forgotten, and so anew
    assert not flood.lets("c", 0.0)


def test_it_is_said_once_a_minute():
    flood = Flood()
    assert [flood.worth_saying("a", now) for now in (0.0, 30.0, 61.0)] == [True, False, True]


def test_the_service_drops_what_is_too_much_and_counts_what_comes_again(bench, make_task, update_of, caplog):
    b = bench(make_task("few-shot", rounds=1, min_contributions=2))
    b.join("pi", "evil")
    message = b.contribution("few-shot", update_of("few-shot"))
    for _ in range(int(BURST) + 5):
        b.sit_out("evil", 7)
    assert b.contribute("evil", message) == []
    assert [record.getMessage() for record in caplog.records].count(
        "messages from evil dropped: it sends more than 100 a second"
    ) == 1
    assert b.contribute("pi", b.contribution("few-shot", update_of("few-shot", 1)))[0].status == "accepted"
    b.now += 1.0
    assert b.contribute("evil", message)[0].status == "accepted"
