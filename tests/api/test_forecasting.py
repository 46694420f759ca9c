"""`dr.forecast`, and deadlines by a share of stragglers from Python."""

import pytest

import device_runtime as dr
from device_runtime.simulation.errors import ScenarioError


def test_a_forecast_has_a_table_figures_and_a_picture(tmp_path):
    predicted = dr.forecast("digits", fleet="boards", devices=10, deadline=1.0)
    assert predicted.deadline_s == 1.0
    assert predicted.table().startswith("10 devices of fleet boards, bundle digits-wrn-10-1, deadline 1 s: ")
    assert set(predicted.to_dict()["groups"]) <= {
        "zero-2w",
        "pi-3",
        "pi-4",
        "pi-5",
        "jetson-nano",
        "orin-nano",
    }
    assert predicted.figures.needs_s.shape == (10,)
    assert 0 < predicted.stragglers <= 1
    predicted.plot(tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")


def test_a_simulation_takes_a_deadline_by_stragglers_and_keeps_the_seconds(tmp_path):
    setting = {"fleet": "boards", "devices": 10, "deadline": "30% stragglers"}
    run = {"rounds": 1, "policies": ["class-means"], "progress": False, "run_dir": tmp_path / "run"}
    result, expected = dr.simulate("digits", **setting, **run), dr.forecast("digits", **setting)
    assert result.scenario.task.round_deadline_s == expected.deadline_s
    assert result.scenario.stragglers is None
    assert "stragglers (class-means): 30% of the devices" in result.table()


@pytest.mark.parametrize("deadline", ["soon", "30%", "30 stragglers"])
def test_another_text_is_refused(deadline):
    with pytest.raises(ScenarioError, match='expected seconds, or such as "30% stragglers"'):
        dr.forecast("digits", deadline=deadline)
