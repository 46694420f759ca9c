from hashlib import sha256

import msgspec
import numpy as np
import pytest

from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.data import DataSet, DataSpec, divide, divide_fleet, load, loading
from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.scenarios import scenario

EVERY = (
    {"partition": "iid"},
    {"partition": "iid", "quantity_sigma": 1.0},
    {"partition": "iid", "quantity_alpha": 0.5},
    {"partition": "iid", "samples_per_client": 90, "reuse": True},
    {"partition": "dirichlet"},
    {"partition": "dirichlet", "quantity_sigma": 0.5, "min_samples": 5},
    {"partition": "dirichlet", "samples_per_client": 90, "reuse": True},
    {"partition": "dirichlet-by-class", "alpha": 0.1},
    {"partition": "shards"},
    {"partition": "classes", "classes_per_client": 3},
    {"partition": "natural"},
    {"partition": "natural", "samples_per_client": 3},
)

MARKS = (
    "898d41be", "d6643538", "9c4fe947", "a10ecbd3", "6dde4656", "3454b87e", "89e0fec2", "29e82b10",
    "0f977d18", "2699b4e1", "e398a952", "ddcf6fc0",
)  # fmt: skip
"""Of the partitions by EVERY, as they were before groups of a fleet could have data of their own."""


def mark(parts):
    return sha256(b"|".join(part.tobytes() for part in parts)).hexdigest()[:8]


@pytest.fixture(scope="module")
def data():
    y = np.random.default_rng(0).integers(0, 10, 1000)
    x = np.arange(1000, dtype=np.int32)
    return DataSet(x, y, x[:9], y[:9], tuple("0123456789"), np.arange(1000) // 10)


@pytest.mark.parametrize("fields", EVERY, ids=str)
def test_a_seed_gives_the_same_parts_and_another_others(data, fields):
    spec = DataSpec(**fields)
    first, again, other = (divide(data, spec, 20, seed) for seed in (1, 1, 2))
    assert len(first) == 20
    assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in first)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("fields", "expected"), list(zip(EVERY, MARKS, strict=True)), ids=str)
def test_partitions_are_the_same_bits_from_version_to_version(data, fields, expected):
    assert mark(divide(data, DataSpec(**fields), 20, 1)) == expected
    assert mark(divide_fleet(data, DataSpec(**fields), fleets.load("mixed").draw(20, 1))) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("buffered", "220c9c36"), ("digits", "4dcd4f82"), ("ten-thousand", "e661f1a2")]
)
def test_shipped_scenarios_divide_their_data_as_they_always_have(name, expected):
    shipped = scenario.load(name)
    fleet = shipped.fleet.draw(shipped.devices, 0)
    assert mark(divide_fleet(load(shipped.data, 0), shipped.data, fleet)) == expected


@pytest.mark.parametrize("fields", EVERY, ids=str)
def test_nothing_is_given_twice_unless_asked_for(data, fields):
    every = np.concatenate(divide(data, DataSpec(**fields), 20, 3))
    assert (len(np.unique(every)) == len(every)) != fields.get("reuse", False)


@pytest.mark.parametrize("partition", ["natural", "dirichlet-by-class", "shards", "classes"])
def test_samples_per_client_is_a_most_where_sizes_follow_from_the_data(data, partition):
    parts = divide(data, DataSpec(partition=partition, samples_per_client=4), 20, 0)
    assert max(len(part) for part in parts) == 4


def test_more_devices_than_samples_is_an_error(data):
    with pytest.raises(DataSetError, match="1001 devices, but 1000 training samples: each needs one sample"):
        divide(data, DataSpec(), 1001, 0)
    with pytest.raises(DataSetError, match="fewer devices, or reuse = true with samples_per_client$"):
        divide(data, DataSpec(), 1001, 0)
    with pytest.raises(DataSetError, match="fewer devices$"):  # shards are not given twice
        divide(data, DataSpec(partition="shards"), 1001, 0)
    with pytest.raises(DataSetError, match="101 devices, but 1000 .* each needs 10 samples at least"):
        divide(data, DataSpec(min_samples=10), 101, 0)
    with pytest.raises(DataSetError, match="0 devices, expected 1 or more"):
        divide(data, DataSpec(), 0, 0)


def test_natural_needs_groups():
    with pytest.raises(DataSetError, match="samples of source digits have no groups"):
        spec = DataSpec(partition="natural")
        divide(load(spec, 0), spec, 3, 0)


