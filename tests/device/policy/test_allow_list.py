"""What the owner of a device lets tasks ask for."""

import argparse
from dataclasses import replace
from datetime import datetime

import pytest

from device_runtime.broker.wire.link import Connected
from device_runtime.broker.wire.messages import Contribution, Get, Plan
from device_runtime.cli import parse
from device_runtime.cli.on_device import policy_options
from device_runtime.cli.on_device.join import add_arguments
from device_runtime.device.agent.agent import Agent
from device_runtime.device.backend.rpc import WorkTerms
from device_runtime.device.errors import PolicyError
from device_runtime.device.policy import work_gate as owner
from device_runtime.device.policy.rules import AllowList, Conditions, Policy, judge
from device_runtime.device.training.local_task import allowed_statistics
from device_runtime.device.training.settings import Settings
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.attention_transfer import AttentionTransfer
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.prototypes import Prototypes
from device_runtime.strategies.kinds.representatives import Representatives
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.statistics import kind_statistics


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse(parser, ["mqtt://127.0.0.1", *words])


def allowing(stage, allowed):
    """The device of the stage, with this list."""
    settings = replace(Settings("a", stage.folder / "a.npz", stage.folder), allowed=allowed)
    stage.agent = Agent(settings, 1, stage.clock)
    stage.link = stage.wire(stage.agent)
    stage.agent.inbox.put(Connected(first=True))
    return stage


@pytest.mark.parametrize(
    ("allowed", "kind", "why"),
    [
        (AllowList(), FedAvg(), ""),
        (AllowList(kinds=("full",)), FedAvg(), ""),
        (
            AllowList(kinds=("few-shot", "full")),
            ClassMeans(),
            "may not be sent: the owner allows few-shot, full",
        ),
        (AllowList(most_scalars=4), ZerothOrder(num_z=4), ""),
        (AllowList(most_scalars=4), ZerothOrder(num_z=5), "sends 5 scalars, the owner allows 4"),
        (AllowList(most_scalars=4), FedAvg(), ""),
        (AllowList(smallest_count=2), ClassMeans(), ""),
        (
            AllowList(smallest_count=5),
            ClassMeans(),
            "sends classes of 2 samples, the owner allows 5 or more",
        ),
        (AllowList(smallest_count=5), ClassMeans(smallest_count=9), ""),
        (AllowList(smallest_count=5), ClassMeans(statistics=ClassStatistics(smallest_count=5)), ""),
        (
            AllowList(smallest_count=5),
            Prototypes(smallest_count=2, statistics=ClassStatistics(smallest_count=5)),
            "sends classes of 2 samples, the owner allows 5 or more",
        ),
    ],
)
def test_what_an_owner_does_not_allow_is_barred_with_the_reason(allowed, kind, why):
    assert allowed.bars(kind) == why


@pytest.mark.parametrize("kind", [AttentionTransfer, Representatives])
def test_with_a_smallest_count_no_feature_maps_of_single_samples_are_sent(kind):
    assert "feature maps of single samples" in AllowList(smallest_count=2).bars(kind())
    assert AllowList().bars(kind()) == ""


@pytest.mark.slow
def test_a_device_trains_the_next_kind_that_its_owner_allows_and_tells_why(stage):
    allowing(stage, AllowList(kinds=("class-means",)))
    kinds = (registry.write(FedAvg()), registry.write(ClassMeans()))
    stage.link.announce(stage.offer(kinds=kinds))
    stage.go()
    assert [sent.kind for sent in stage.contributions] == ["class-means"]
    reason = "full may not be sent: the owner allows class-means"
    assert reason in stage.link.of(Plan)[-1].reasons


@pytest.mark.slow
def test_a_device_whose_owner_allows_nothing_of_a_round_sits_it_out(stage):
    allowing(stage, AllowList(most_scalars=1))
    stage.link.announce(stage.offer(kinds=(registry.write(ZerothOrder(num_z=1024)),)))
    stage.go()
    assert stage.contributions == []
    assert stage.link.of(Plan)[-1].reasons == ("zeroth-order sends 1024 scalars, the owner allows 1",)


@pytest.mark.slow
def test_a_bundle_that_is_not_allowed_is_not_even_fetched(stage, caplog):
    offer = stage.offer()
    allowing(stage, AllowList(bundles=("0" * 16,)))
    stage.link.announce(offer, unasked=False)
    stage.go()
    assert not stage.link.of(Get) and not stage.link.of(Contribution)
    assert f"bundle {offer.bundle.hex} is not among those that the owner allows" in caplog.text
    allowing(stage, AllowList(bundles=("0" * 16, offer.bundle.hex[:16])))
    stage.link.announce(offer)
    stage.go()
    assert len(stage.contributions) == 1


