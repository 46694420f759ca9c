import psutil
import pytest

from device_runtime.profiles.measure import Clocks, SpeedTrial, host_profile, measure_speed


def by(clock):
    """Nobody knows what is computed of the time that passes."""
    return Clocks(clock, clock)


def trial(clock, seconds, samples=10, flops=100.0, calls=None):
    def run():
        if calls is not None:
            calls.append(clock.now)
        clock.sleep(seconds)

    return SpeedTrial(run, samples, flops)


def test_seconds_are_per_sample_and_the_rate_is_the_first_graph_s(clock):
    speed = measure_speed({"forward": trial(clock, 0.1), "train.all": trial(clock, 0.3)}, by(clock))
    assert speed.seconds == pytest.approx({"forward": 0.01, "train.all": 0.03})
    assert speed.flops_per_s == pytest.approx(100 / 0.01)
    assert speed.of("train.all", 1e9) == pytest.approx(0.03)
    assert speed.of("loss.all", 50.0) == pytest.approx(0.005)


def test_a_slow_device_stays_within_the_budget_and_predicts_the_rest(clock):
    calls = []
    trials = {"forward": trial(clock, 1.0), "train.all": trial(clock, 3.0, flops=300.0, calls=calls)}
    speed = measure_speed(trials, by(clock), budget_s=2.5)
    assert set(speed.seconds) == {"forward"}
    assert not calls
    assert clock.now < 3.0
    assert speed.of("train.all", 300.0) == pytest.approx(0.3)


def test_the_median_of_several_runs_counts(clock):
    durations = iter([9.0, 0.1, 0.1, 0.5, 0.1, 0.1])  # the first is the warm-up
    trials = {"forward": SpeedTrial(lambda: clock.sleep(next(durations)), 1, 1.0)}
    assert measure_speed(trials, by(clock), budget_s=60).seconds["forward"] == pytest.approx(0.1)


class Held:
    """A processor of which a process may have `quota_s` seconds of each tenth of one."""

    def __init__(self, clock, quota_s):
        self.clock, self.quota_s, self.busy, self.used = clock, quota_s, 0.0, 0.0

    def compute(self, seconds):
        self.busy += seconds
        while seconds > 1e-12:
            part = min(seconds, self.quota_s - self.used)
            self.clock.now += part
            self.used, seconds = self.used + part, seconds - part
            if self.quota_s - self.used < 1e-12:
                self.clock.now = round(self.clock.now / 0.1 + 0.5) * 0.1
                self.used = 0.0


@pytest.mark.parametrize("quota_s", [0.05, 0.01])
def test_a_process_held_to_part_of_a_core_is_predicted_to_take_what_it_takes_in_the_long_run(clock, quota_s):
    """Runs of 4 ms fall between two pauses, and would look as fast as on the whole core."""
    core = Held(clock, quota_s)
    trials = {
        name: SpeedTrial(lambda: core.compute(0.004), 1, 1.0) for name in ("forward", "train.all", "loss.all")
    }
    speed = measure_speed(trials, Clocks(clock, lambda: core.busy))
    began = clock.now
    for _ in range(1000):
        core.compute(0.004)
    assert speed.seconds["train.all"] == pytest.approx((clock.now - began) / 1000, rel=0.3)


def test_what_the_first_run_takes_beyond_the_others_is_for_opening(clock):
    durations = iter([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    trials = {"forward": SpeedTrial(lambda: clock.sleep(next(durations)), 10, 1.0)}
    speed = measure_speed(trials, by(clock), budget_s=60)
    assert speed.opening["forward"] == pytest.approx(0.4)
    assert speed.seconds["forward"] == pytest.approx(0.01)


def test_each_graph_is_closed_before_the_next_is_opened_and_what_does_not_fit_is_left_out(clock):
    events = []

    def new_trial(name, error=None):
        def run():
            events.append(name)
            clock.sleep(0.1)
            if error is not None:
                raise error

        return SpeedTrial(run, 1, 1.0, lambda: events.append(f"{name} closed"))

    trials = {
        "forward": new_trial("forward"),
        "large": new_trial("large", MemoryError()),
        "small": new_trial("small"),
    }
    speed = measure_speed(trials, by(clock), budget_s=60, left_out=MemoryError)
    assert set(speed.seconds) == {"forward", "small"}
    assert list(dict.fromkeys(events)) == [
        "forward", "forward closed", "large", "large closed", "small", "small closed"
    ]  # fmt: skip
    with pytest.raises(MemoryError):
        measure_speed({"large": trials["large"]}, by(clock), left_out=MemoryError)
    with pytest.raises(MemoryError):
        measure_speed(trials, by(clock), budget_s=60)


def test_nothing_to_time_is_an_error(clock):
    with pytest.raises(ValueError, match="nothing to time"):
        measure_speed({}, by(clock))


def test_the_host_is_described_with_where_each_figure_is_from(clock):
    speed = measure_speed({"forward": trial(clock, 0.1)}, by(clock))
    profile = host_profile(speed, "onnxruntime")
    assert profile.cores >= 1
    assert 0 < profile.memory.resident_bytes < profile.memory.limit_bytes <= profile.memory.total_bytes
    assert "assumed" in profile.power.source
    assert "measured" in profile.speed.source


def test_sensors_that_may_not_be_read_are_not_there(clock, monkeypatch):
    def refused():
        raise PermissionError("/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", refused, raising=False)
    monkeypatch.setattr(psutil, "sensors_temperatures", refused, raising=False)
    profile = host_profile(measure_speed({"forward": trial(clock, 0.1)}, by(clock)), "onnxruntime")
    assert (profile.battery, profile.temperature_c) == (None, None)