def test_many_devices_of_few_samples():
    y = np.arange(50_000) % 10
    data = DataSet(y, y, y[:1], y[:1], tuple("0123456789"))
    parts = divide(data, DataSpec(alpha=0.1), 10_000, 0)
    assert [len(part) for part in parts] == [5] * 10_000
    assert len(np.unique(np.concatenate(parts))) == 50_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "nope"}, "source is 'nope', expected one of digits, npz"),
        ({"partition": "nope"}, "partition is 'nope', expected one of iid, dirichlet, "),
        ({"alpha": 0}, "alpha"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"partition": "shards", "quantity_sigma": 1.0}, "partition shards takes no quantity_sigma"),
        ({"quantity_sigma": 1.0, "quantity_alpha": 1.0}, "both given"),
        ({"reuse": True}, "reuse = true needs samples_per_client"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(fields, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(fields, DataSpec)


def test_the_default_is_the_digits_of_the_demo():
    from device_runtime.simulation import digits

    data, demo = load(DataSpec(), 4), digits.load(np.random.default_rng(4))
    assert np.array_equal(data.train_x, demo.train.x)
    assert np.array_equal(data.test_y, demo.test.y)
    assert len(data.labels) == 10


def drawn(seed=0, devices=20, **shares):
    """A fleet with these shares, or else half strong, a quarter weak, a quarter far."""
    shares = shares or {"strong": 0.5, "weak": 0.25, "far": 0.25}
    groups = {name: {"profile": "pi-4", "share": share} for name, share in shares.items()}
    return fleets.read({"name": "f", "groups": groups}).draw(devices, seed)


def parts_of(data, fleet, groups, **fields):
    """All samples of each group's devices."""
    spec = msgspec.convert({"partition": "dirichlet-by-class", **fields, "groups": groups}, DataSpec)
    parts = divide_fleet(data, spec, fleet)
    assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    every = np.concatenate(parts)
    assert len(np.unique(every)) == len(every)
    return {
        name: np.array([n for i, part in enumerate(parts) if fleet.group(i) == name for n in part], np.int64)
        for name in fleet.spec.groups
    }


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "dirichlet-by-class", "shards", "classes"])
def test_classes_of_a_group_are_with_its_devices_alone_and_the_others_share_the_rest(data, partition):
    parts = parts_of(data, drawn(), {"weak": {"classes": [7, 8, 9]}}, partition=partition)
    assert set(data.train_y[parts["weak"]].tolist()) == {7, 8, 9}
    assert set(data.train_y[parts["strong"]].tolist()) == set(range(7))
    assert set(data.train_y[parts["far"]].tolist()) == set(range(7))


def test_groups_that_name_a_class_share_it_by_their_devices(data):
    """15 devices name class 3: 10 strong ones and 5 weak ones."""
    rest = {"far": {"classes": [0, 1, 2, *range(4, 10)]}}
    parts = parts_of(data, drawn(), {"strong": {"classes": [3]}, "weak": {"classes": [3]}, **rest})
    threes = int((data.train_y == 3).sum())
    assert abs(len(parts["strong"]) - threes * 2 / 3) < 1
    assert len(parts["strong"]) + len(parts["weak"]) == threes
    assert len(parts["far"]) == 1000 - threes


def test_a_share_is_of_what_no_group_names_and_others_share_what_is_left_by_their_devices(data):
    """15 devices without a share, of which 10 are strong, share 600 of 1,000 samples."""
    parts = parts_of(data, drawn(), {"far": {"share": 0.4}})
    assert {name: len(samples) for name, samples in parts.items()} == {"far": 400, "strong": 400, "weak": 200}
    named = int(np.isin(data.train_y, (7, 8, 9)).sum())
    parts = parts_of(data, drawn(), {"weak": {"classes": [7, 8, 9]}, "far": {"share": 0.4}})
    assert len(parts["far"]) == round(0.4 * (1000 - named))


def test_shares_may_be_thirds_written_as_decimals(data):
    shares = {name: {"share": 0.3333333} for name in ("strong", "weak", "far")}
    assert sorted(len(samples) for samples in parts_of(data, drawn(), shares).values()) == [333, 333, 334]
    shares["far"] = {"share": 0.3333335}
    assert sorted(len(samples) for samples in parts_of(data, drawn(), shares).values()) == [333, 333, 334]