def test_the_list_is_given_as_options_kept_and_shown_among_the_rules(tmp_path):
    words = "--allow-kinds full,few-shot --most-scalars 8 --smallest-count 5 --allow-bundle " + "AB" * 8
    masks = f"--only-masked --mask-helpers club={'5B' * 32},site={'7c' * 32}"
    policy = policy_options.policy(parsed(*words.split(), *masks.split()))
    helpers = (f"club={'5b' * 32}", f"site={'7c' * 32}")
    assert policy.allowed == AllowList(("full", "few-shot"), ("ab" * 8,), 8, 5, helpers, True)
    owner.keep(policy, tmp_path)
    assert owner.kept_policy(tmp_path) == policy
    verdict = judge(policy, Conditions(datetime(2026, 1, 1)))
    assert [(rule.name, rule.allows, rule.why) for rule in verdict.rules] == [
        ("kinds", True, "only full, few-shot"),
        ("bundles", True, f"only {'ab' * 8}"),
        ("scalars", True, "at most 8 in a zeroth-order round"),
        ("classes", True, "nothing of classes with fewer than 5 samples"),
        ("masked", True, "only masked updates"),
        ("helpers", True, f"masks only for club={'5b' * 8}, site={'7c' * 8}"),
    ]
    assert policy_options.policy(parsed()) == Policy()


@pytest.mark.parametrize("text", ["abc", "x" * 64, "a" * 65])
def test_what_is_no_sha256_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parsed("--allow-bundle", text)
    assert f"'{text}' is not the sha256 of a bundle: expected 16 to 64 hex digits" in capsys.readouterr().err


def test_the_list_crosses_to_the_process_that_works(tmp_path):
    allowed = AllowList(("full",), ("ab" * 8,), 8, 5, (f"club={'5b' * 32}",), True)
    settings = Settings("a", tmp_path / "a.npz", tmp_path, allowed=allowed)
    assert WorkTerms.of(settings, "modelled", 0).settings(None).allowed == settings.allowed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("club", "mask helper 'club': expected NAME=KEY, with a key of 64 hex digits"),
        ("club=5b", "mask helper 'club=5b': expected NAME=KEY, with a key of 64 hex digits"),
        (" , ", "' , ' names no mask helper: expected NAME=KEY,.."),
    ],
)
def test_what_is_no_mask_helper_is_refused(text, why, capsys):
    with pytest.raises(SystemExit):
        parsed("--mask-helpers", text)
    assert why in capsys.readouterr().err


def test_mask_helpers_are_keys_of_the_device_file_too(tmp_path):
    key = "5b" * 32
    (tmp_path / "device.toml").write_text(f'[policy]\nmask_helpers = "club={key}"\nonly_masked = true\n')
    options = parsed("--config", str(tmp_path / "device.toml"))
    policy_options.configure(options, add_arguments)
    assert policy_options.policy(options).allowed == AllowList(
        mask_helpers=(f"club={key}",), only_masked=True
    )


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_without_kinds_is_refused_for_it_would_allow_all(text, capsys):
    with pytest.raises(SystemExit):
        parsed("--allow-kinds", text)
    assert f"{text!r} names no kind of update: expected such as full,few-shot" in capsys.readouterr().err
    assert policy_options.policy(parsed("--allow-kinds", " full , few-shot,")).allowed.kinds == (
        "full",
        "few-shot",
    )


def test_a_file_s_list_without_bundles_is_refused_for_it_would_allow_all(tmp_path):
    (tmp_path / "device.toml").write_text("[policy]\nallow_bundle = []\n")
    options = parsed("--config", str(tmp_path / "device.toml"))
    policy_options.configure(options, add_arguments)
    with pytest.raises(PolicyError, match="allow_bundle is empty"):
        policy_options.policy(options)


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        (AllowList(), ClassStatistics()),
        (AllowList(kinds=("full", "class-means")), ClassStatistics()),
        (AllowList(kinds=("full",)), None),
        (AllowList(smallest_count=2), ClassStatistics()),
        (AllowList(smallest_count=5), ClassStatistics(smallest_count=5)),
    ],
)
def test_class_statistics_are_sent_where_the_owner_allows_class_means_and_of_no_fewer_samples(allowed, left):
    kind = kind_statistics.with_class_statistics(FedAvg(), ClassStatistics())
    assert allowed_statistics(kind, allowed).statistics == left
    assert allowed_statistics(FedAvg(), allowed) == FedAvg()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"kinds": "full+few-shot"}, "kinds is a text, expected a tuple of texts"),
        ({"bundles": ("",)}, "'' is not the sha256 of a bundle: expected 16 to 64 hex digits in lower case"),
        ({"bundles": ("ABCDEF0123456789",)}, "'ABCDEF0123456789' is not the sha256 of a bundle"),
    ],
)
def test_rules_that_would_allow_all_or_nothing_by_mistake_are_refused(rule, message):
    with pytest.raises(PolicyError, match=message):
        AllowList(**rule)
