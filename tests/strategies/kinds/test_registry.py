import msgspec
import pytest

from device_runtime.broker.wire.messages import Kind, encode_settings
from device_runtime.strategies.kinds import names, registry
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.names import EXACT_KINDS
from device_runtime.strategies.kinds.registry import KindError
from device_runtime.strategies.terms.dp_sgd import DpSgd, dp_settings

NAN = float("nan")


@pytest.mark.parametrize("name", registry.KINDS)
def test_settings_travel_in_the_offer_and_come_back_equal(name):
    strategy = registry.make(name)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(registry.write(strategy)), type=Kind)
    assert registry.read(wire) == strategy


def test_hyperparameters_differ_from_the_defaults_on_both_ends_alike():
    strategy = EntropySubset(shares=(0.3,), rho=0.5)
    assert registry.read(registry.write(strategy)) == strategy


def test_settings_within_settings_travel_whole():
    strategy = registry.make("full+few-shot", {"terms": {"fedprox": {"mu": 0.1}}, "few_shot": {"shots": 3}})
    assert registry.read(registry.write(strategy)) == strategy
    settings = msgspec.msgpack.decode(registry.write(strategy).settings)
    assert (settings["few_shot"]["shots"], settings["few_shot"]["lr"], settings["terms"]) == (
        3,
        0.01,
        {"fedprox": {"mu": 0.1}},
    )
    private = registry.make("peft", {"terms": {"dp-sgd": {"rounds": 7}}})
    assert (dp_settings(private), registry.read(registry.write(private))) == (DpSgd(rounds=7), private)


def test_the_default_order_is_richest_first():
    assert [name for name in registry.KINDS if name in registry.DEFAULT_KINDS] == list(registry.DEFAULT_KINDS)


@pytest.mark.parametrize(
    "newer",
    [
        Kind("quantum", encode_settings({})),
        Kind("zeroth-order", encode_settings({"generator": "quantum/1"})),
        Kind("full", encode_settings(3)),
    ],
)
def test_a_kind_of_a_newer_aggregator_is_passed_over_and_the_others_are_not(newer, caplog):
    assert registry.supported_kinds((newer, registry.write(FedAvg()))) == (FedAvg(),)
    assert "kind not supported" in caplog.text
    with pytest.raises(KindError):
        registry.supported_kinds((newer,))


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("telepathy", {}, "no kind of update is called 'telepathy'; there are full"),
        ("full", {"epochs": "many"}, "settings of full: epochs: expected `int`"),
        ("entropy-subset", {"shares": [2.0]}, "settings of entropy-subset: .*shares"),
        ("entropy-subset", {"shares": [NAN]}, "shares is nan, expected more than 0 to 1"),
        ("entropy-subset", {"rho": NAN}, "rho is nan, expected more than 0"),
        ("entropy-subset", {"tunable": "toes"}, "tunable is 'toes', expected one of all, mid, up, head"),
        ("full", {"epochs": 0}, "epochs is 0, expected 1 to 1000000"),
        ("full", {"epochs": 10**12}, "epochs is 1000000000000"),
        ("full", {"batch": -1}, "batch is -1"),
        ("full", {"lr": NAN}, "lr is nan"),
        ("full", {"terms": {"fedprox": {"mu": -0.1}}}, "mu is -0.1, expected more than 0"),
        ("full", {"momentum": 1.0}, "momentum is 1.0, expected at least 0 and less than 1"),
        ("full", {"momentum": NAN}, "momentum is nan"),
        ("few-shot", {"shots": 0}, "shots is 0"),
        ("few-shot", {"weight_decay": float("inf")}, "weight_decay is inf"),
        ("zeroth-order", {"num_z": 0}, "num_z is 0, expected 1 to 1024"),
        ("zeroth-order", {"eps": 0.0}, "eps is 0.0"),
        ("zeroth-order", {"tunable": ""}, "tunable is '', expected one of"),
        ("zeroth-order", {"generator": "torch-normal/1"}, "generator is 'torch-normal/1', expected one of"),
        ("full", {"terms": {"dp": {}}}, "no local term is called 'dp'; there are fedprox"),
        ("full", {"terms": ["fedprox"]}, r"terms is \['fedprox'\], expected a table by name of a term"),
        ("full", {"terms": {"moon": 1.0}}, "settings of full's term moon are 1.0, expected a table"),
        ("full", {"terms": {"dp-sgd": {"epsilon": 0.0}}}, "settings of full's term dp-sgd: epsilon is 0.0"),
        (
            "full",
            {"terms": {"dp-sgd": {"sigma": 1.0}}},
            "full's term dp-sgd has no setting 'sigma'; it has epsilon, delta",
        ),
        ("full+few-shot", {"few_shot": {"batsh": 4}}, "full.few-shot's few_shot has no setting 'batsh'"),
        ("full+few-shot", {"few_shot": {"batch": 0}}, "settings of full.few-shot: few_shot: batch is 0"),
        ("full+few-shot", {"few_shot": 3}, "settings of full.few-shot: few_shot: expected `object`"),
        ("class-means", {"steps": 0}, "steps is 0"),
        ("class-means", {"head": "none"}, "settings of class-means: head: expected one of .*, not 'none'"),
    ],
)
def test_wrong_kinds_and_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(KindError, match=message):
        registry.make(name, settings)
    with pytest.raises(KindError, match=message):
        registry.read(Kind(name, encode_settings(settings)))


@pytest.mark.parametrize("settings", [b"\x81\xa2lr\xa1\xff", b"\x81\xa2lr", b"\x91" * 5000])
def test_settings_that_cannot_be_read_are_refused_as_wrong_ones_are(settings):
    with pytest.raises(KindError, match="settings of full: "):
        registry.read(Kind("full", msgspec.Raw(settings)))


def test_the_kinds_that_are_known_to_send_exactly_are_those_without_a_codec():
    assert {name for name in registry.KINDS if not registry.codec_setting(name, "any")} == EXACT_KINDS


def test_the_names_that_are_known_without_any_import_are_those_of_the_registry():
    assert tuple(registry.KINDS) == names.KINDS
    names.check_kinds(registry.KINDS)


@pytest.mark.parametrize("name", registry.KINDS)
def test_a_value_of_a_wrong_type_is_refused_in_every_setting_of_every_kind_with_its_key(name):
    for row in registry.list_settings(registry.kind(name)):
        if row.name.startswith("terms"):
            continue
        for wrong in ("no such word", {"no such key": 1}, [[]], None, -1e300):
            settings = wrong
            for part in reversed(row.name.split(".")):
                settings = {part: settings}
            try:
                registry.make(name, settings)
            except KindError as error:
                assert name in str(error)