@pytest.mark.parametrize("partition", ["iid", "natural"])
def test_speakers_of_a_group_are_with_its_devices_alone(data, partition):
    """100 speakers of 10 samples."""
    parts = parts_of(data, drawn(), {"weak": {"speakers": list(range(30, 40))}}, partition=partition)
    assert set(data.groups[parts["weak"]].tolist()) == set(range(30, 40))
    assert not set(data.groups[parts["strong"]].tolist()) & set(range(30, 40))
    assert len(parts["weak"]) == 100


@pytest.mark.parametrize(
    "groups, alone",
    [
        ({"weak": {"classes": [7, 8]}}, {"weak": (7, 8)}),  # two groups share the rest
        ({"weak": {"classes": [8]}, "far": {"classes": [8, 9]}}, {"strong": tuple(range(8)), "far": (9,)}),
        (
            {"weak": {"classes": [9]}, "strong": {"classes": [0]}, "far": {"share": 1.0}},
            {"strong": (0,), "far": tuple(range(1, 9)), "weak": (9,)},
        ),
        ({"weak": {"share": 0.5}}, {}),
    ],
)
def test_classes_of_one_group_alone_are_those_that_no_other_group_is_dealt(data, groups, alone):
    fleet = drawn(strong=0.5, weak=0.25, far=0.25)
    names = tuple(fleet.spec.groups)
    dealt = {group: set(data.train_y[part].tolist()) for group, part in parts_of(data, fleet, groups).items()}
    spec = msgspec.convert({"groups": groups}, DataSpec)
    assert spec.held_alone(names, 10) == alone
    for group in names if alone else ():
        others = set().union(*(dealt[other] for other in names if other != group))
        assert dealt[group] - others == set(alone.get(group, ()))


def test_a_group_that_is_the_whole_fleet_holds_nothing_alone():
    spec = msgspec.convert({"groups": {"all": {"classes": [0, 1]}}}, DataSpec)
    assert spec.held_alone(("all",), 2) == {}


def test_samples_of_nobody_are_with_all_groups_though_others_name_speakers(data):
    """100 samples of nobody, 5 for each of 20 devices."""
    mixed = DataSet(data.train_x, data.train_y, data.test_x, data.test_y, data.labels, data.groups - 10)
    mixed.groups[mixed.groups < 0] = -1
    parts = parts_of(mixed, drawn(), {"weak": {"speakers": list(range(10))}}, partition="natural")
    nobody_s = {name: int((mixed.groups[samples] == -1).sum()) for name, samples in parts.items()}
    assert nobody_s == {"far": 25, "strong": 50, "weak": 25}


def test_by_natural_a_speaker_is_with_one_device_also_where_groups_have_shares(data):
    spec = msgspec.convert({"partition": "natural", "groups": {"weak": {"share": 0.5}}}, DataSpec)
    parts = divide_fleet(data, spec, drawn())
    speakers = [set(data.groups[part].tolist()) for part in parts]
    assert sum(map(len, speakers)) == len(set.union(*speakers)) == 100
    fleet = drawn()
    assert sum(len(own) for i, own in enumerate(speakers) if fleet.group(i) == "weak") == 50


def test_natural_has_a_speaker_for_every_device_where_there_are_as_many(data):
    spec = msgspec.convert({"partition": "natural", "groups": {"weak": {"share": 0.25}}}, DataSpec)
    assert [len(part) for part in divide_fleet(data, spec, drawn(devices=100))] == [10] * 100


