"""Every table that comes with the package."""

from collections import Counter

import msgspec
import pytest

from benchmarks.papers import catalogue, resolving
from benchmarks.papers.claims import ClaimVerdict, claims, verdicts
from benchmarks.papers.measures import value_of
from benchmarks.papers.places import shared
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.manifest import ABOVE
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario

NAMES = catalogue.names()


def cells(table):
    for scale in table.scales:
        for column in table.columns_at(scale):
            for row in table.rows_at(scale, column):
                yield scale, column, row


def test_tables_are_in_the_order_of_their_numbers():
    assert len(NAMES) >= 15
    assert NAMES.index("paper:002-t5.7") < NAMES.index("paper:002-t5.11")
    heads = ("headline", "heads", "heads-more", "heads-speech", "heads-text", "mixed")
    assert NAMES[-7:] == tuple(f"ours:{name}" for name in ("clip-norm", *heads))


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_every_scale_and_something_to_run_in_it(name):
    table = catalogue.load(name)
    assert table.scales.keys() == {"smoke", "cpu", "full"}
    assert {scale for scale, _, _ in cells(table)} == {"smoke", "cpu", "full"}
    assert table.scales["smoke"].seeds == 1
    assert all(claim.text for claim in table.claims)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_system_is_known_and_takes_its_settings(name):
    table = catalogue.load(name)
    for scale, column, row in cells(table):
        entry = shared().entry(column.data, scale)
        whole = resolving.layer(table, scale, entry, (column, row))
        assert (whole.bundle in shared().bundles) or whole.bundle == "digits-wrn-10-1"
        assert {name.partition("*")[0] for name in whole.family or ()} <= shared().bundles.keys()
        task = msgspec.convert({"bundle": "any", **whole.task}, Task)
        kinds = resolving._kinds(task, whole, row.system in resolving.MIXED)
        scenario.under(row.system + column.modifier, msgspec.structs.replace(task, kinds=kinds))
        msgspec.convert({"source": "digits", **whole.data}, DataSpec)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("paper:")])
def test_every_printed_accuracy_is_part_of_a_claim(name):
    table = catalogue.load(name)
    claimed = {
        (row, column)
        for claim, columns in claims(table, "full")
        for row in (claim.better, claim.than)
        for column in columns
    }
    for _, column, row in cells(table):
        equal = [other for other in table.rows if other.paper.get(column.id) == row.paper.get(column.id)]
        if column.id in row.paper and table.measure_of(column) == table.measure and len(equal) == 1:
            assert (row.name, column.id) in claimed


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("paper:")])
def test_the_paper_s_own_numbers_are_as_it_claims(name):
    table = catalogue.load(name)
    printed = {
        (row.name, column): (value_of(cell),) for row in table.rows for column, cell in row.paper.items()
    }
    share = {column.id: _size(table, column) for column in table.columns}
    values = {(row, column): (value[0] * share[column],) for (row, column), value in printed.items()}
    judged = [each for each in verdicts(table, "full", values) if each.is_known]
    assert judged
    for each in judged:
        assert each.holds, _verdict_text(each)


def _verdict_text(each: ClaimVerdict) -> str:
    return f"{each.claim.text} in {each.column}: {each.ours.mean}"


def _size(table, column):
    """Of one in the paper's cell: a percentage is printed as 62.95."""
    from benchmarks.papers.measures import MEASURES

    return 0.01 if MEASURES[table.measure_of(column)].percent else 1.0


@pytest.mark.parametrize("name", ["paper:002-t6.8", "paper:002-t6.9"])
def test_fedft_trains_what_lies_above_level_mid(name):
    """Shi 2025, sections 5.3 and 6.2: the split lies after the level's last layer."""
    table = catalogue.load(name)
    for scale, column, row in cells(table):
        whole = resolving.layer(table, scale, shared().entry(column.data, scale), (column, row))
        assert whole.settings["entropy-subset"]["tunable"] == ABOVE["above-mid"]
        assert "--tunable up" in shared().bundles[whole.bundle].export, whole.bundle


def test_table_5_5_deals_the_sizes_and_each_client_has_a_model_of_its_own():
    clients = Counter()
    for group in shared().fleets["dealt-20"]["groups"].values():
        [model] = group["members"]
        clients[int(model.split("-")[2])] += 1
        assert group["share"] == 1 / 20
    assert clients == {10: 6, 16: 4, 22: 4, 28: 4, 34: 2}
    for table, row in (
        ("paper:002-t5.7", "fedat"),
        ("paper:002-t5.11", "fedmd"),
        ("paper:002-t5.11", "fedkad"),
    ):
        layers = next(row_ for row_ in catalogue.load(table).rows if row_.name == row).at
        for scale, fleet in (("full", "dealt-20"), ("cpu", "dealt-10"), ("smoke", "dealt-5")):
            family = [
                copy.replace("#", "-")
                for member in layers[scale].family
                for copy in resolving._copies(member)
            ]
            dealt = [group["members"][0] for group in shared().fleets[fleet]["groups"].values()]
            assert (layers[scale].fleet, sorted(family)) == (fleet, sorted(dealt))
            assert len(set(family)) == len(family)


def test_only_fedavg_without_pre_training_has_no_pass_of_all_clients():
    """Shi 2025, table 6.8: all methods but the first employ the pre-training phase."""
    table = catalogue.load("paper:002-t6.9")
    for scale, column, row in cells(table):
        if scale == "smoke":
            continue
        whole = resolving.layer(table, scale, shared().entry(column.data, scale), (column, row))
        assert (whole.first_epochs["full"] > 0) == (row.name != "random"), row.name
        drawn = "devices_per_round" in whole.task
        assert whole.task.get("ask_all_rounds", 0) == (1 if drawn else 0), row.name


def test_what_is_left_out_is_no_table_and_has_a_reason():
    left = catalogue.left_out()
    assert not left.keys() & set(NAMES)
    assert all(left.values())


def test_a_table_that_there_is_not_is_refused():
    with pytest.raises(ScenarioError, match="no table 'paper:002-t0'; there are paper:000-t3.2"):
        catalogue.load("paper:002-t0")


def test_a_table_that_is_left_out_is_refused_with_the_reason():
    with pytest.raises(ScenarioError, match="paper:002-t4.8 is not run here: averages the few-shot"):
        catalogue.load("paper:002-t4.8")
