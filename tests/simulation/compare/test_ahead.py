"""What is said before any run is started."""

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.compare.plan import bundle_sha256, check, fit
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.errors import DataSetError, ExecutorError, ScenarioError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.scenarios import scenario

RUNS = (RunName("choose", 0), RunName("drop", 0))
DIGITS = Bundle.open(bundles.find_bundle("digits-wrn-10-1"))


def of(x, labels=10):
    y = np.zeros(len(x), np.int64)
    return DataSet(x, y, x, y, tuple(str(label) for label in range(labels)))


def test_what_fits_is_passed_with_or_without_the_axis_of_a_single_channel():
    check(scenario.load("digits", {"devices": 3}), RUNS, ExecutorRequest("plain"))
    fit(of(np.zeros((5, 8, 8), np.uint8)), DIGITS.manifest, "npz")


def test_samples_of_another_shape_are_refused_with_both():
    with pytest.raises(
        ScenarioError, match=r"^samples of npz are uint8 3x32x32, bundle \S+ takes float32 1x8x8 \("
    ):
        fit(of(np.zeros((5, 3, 32, 32), np.uint8)), DIGITS.manifest, "npz")


def test_more_classes_than_the_bundle_has_are_refused_even_if_no_sample_is_of_the_last():
    with pytest.raises(ScenarioError, match=r"npz has 12 classes, bundle \S+ has 10"):
        fit(of(np.zeros((5, 8, 8), np.uint8), labels=12), DIGITS.manifest, "npz")


@pytest.mark.parametrize(
    "over, executor, error",
    [
        ({"devices": 5000}, ExecutorRequest(), DataSetError),
        ({"data": {"source": "cifar10"}}, ExecutorRequest(), DataSetError),
        ({"task": {"bundle": "nothing"}}, ExecutorRequest(), bundles.BundleError),
        ({}, ExecutorRequest("magic"), ExecutorError),
    ],
)
def test_what_every_run_would_stumble_over_is_raised(over, executor, error):
    with pytest.raises(error):
        check(scenario.load("digits", over), RUNS, executor)


def test_a_policy_that_the_bundle_cannot_do_is_refused(monkeypatch):
    own = scenario.load("digits", {"devices": 3, "task": {"kinds": [{"name": "full"}]}})
    manifest = type(DIGITS.manifest)
    graphs = manifest.graphs.__get__
    untrained = property(
        lambda of: {name: graph for name, graph in graphs(of).items() if name != "train.all"}
    )
    monkeypatch.setattr(manifest, "graphs", untrained)
    with pytest.raises(ScenarioError, match="no device can do what round 1 offers"):
        check(own, RUNS, ExecutorRequest("plain"))


def test_a_bundle_is_known_by_its_content_and_none_by_nothing():
    assert bundle_sha256("digits-wrn-10-1") == DIGITS.sha256
    assert bundle_sha256("nowhere/at/all") == ""


def test_a_policy_is_held_against_the_family_that_the_task_has(tmp_path, monkeypatch):
    """Which is here the same network by another name: the whole is a part of itself."""
    named = msgspec.structs.replace(DIGITS.manifest, name="twin", seal="")
    graphs = {name: DIGITS.graph(name) for name in named.graphs}
    twin = bundles.write(tmp_path / "twin", named, DIGITS.weights(), graphs)
    own = scenario.load("digits", {"devices": 3, "task": {"family": [str(twin.path)]}})
    check(own, (RunName("heterofl", 0),), ExecutorRequest("plain"))
    kind = KindSettings(name="width-slice", settings={"members": ["other"]})
    other = msgspec.structs.replace(own, task=msgspec.structs.replace(own.task, kinds=(kind,)))
    monkeypatch.setattr("device_runtime.simulation.compare.plan.of_policy", lambda *_: other)
    with pytest.raises(
        ScenarioError,
        match="heterofl: members of width-slice: no 'other' in the task's family",
    ):
        check(own, (RunName("heterofl", 0),), ExecutorRequest("plain"))
