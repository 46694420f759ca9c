import pytest

from device_runtime.device.selection.choose import Candidate, UpdateChoice
from device_runtime.device.training.calibration import Corrections, Measurements, grown
from device_runtime.device.training.work import Timing, WorkOutcome
from device_runtime.profiles import Bandwidth, Cost, DeviceProfile, Memory, Power, Speed, StragglerVerdict
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.class_means import ClassMeans

SPEED = Speed(1e9, {"forward": 0.5}, "measured", {"forward": 0.1}, 0.01, {"forward": 77})


def device(**growth):
    """100 bytes while idle."""
    memory, link = Memory(1000, 1000, 100), Bandwidth(1.0, 1.0)
    return DeviceProfile("d", 1, memory, Speed(1.0), link, Power(1, 2), growth=growth)


def outcome(peak, gave_up=(), out_of_memory_kinds=()):
    """Of class means that were predicted to take the process to 300 bytes."""
    cost = Cost(1.0, 1.0, 300, 0, 0, 0.0)
    plan = UpdateChoice(Candidate(ClassMeans(), cost, ()), (), StragglerVerdict(False, ()))
    update = Update("class-means", {}, 1, 0.0)
    return WorkOutcome(
        plan, update, peak_memory_bytes=peak, gave_up=gave_up, out_of_memory_kinds=out_of_memory_kinds
    )


def test_an_update_that_added_more_than_predicted_is_taken_to_add_as_much_again():
    assert grown(device(), outcome(400)) == {"class-means": pytest.approx(1.5)}
    assert grown(device(**{"class-means": 1.2}), outcome(400)) == {"class-means": pytest.approx(1.8)}


def test_one_that_added_less_changes_nothing_and_what_was_feared_is_forgotten_by_and_by():
    assert grown(device(), outcome(200)) == {}
    assert grown(device(full=2.0), outcome(200)) == {"full": pytest.approx(1.9)}


def test_a_kind_given_up_for_want_of_memory_is_taken_to_need_more_and_the_peak_is_of_nobody():
    after = grown(device(full=2.0), outcome(900, gave_up=("full given up",), out_of_memory_kinds=("full",)))
    assert after == {"full": pytest.approx(2.5)}
    assert grown(device(full=3.9), outcome(900, ("full given up",), ("full",))) == {"full": 4.0}


def test_what_was_learnt_is_there_after_a_restart(tmp_path):
    path = tmp_path / "speed.json"
    assert Measurements(path).get("bundle", lambda: Corrections(SPEED)) == Corrections(SPEED)
    learnt = Corrections(SPEED, {"full": 1.5}, {"full": 2.0}, 0.25, 2)
    Measurements(path).put("other", learnt)
    again = Measurements(path)
    assert again.get("bundle", pytest.fail) == Corrections(SPEED)
    assert again.get("other", pytest.fail) == learnt


def test_a_damaged_file_is_measured_anew_and_a_disk_that_refuses_is_no_reason_to_stop(tmp_path, caplog):
    for damaged in (b"{", b'{"\xff": 1}'):
        (tmp_path / "speed.json").write_bytes(damaged)
        assert Measurements(tmp_path / "speed.json").get("bundle", lambda: Corrections(SPEED)).speed == SPEED
        assert "measuring anew" in caplog.text
        caplog.clear()
    nowhere = Measurements(tmp_path / "not here" / "speed.json")
    assert nowhere.get("bundle", lambda: Corrections(SPEED)) == nowhere.get("bundle", pytest.fail)
    assert "cannot be kept" in caplog.text


def sat_out(compute_s=9.0, seconds=9.0, memory=300, timings=()):
    """Of a device that nothing fitted, of which a kind would have taken so long and so much."""
    cost = Cost(seconds, compute_s, memory, 0, 0, 0.0)
    plan = UpdateChoice(None, (Candidate(ClassMeans(), cost, ("too much",)),), StragglerVerdict(True, ()))
    return WorkOutcome(plan, None, timings=timings)


def test_rounds_in_a_row_that_were_sat_out_for_want_of_time_are_counted():
    learnt = Corrections(SPEED)
    for count in (1, 2, 3):
        learnt = learnt.after(device(), sat_out())
        assert learnt.sat_out == count
    assert learnt.after(device(), outcome(300)).sat_out == 0


@pytest.mark.parametrize(
    ("what", "counts"),
    [
        (sat_out(), True),
        (sat_out(compute_s=1.0), False),
        (sat_out(memory=2000), False),
        (WorkOutcome(UpdateChoice(None, (), StragglerVerdict(True, ())), None), False),
        (sat_out(memory=2000, timings=(Timing("full", 1.0, 9.0),)), True),
    ],
    ids=["computing", "its link", "its memory", "what may not be trained", "tried, and too slow"],
)
def test_only_what_a_faster_device_would_have_done_makes_the_speed_doubtful(what, counts):
    assert bool(Corrections(SPEED).after(device(), what).sat_out) is counts


@pytest.mark.parametrize(
    ("then", "now", "rounds", "why"),
    [
        (1.0, 1.0, 3, "3 rounds in a row were sat out"),
        (1.0, 1.0, 2, ""),
        (4.0, 0.5, 1, "0.5 processes want a core of the machine, and 4.0 did then"),
        (0.1, 0.7, 1, "0.7 processes want a core of the machine, and 0.1 did then"),
        (0.1, 0.5, 1, ""),
        (4.0, 6.0, 1, ""),
        (4.0, 0.5, 0, ""),
        (None, 1.0, 1, "the load of the machine then is not known"),
        (None, None, 2, ""),
        (0.5, None, 2, ""),
        (None, None, 3, "3 rounds in a row were sat out"),
    ],
)
def test_a_device_that_sits_out_doubts_its_speed_at_the_third_round_or_when_the_load_has_changed_much(
    then, now, rounds, why
):
    assert Corrections(SPEED, load=then, sat_out=rounds).doubted(now) == why