@pytest.mark.parametrize("fields", EVERY, ids=str)
def test_a_seed_gives_groups_the_same_parts_in_whichever_order_they_are_written(data, fields):
    groups = {"weak": {"classes": [7, 8, 9]}, "far": {"share": 0.5}}
    turned = dict(reversed(groups.items()))
    first, again, other = (
        divide_fleet(data, msgspec.convert({**fields, "groups": written}, DataSpec), fleet)
        for written, fleet in (
            (groups, drawn(1)), (turned, drawn(1, far=0.25, strong=0.5, weak=0.25)), (groups, drawn(2)),
        )
    )  # fmt: skip
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("groups", "fields", "message"),
    [
        ({"wek": {"classes": [1]}}, {}, "data.groups.wek: none of the fleet's 20 devices is of this group"),
        ({"weak": {"classes": [1, 12]}}, {}, "data.groups.weak has class 12, the data has 10, from 0 to 9"),
        (
            {"weak": {"speakers": [100]}},
            {},
            "data.groups.weak has speaker 100, the data has 100, from 0 to 99",
        ),
        (
            {name: {"classes": [0, 1]} for name in ("weak", "strong", "far")},
            {},
            "data.groups: no device would hold class 2: no group names it",
        ),
        (
            {"weak": {"classes": [0]}, "strong": {"share": 0.5}, "far": {"share": 0.25}},
            {},
            "data.groups: no device would hold class 1: shares of 0.75 in all, expected 1",
        ),
        (
            {"weak": {"share": 0.5}, "far": {"share": 0.5}},
            {},
            "group strong of the fleet would hold nothing: no samples are left for it",
        ),
        ({"weak": {"classes": list(range(10))}}, {}, "group far of the fleet would hold nothing"),
        (
            {"weak": {"classes": [1]}},
            {"partition": "classes"},
            "group weak of the fleet: classes_per_client is 2, the training data has 1 classes",
        ),
        (
            {"weak": {"share": 0.004}},
            {},
            "group weak of the fleet: 5 devices, but 4 training samples: each needs one sample",
        ),
    ],
)
def test_what_groups_cannot_hold_is_said_with_the_group(data, groups, fields, message):
    with pytest.raises(DataSetError) as caught:
        parts_of(data, drawn(), groups, **fields)
    assert str(caught.value).startswith(message)


def test_a_group_without_devices_cannot_hold_anything(data):
    fleet = drawn(devices=3, strong=0.9, weak=0.1)
    with pytest.raises(
        DataSetError, match="data.groups.weak: none of the fleet's 3 devices is of this group"
    ):
        parts_of(data, fleet, {"weak": {"classes": [1]}})
    assert len(parts_of(data, fleet, {"strong": {"share": 1.0}})["strong"]) == 1000


def test_speakers_cannot_be_named_where_the_data_has_none():
    spec = msgspec.convert({"groups": {"weak": {"speakers": [1]}}}, DataSpec)
    with pytest.raises(
        DataSetError, match="samples of source digits have no speakers: .* cannot name speakers"
    ):
        divide_fleet(load(spec, 0), spec, drawn())


def test_groups_need_a_fleet(data):
    spec = msgspec.convert({"groups": {"weak": {"share": 0.5}}}, DataSpec)
    with pytest.raises(DataSetError, match="data.groups has weak: expected a fleet with these groups"):
        divide(data, spec, 20, 0)


def test_more_than_a_million_devices_that_reuse_samples_have_repeated_parts(monkeypatch):
    monkeypatch.setattr(loading, "MANY", 50)
    monkeypatch.setattr(loading, "REPEATED", 20)
    spec = DataSpec(alpha=0.3, samples_per_client=10, reuse=True)
    data = load(spec, 0)
    few, many = divide(data, spec, 20, 3), divide(data, spec, 51, 3)
    assert len(divide(data, spec, 50, 3)) == 50
    assert [part.tolist() for part in many] == [few[device % 20].tolist() for device in range(51)]
    assert many[-1].tolist() == few[10].tolist()
    clients = loading.Clients.of(data.train_x, data.train_y, many)
    assert (len(clients), clients.parts, len(clients.sizes())) == (51, 20, 20)
    assert all(clients.indices(device).tolist() == many[device].tolist() for device in range(51))


def test_devices_may_keep_their_samples_of_one_class_alone():
    data = load(DataSpec(), 0)
    parts = divide(data, DataSpec(samples_per_client=30), 40, 3)
    normal = loading.Clients.of(data.train_x, data.train_y, parts).of_class(0)
    assert len(normal) == 40
    expected = [part[data.train_y[part] == 0].tolist() for part in parts]
    assert [normal.indices(device).tolist() for device in range(40)] == expected
    assert [] in expected


def test_devices_keep_a_share_of_their_samples_for_their_own_test():
    data = load(DataSpec(), 0)
    parts = divide(data, DataSpec(samples_per_client=30), 40, 3)
    clients = loading.Clients.of(data.train_x, data.train_y, [*parts, parts[0][:1]])
    training, test = clients.split(0.2)
    assert len(training) == len(test) == 41
    assert training.sizes().tolist() == [24] * 40 + [1]  # never all: a single sample trains
    assert test.sizes().tolist() == [6] * 40 + [0]
    for device in range(41):
        both = np.concatenate([training.indices(device), test.indices(device)])
        assert sorted(both.tolist()) == sorted(clients.indices(device).tolist())
