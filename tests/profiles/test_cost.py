from dataclasses import replace

import pytest

from device_runtime.profiles import (
    Bandwidth,
    DeviceProfile,
    GraphPass,
    GraphWork,
    Memory,
    Power,
    Speed,
    Work,
    Workload,
    predict,
)
from device_runtime.profiles.cost import (
    GRAPH_FACTOR,
    SESSION_BYTES,
    activation_bytes,
    classify,
    misfit_reasons,
    session_bytes,
    speed_on_bundle,
    with_measured_memory,
    with_upload,
)


def device(**changes):
    usual = {
        "name": "d",
        "cores": 2,
        "memory": Memory(1000, 500, 100),
        "speed": Speed(100.0, {"forward": 0.5}),
        "bandwidth": Bandwidth(up=10.0, down=20.0),
        "power": Power(idle_w=2.0, load_w=6.0),
    }
    return DeviceProfile(**{**usual, **changes})


WORK = Work(
    (GraphPass("forward", 4, 10.0), GraphPass("train.all", 8, 25.0)),
    peak_bytes=300,
    bytes_up=30,
    bytes_down=40,
)


def test_time_is_measured_graphs_and_flops_and_the_link():
    """4 * 0.5 s measured, 8 * 25 / 100 s by FLOPs, 30/10 + 40/20 s of transfer."""
    cost = predict(device(), WORK, "full")
    assert (cost.compute_s, cost.seconds) == (4.0, 9.0)


def test_a_larger_upload_takes_longer_and_the_energy_of_waiting():
    """30 bytes more at 10 a second: 3 s, at 2 W."""
    cost = predict(device(), WORK, "full")
    more = with_upload(cost, 60, device())
    assert (more.bytes_up, more.seconds, more.energy_j) == (60, cost.seconds + 3.0, cost.energy_j + 6.0)
    assert with_upload(more, 30, device()) == cost


def test_each_graph_is_opened_once_and_steps_of_the_classifier_take_time_beside_their_operations():
    """1 + 2 s to open, 2 * 4 * 0.5 s measured, 8 * 25 / 100 s by FLOPs, 5 steps of 0.1 s."""
    speed = Speed(100.0, {"forward": 0.5}, opening={"forward": 1.0, "train.all": 2.0}, step_s=0.1)
    twice = replace(WORK, passes=(WORK.passes[0], *WORK.passes, GraphPass("head", 0, 1.0, steps=5)))
    assert predict(device(speed=speed), twice, "full").compute_s == pytest.approx(9.5)


def test_what_a_kind_was_seen_to_add_beyond_its_prediction_is_added_to_the_next():
    cost = predict(device(growth={"full": 1.5}), WORK, "full")
    assert cost.peak_memory_bytes == 100 + 450
    assert predict(device(growth={"full": 1.5}), WORK, "few-shot").peak_memory_bytes == 400


def test_energy_is_load_while_computing_and_idle_while_waiting():
    assert predict(device(), WORK, "full").energy_j == 4 * 6 + 5 * 2


def test_memory_is_the_idle_process_and_what_the_work_adds():
    assert predict(device(), WORK, "full").peak_memory_bytes == 400


def test_corrections_hold_for_their_kind_only_and_for_compute_only():
    corrected = device(corrections={"full": 2.0})
    assert predict(corrected, WORK, "full").seconds == 13.0
    assert predict(corrected, WORK, "few-shot").seconds == 9.0


@pytest.mark.parametrize(
    "deadline_s, limit, straggler, reasons",
    [
        (9.0, 400, False, ()),
        (8.9, 400, True, ("needs 9.0 s and has 8.9 s (mostly on the link)",)),
        (9.0, 399, True, ("needs 0 MB of 0 MB",)),
    ],
)
def test_a_straggler_exceeds_the_deadline_or_the_memory(deadline_s, limit, straggler, reasons):
    verdict = classify(predict(device(), WORK, "full"), Memory(1000, limit, 100), deadline_s)
    assert (verdict.straggler, verdict.reasons) == (straggler, reasons)


def test_both_respects_are_named():
    assert len(misfit_reasons(predict(device(), WORK, "full"), Memory(1, 1), 1.0)) == 2


def test_activations_are_of_one_batch_at_most():
    load = Workload(
        graphs={"forward": GraphWork(1.0, 7, 3, rows=32, file_bytes=2)},
        parameters={},
        tensors={},
        weights_bytes=0,
        download_bytes=0,
        feature_width=4,
        class_counts=(5, 0, 2),
        sample_bytes=1,
    )
    assert (load.samples, load.labels, load.head_flops) == (7, 3, 24.0)
    session = session_bytes(2)
    assert session == SESSION_BYTES + 2 * GRAPH_FACTOR
    assert activation_bytes(load, "forward") == session + 7 + 32 * 3
    assert activation_bytes(load, "forward", 5) == session + 7 + 5 * 3
    assert activation_bytes(load, "forward", 500) == session + 7 + 32 * 3
    profile = with_measured_memory(load, Speed(1.0, held_bytes={"forward": 77}))
    assert [activation_bytes(profile, "forward", n) for n in (None, 500, 32)] == [77] * 3
    assert activation_bytes(profile, "forward", 5) == session + 7 + 5 * 3  # of fewer nothing was seen
    assert with_measured_memory(load, Speed(1.0)) == load


def test_a_device_of_less_memory_makes_smaller_runs_but_where_a_run_is_a_whole_batch():
    work = GraphWork(1.0, fixed_bytes=10, bytes_per_sample=4, rows=32)
    assert [work.within(most).rows for most in (0, 138, 137, 50, 3)] == [32, 32, 31, 10, 1]
    assert replace(work, whole=True).within(50).rows == 32
    load = Workload({"forward": work}, {}, {}, 0, 0, 4, (5,), 1)
    assert (
        activation_bytes(with_measured_memory(load, Speed(1.0, run_bytes=50)), "forward")
        == session_bytes(0) + 50
    )


def test_another_model_s_graphs_are_as_far_from_their_shapes():
    main, small = (
        Workload({"forward": GraphWork(flops, 0, size, 2)}, {}, {}, 0, 0, 4, (5,), 1)
        for flops, size in ((8.0, 2**20), (4.0, 2**19))
    )
    speed = speed_on_bundle(Speed(1.0, {"forward": 2.0}, held_bytes={"forward": 7 * 2**20}), main, small)
    assert speed.seconds == {"forward": 1.0}
    assert speed.held_bytes == {
        "forward": 7 * 2**20 * 13 // 14
    }  # 12 MiB of a session, and 1 MiB instead of 2
