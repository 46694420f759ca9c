import pytest

from profiles.measure import Trial, host_profile, measure_speed


def trial(clock, seconds, samples=10, flops=100.0, calls=None):
    def run():
        if calls is not None:
            calls.append(clock.now)
        clock.sleep(seconds)

    return Trial(run, samples, flops)


def test_seconds_are_per_sample_and_the_rate_is_the_first_graph_s(clock):
    speed = measure_speed({"forward": trial(clock, 0.1), "train.all": trial(clock, 0.3)}, clock)
    assert speed.seconds == pytest.approx({"forward": 0.01, "train.all": 0.03})
    assert speed.flops_per_s == pytest.approx(100 / 0.01)
    assert speed.of("train.all", 1e9) == pytest.approx(0.03)
    assert speed.of("loss.all", 50.0) == pytest.approx(0.005)


def test_a_slow_device_stays_within_the_budget_and_predicts_the_rest(clock):
    calls = []
    trials = {"forward": trial(clock, 1.0), "train.all": trial(clock, 3.0, flops=300.0, calls=calls)}
    speed = measure_speed(trials, clock, budget_s=2.5)
    assert set(speed.seconds) == {"forward"}
    assert not calls
    assert clock.now < 3.0
    assert speed.of("train.all", 300.0) == pytest.approx(0.3)


def test_the_median_of_several_runs_counts(clock):
    durations = iter([9.0, 0.1, 0.1, 0.5, 0.1, 0.1])  # the first is the warm-up
    trials = {"forward": Trial(lambda: clock.sleep(next(durations)), 1, 1.0)}
    assert measure_speed(trials, clock, budget_s=60).seconds["forward"] == pytest.approx(0.1)


def test_each_graph_is_closed_before_the_next_is_opened_and_what_does_not_fit_is_left_out(clock):
    events = []

    def made(name, error=None):
        def run():
            events.append(name)
            clock.sleep(0.1)
            if error is not None:
                raise error

        return Trial(run, 1, 1.0, lambda: events.append(f"{name} closed"))

    trials = {"forward": made("forward"), "large": made("large", MemoryError()), "small": made("small")}
    speed = measure_speed(trials, clock, budget_s=60, left_out=MemoryError)
    assert set(speed.seconds) == {"forward", "small"}
    assert list(dict.fromkeys(events)) == [
        "forward", "forward closed", "large", "large closed", "small", "small closed"
    ]  # fmt: skip
    with pytest.raises(MemoryError):
        measure_speed({"large": trials["large"]}, clock, left_out=MemoryError)
    with pytest.raises(MemoryError):
        measure_speed(trials, clock, budget_s=60)


def test_nothing_to_time_is_an_error(clock):
    with pytest.raises(ValueError, match="nothing to time"):
        measure_speed({}, clock)


def test_the_host_is_described_with_where_each_figure_is_from(clock):
    speed = measure_speed({"forward": trial(clock, 0.1)}, clock)
    profile = host_profile(speed, "onnxruntime")
    assert profile.cores >= 1
    assert 0 < profile.memory.resident_bytes < profile.memory.limit_bytes <= profile.memory.total_bytes
    assert "assumed" in profile.power.source
    assert "measured" in profile.speed.source
