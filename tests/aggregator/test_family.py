"""A task with smaller models on a bench: what their updates are held against, and what is kept of them.

The smaller one here is the main network under another name: a part of it that is all of it.
"""

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError, TaskError
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import manifest as manifests

SLICE = KindSettings(name="width-slice", settings={"members": ["", "twin"]})


@pytest.fixture
def twin(bundle, tmp_path):
    """Writes it below this name, with all weights moved by `by`, and returns its path."""

    def write(name="twin", folder="twin", by=0.0, **changes):
        manifest = msgspec.structs.replace(bundle.manifest, name=name, **changes)
        graphs = {name: bundle.graph(name) for name in manifest.graphs}
        weights = {name: value + np.float32(by) for name, value in bundle.weights().items()}
        manifest = manifests.decode(manifests.encode(manifest))
        return str(bundles.write(tmp_path / folder, manifest, weights, graphs).path)

    return write


def moved(bundle, by):
    return {name: bundle.weights()[name] + np.float32(by) for name in bundle.manifest.names("all")}, 10


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("", "has no name"), ("twin", "called 'twin'"), ("digits-wrn-10-1", "called 'digits")],
)
def test_models_of_one_name_are_refused(bench, make_task, twin, name, refusal):
    """The main model is known by the empty one, and by its own."""
    family = (twin("twin"), twin(name, "second"))
    with pytest.raises(TaskError, match=refusal):
        bench(make_task("full", family=family))


def test_a_smaller_model_that_sees_other_numbers_is_refused_with_what_differs(bench, make_task, twin, bundle):
    unscaled = msgspec.structs.replace(bundle.manifest.input, scale=1.0)
    with pytest.raises(TaskError, match=r"twin has other inputs .*: scale is 1\.0, not 0\.0625$"):
        bench(make_task("full", family=(twin(input=unscaled),)))


def test_a_run_that_was_begun_with_another_smaller_model_is_refused(bench, make_task, twin):
    """As one with another main model: bases that were kept are not of it."""
    b = bench(make_task(SLICE, family=(twin(),)))
    b.join("a")
    b.restart()
    assert b.service.state.round == 1
    twin(by=0.5)
    with pytest.raises(RunFolderError, match="another bundle .*twin"):
        b.restart()


def test_an_update_of_a_smaller_model_is_held_against_its_own_base_late_ones_against_that_of_their_round(
    bench, make_task, twin, bundle
):
    """Rounds of one update, which moves the biases of the head by 1: at most 4 away is accepted.

    The third round's base is 2 from the start: what is 5 from the start is 3 from it, and 4 from round 2's.
    """
    slices = msgspec.structs.replace(SLICE, max_norm=4.0 * 10**0.5 + 1e-3)
    name = bundle.manifest.head.bias
    b = bench(make_task(slices, family=(twin(),), rounds=9, buffer_size=1, max_staleness=2))
    b.join("a", "b")

    def update(to):
        return {**moved(bundle, 0)[0], name: bundle.weights()[name] + np.float32(to)}, 10

    def send(device, to, number):
        [receipt] = b.contribute(device, b.contribution("width-slice", update(to), number, form="twin"))
        return receipt.status

    def base(number):
        return float(
            (
                b.weights(b.store.rounds.start(number).carried.family["twin"])[name] - bundle.weights()[name]
            ).mean()
        )

    assert [send("a", 1.0, 1), send("a", 2.0, 2)] == ["accepted", "accepted"]
    assert base(3) == pytest.approx(2.0, abs=1e-5)
    b.restart()
    b.join("a", "b")
    assert [send("b", 5.5, 2), send("b", 5.0, 2)] == ["refused", "accepted"]
    assert base(4) == pytest.approx(2 + 4 * 2**-0.5, abs=1e-5)
    for number in (4, 5, 6):
        assert send("a", base(number) + 1, number) == "accepted"
    assert [send("b", 5.0, 4), send("b", base(5), 5)] == ["late", "accepted"]


@pytest.mark.parametrize("form", ["no such", "../../twin", "\x00", "twin " * 1000])
def test_a_variant_that_there_is_not_is_refused(bench, make_task, twin, bundle, form):
    b = bench(make_task(SLICE, family=(twin(),)))
    b.join("a")
    [receipt] = b.contribute("a", b.contribution("width-slice", moved(bundle, 1.0), form=form))
    assert receipt.status == "refused"
    assert "width-slice has no variant " in receipt.reason and len(receipt.reason) < 150


def test_nothing_comes_unasked_where_devices_may_train_another_model(bench, make_task, twin, bundle):
    b = bench(make_task(SLICE, family=(twin(),)))
    b.join("a", "b")
    b.contribute("a", b.contribution("width-slice", moved(bundle, 1.0), form="twin"))
    b.contribute("b", b.contribution("width-slice", moved(bundle, 1.0)))
    assert b.offer.round == 2
    assert not [topic for topic, _ in b.link.sent if "/block/" in topic and "/dn/" in topic]


def test_members_of_a_family_that_no_setting_names_are_offered(bench, make_task, twin, bundle):
    """`family` alone was unused, and every device trained the large network."""
    b = bench(make_task("full", "width-slice", family=(twin(),)))
    b.join("a")
    [offered] = [kind for kind in b.service.rounds.task.kinds if kind.name == "width-slice"]
    assert offered.strategy.members == ("twin",)
    b.restart()  # its task is the same
    assert b.service.state.round == 1


def test_a_family_that_no_kind_trains_is_logged(bench, make_task, twin, caplog):
    bench(make_task("full", family=(twin(),)))
    assert "family has no effect: of the kinds of update only" in caplog.text
