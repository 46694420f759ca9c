"""What asks add up to, worked by hand."""

from device_runtime.simulation.history.metrics import BusyDevice, tally


def test_asks_are_counted_by_device_group_and_outcome(ask):
    result = tally(
        [
            ask(),
            ask(round=2, kind="few-shot"),
            ask(device="pi-5-1", fate="late"),
            ask(device="zero-0", group="zero", fate="crashed", upload_s=0.0),
            ask(device="zero-0", group="zero", kind="", fate="sat out", compute_s=0.0, upload_s=0.0),
        ]
    )
    assert result.asks == 5
    assert result.counted == {"pi-5-0": 2, "pi-5-1": 0, "zero-0": 0}
    assert result.outcomes == {
        ("pi-5", "full"): 1,
        ("pi-5", "few-shot"): 1,
        ("pi-5", "late"): 1,
        ("zero", "crashed"): 1,
        ("zero", "sat out"): 1,
    }
    assert result.kinds == {"full": 1, "few-shot": 1}
    assert result.groups == ("pi-5", "zero")
    assert result.busy == {
        "pi-5-0": BusyDevice("pi-5", 2, 16.0),
        "pi-5-1": BusyDevice("pi-5", 1, 8.0),
        "zero-0": BusyDevice("zero", 1, 6.0),
    }


def test_nobody_asked_is_nothing_counted():
    assert tally([]).asks == 0
    assert tally([]).groups == ()
