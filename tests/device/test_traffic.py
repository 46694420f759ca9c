from datetime import date, timedelta

from device_runtime.cli.on_device import traffic as command
from device_runtime.device import traffic
from device_runtime.device.traffic import FILE, KEPT_DAYS, WRITE_BYTES, WRITE_S, Day, TrafficLog

MONDAY = date(2026, 11, 23)


class Days:
    """A calendar that a test turns."""

    def __init__(self):
        self.day = MONDAY

    def __call__(self):
        return self.day


def test_what_a_link_counts_is_added_to_the_day_it_came_on(tmp_path, clock):
    today = Days()
    counted = TrafficLog(tmp_path, today, clock)
    counted.saw(100, 1000)
    counted.saw(150, 1000)
    assert counted.bytes_today == 1150
    today.day += timedelta(1)
    assert counted.bytes_today == 0
    counted.saw(160, 1005)
    assert counted.days == {"2026-11-23": Day(150, 1000), "2026-11-24": Day(10, 5)}


def test_what_a_link_takes_back_because_it_never_left_is_taken_off_the_next_bytes(tmp_path, clock):
    today = Days()
    log = TrafficLog(tmp_path, today, clock)
    log.saw(1000, 0)
    today.day += timedelta(1)
    log.saw(900, 0)
    assert log.bytes_today == 0
    log.saw(1200, 0)
    assert log.days == {"2026-11-23": Day(1000, 0), "2026-11-24": Day(200, 0)}


def test_the_next_life_of_the_process_goes_on_counting(tmp_path, clock):
    first = TrafficLog(tmp_path, Days(), clock)
    first.saw(100, 200)
    first.write()
    again = TrafficLog(tmp_path, Days(), clock)
    again.saw(1, 2)
    assert again.bytes_today == 303


def test_it_is_written_after_a_minute_or_a_quarter_of_a_megabyte_and_not_at_each_message(tmp_path, clock):
    counted = TrafficLog(tmp_path, Days(), clock)
    counted.saw(100, 0)
    assert not (tmp_path / FILE).exists()
    counted.saw(100, WRITE_BYTES)
    assert traffic.read(tmp_path) == {"2026-11-23": Day(100, WRITE_BYTES)}
    counted.saw(101, WRITE_BYTES)
    assert traffic.read(tmp_path) == {"2026-11-23": Day(100, WRITE_BYTES)}
    clock.now += WRITE_S
    counted.saw(101, WRITE_BYTES)
    assert traffic.read(tmp_path) == {"2026-11-23": Day(101, WRITE_BYTES)}


def test_two_months_are_kept(tmp_path, clock):
    today = Days()
    counted = TrafficLog(tmp_path, today, clock)
    for day in range(100):
        today.day = MONDAY + timedelta(day)
        counted.saw(day + 1, 0)
    counted.write()
    assert len(traffic.read(tmp_path)) == KEPT_DAYS
    assert max(traffic.read(tmp_path)) == today.day.isoformat()


def test_a_damaged_file_or_a_full_disk_costs_the_count_and_not_the_device(tmp_path, clock, caplog):
    (tmp_path / FILE).write_text("{")
    counted = TrafficLog(tmp_path / "nowhere", Days(), clock)
    assert TrafficLog(tmp_path, Days(), clock).days == {}
    assert "begun anew" in caplog.text
    counted.saw(1, 1)
    counted.write()
    assert "traffic cannot be kept" in caplog.text


def test_the_command_shows_each_day_and_all(tmp_path, capsys, clock):
    import argparse

    counted = TrafficLog(tmp_path, Days(), clock)
    counted.saw(1500, 250_000)
    counted.write()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--state", str(tmp_path)])) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2:] == [["2026-11-23", "1.5", "250.0"], ["all", "1.5", "250.0"]]
