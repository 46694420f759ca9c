import re
from dataclasses import replace

import pytest

from device_runtime.device.selection.choose import (
    ALONE,
    MAIN,
    MARGIN,
    ChoicePolicy,
    UploadTerms,
    choose,
    priced,
)
from device_runtime.device.training.work import cheaper
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed, shipped
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.prototypes import Prototypes
from device_runtime.strategies.statistics import kind_statistics
from device_runtime.strategies.training.workload import workload

EVEN = (18,) * 10


@pytest.fixture
def load(bundle):
    return workload(bundle.manifest, EVEN)


def device(flops_per_s=1e9, limit=10**10, up=1e7, down=1e7, corrections=None):
    return DeviceProfile(
        name="test",
        cores=1,
        memory=Memory(limit, limit, resident_bytes=50_000_000),
        speed=Speed(flops_per_s),
        bandwidth=Bandwidth(up, down),
        power=Power(1.0, 4.0),
        corrections=corrections or {},
    )


def every_kind():
    return [registry.make(name) for name in registry.DEFAULT_KINDS]


@pytest.mark.parametrize(
    "flops_per_s, expected",
    [
        (1e12, "full"),
        (1.2e9, "entropy-subset 50%"),  # full: 1800 samples at 4.7 MFLOP is 8.5 GFLOP, 7 s
        (6e8, "entropy-subset 25%"),
        (3e8, "entropy-subset 10%"),
        (1.1e8, "few-shot"),  # 180 samples at 1.57 MFLOP is 0.28 GFLOP, 2.6 s
    ],
)
def test_the_richest_kind_that_fits_is_chosen(load, flops_per_s, expected):
    plan = choose(device(flops_per_s), every_kind(), {MAIN: load}, remaining_s=3.0)
    assert plan.chosen.label == expected
    assert plan.straggler.straggler == (expected != "full")


def test_kinds_that_are_barred_for_one_reason_are_told_in_one_sentence(load):
    plan = choose(
        device(), every_kind(), {MAIN: load}, 3.0, lambda _: "may not be sent: the owner allows sparse"
    )
    [reason] = plan.reasons
    assert reason.startswith("full, entropy-subset, ")
    assert reason.endswith(" may not be sent: the owner allows sparse")


def test_nothing_fits_a_device_that_cannot_run_one_pass(load):
    plan = choose(device(1e7), every_kind(), {MAIN: load}, remaining_s=3.0)
    assert plan.chosen is None
    assert len(plan.reasons) == len(plan.candidates)


def test_a_narrow_uplink_leaves_the_two_scalars(load):
    """2.9 kB of classifier take 9.6 s at 300 B/s; 190 bytes take 0.6 s."""
    plan = choose(device(1e9, up=300.0), every_kind(), {MAIN: load}, remaining_s=3.0)
    assert plan.chosen.kind == "zeroth-order"
    assert plan.reasons[0].endswith("(mostly on the link)")


def test_memory_alone_makes_a_straggler(load):
    full = FedAvg().cost(load, device(1e12))
    plan = choose(
        device(1e12, limit=full.peak_memory_bytes - 1), every_kind(), {MAIN: load}, remaining_s=60.0
    )
    assert plan.straggler.straggler
    assert plan.candidates[0].misfits == (
        f"needs {full.peak_memory_bytes / 1e6:.0f} MB of {(full.peak_memory_bytes - 1) / 1e6:.0f} MB",
    )
    assert plan.chosen.kind != "full"


def test_one_device_is_a_straggler_for_one_task_and_not_for_another(bundle):
    few = workload(bundle.manifest, (1,) * 10)
    many = workload(bundle.manifest, (100,) * 10)
    fast_enough = device(3e8)
    assert not choose(fast_enough, every_kind(), {MAIN: few}, 3.0).straggler.straggler
    assert choose(fast_enough, every_kind(), {MAIN: many}, 3.0).straggler.straggler


def test_a_plan_fills_at_most_the_margin_of_the_time_left(load):
    seconds = FedAvg().cost(load, device()).seconds
    assert choose(device(), [FedAvg()], {MAIN: load}, 1.001 * seconds / MARGIN).chosen
    assert choose(device(), [FedAvg()], {MAIN: load}, 0.999 * seconds / MARGIN).chosen is None


def test_a_device_whose_subset_would_be_too_small_goes_on_to_the_next_kind_and_says_why(load):
    """Of 180 samples a tenth is 18; a quarter, 45, takes too long here."""
    kinds = [registry.make("entropy-subset", {"least_samples": 20}), registry.make("few-shot")]
    plan = choose(device(3e8), kinds, {MAIN: load}, remaining_s=3.0)
    assert plan.chosen.kind == "few-shot"
    assert plan.reasons[-1] == "entropy-subset 10% would train on 18 of 180 samples, expected 20 or more"


def test_the_offer_s_order_is_the_preference(load):
    backwards = list(reversed(every_kind()))
    assert choose(device(1e12), backwards, {MAIN: load}, 3.0).chosen.kind == "zeroth-order"


def test_a_measured_correction_moves_the_choice(load):
    slower_than_thought = device(1e12, corrections={"full": 1e4})
    assert choose(slower_than_thought, every_kind(), {MAIN: load}, 3.0).chosen.kind == "entropy-subset"


def test_a_smaller_model_is_as_fast_operation_for_operation_as_the_measured_one(load):
    """Half the operations, half the time, but as long to open; it holds less, as its shapes say."""
    graphs = {
        name: replace(work, flops=work.flops / 2, bytes_per_sample=work.bytes_per_sample // 2)
        for name, work in load.graphs.items()
    }
    half = replace(load, graphs=graphs)
    seconds = dict.fromkeys(load.graphs, 0.01)
    speed = Speed(1e12, seconds, opening={"train.all": 1.0}, held_bytes={"train.all": 10**9})
    profile, loads = replace(device(), speed=speed), {MAIN: load, "half": half}
    whole = priced(Prototypes(beta=0.0), loads, profile)
    smaller = priced(Prototypes(beta=0.0, members=("half",)), loads, profile)
    assert smaller.compute_s - 1 == pytest.approx((whole.compute_s - 1) / 2)
    assert whole.peak_memory_bytes > 10**9 > smaller.peak_memory_bytes


def test_costs_follow_from_flops_bandwidth_and_power(load, bundle):
    cost = FedAvg(epochs=5).cost(load, device(1e9, up=1e6, down=2e6))
    compute = 5 * 180 * bundle.manifest.graphs["train.all"].flops / 1e9
    assert cost.compute_s == pytest.approx(compute)
    transfer = cost.bytes_up / 1e6 + cost.bytes_down / 2e6
    assert cost.seconds == pytest.approx(compute + transfer)
    assert cost.energy_j == pytest.approx(4 * compute + 1 * transfer)
    assert cost.bytes_down == bundle.manifest.weights.bytes


def test_faster_boards_never_choose_poorer(load):
    order = list(registry.DEFAULT_KINDS)
    chosen = []
    for name in ("pi-zero-2w", "pi-4", "jetson-nano", "phone-mid", "pi-5", "phone-high"):
        slowed = shipped(name)
        plan = choose(slowed, every_kind(), {MAIN: load}, remaining_s=0.4)
        chosen.append(order.index(plan.chosen.kind))
    assert chosen == sorted(chosen, reverse=True)
    assert len(set(chosen)) > 2


def test_a_bundle_without_training_graphs_leaves_the_kinds_that_need_none(load):
    inference = replace(load, graphs={"forward": load.graphs["forward"]})
    plan = choose(device(1e12), every_kind(), {MAIN: inference}, remaining_s=60.0)
    assert plan.chosen.kind == "few-shot"
    assert plan.reasons[0] == "full needs graph train.all, the bundle has forward"
    assert plan.straggler.straggler


def test_a_device_that_could_not_fetch_the_main_model_is_a_straggler_in_a_whole_sentence(load):
    kinds = [registry.make("width-slice", {"members": ["half"]})]
    plan = choose(device(1e12), kinds, {"half": load}, 60.0, unfetched_loads={MAIN: load})
    assert plan.verdict == (
        "A straggler for this task (a full update needs the main model, which was not fetched); "
        "it sends width-slice half."
    )


@pytest.mark.parametrize(
    ("flops_per_s", "says"),
    [
        (1e12, "width-slice half needs its own model, which was not fetched"),
        (1e8, r"width-slice half needs 8\d\.\d s and has 2\.7 s"),
    ],
)
def test_a_model_that_was_not_fetched_would_not_have_fitted_or_was_not_wanted(load, flops_per_s, says):
    kinds = [registry.make("width-slice", {"members": ["half"]}), registry.make("class-means")]
    plan = choose(device(flops_per_s), kinds, {MAIN: load}, 3.0, unfetched_loads={"half": load})
    assert plan.chosen is None or plan.chosen.kind == "class-means"
    assert re.match(says, plan.reasons[0])


def test_class_statistics_are_left_out_where_nothing_fits_with_them(load):
    """0.8 kB of class means take 2.7 s at 300 B/s beside 190 bytes of scalars, second moments 14 s more; of
    one class 146 bytes.
    """
    request = ClassStatistics()
    kinds = [
        kind_statistics.with_class_statistics(kind, request)
        for kind in every_kind()
        if not isinstance(kind, ClassMeans)
    ]
    plan = choose(device(1e9, up=300.0), kinds, {MAIN: load}, remaining_s=2.0)
    assert (plan.chosen.kind, plan.chosen.strategy.statistics) == ("zeroth-order", None)
    plan = choose(device(1e9, up=300.0), kinds, {MAIN: load}, remaining_s=8.5)
    assert plan.chosen.kind == "zeroth-order"
    assert plan.chosen.strategy.statistics == replace(request, moments=False)
    assert cheaper(kinds, plan.candidates[-2]) == tuple(kinds[-1:])
    plan = choose(device(1e9, up=300.0), kinds[-1:], {MAIN: load}, remaining_s=30.0)
    assert (plan.chosen.kind, plan.chosen.strategy.statistics) == ("zeroth-order", request)


def test_a_device_with_one_class_sends_class_means_of_some_samples_before_scalars_of_all(bundle):
    """No classifier tells one class apart; four passes through all samples, or one through 40."""
    usual = [
        registry.make(name, settings)
        for name, settings in registry.default_settings(registry.DEFAULT_KINDS[2:])
    ]
    kinds = [kind_statistics.with_class_statistics(kind, ClassStatistics()) for kind in usual]
    load = workload(bundle.manifest, (180, *(0,) * 9))
    plan = choose(device(1e12), kinds, {MAIN: load}, remaining_s=3.0)
    assert plan.chosen.kind == "class-means"
    scalars = plan.candidates[-1]
    assert scalars.kind == "zeroth-order" and not scalars.misfits
    assert scalars.cost.flops > 17 * plan.chosen.cost.flops


def test_a_narrower_link_carries_class_statistics_of_fewer_classes_as_many_as_fit(bundle):
    """120 bytes of envelope, 72 of a tensor, 74 for each class; second moments take 4.3 kB more."""
    load = workload(bundle.manifest, (18, 1, 18, 18, 18, 18, 18, 18, 0, 18))
    kinds = [kind_statistics.with_class_statistics(registry.make("class-means"), ClassStatistics())]
    compute_s = priced(kinds[0], {MAIN: load}, device()).compute_s
    for rows in range(9):
        for spare in (1, 73):
            up = (192 + 74 * rows + spare) / (10 - compute_s)
            plan = choose(device(up=up), kinds, {MAIN: replace(load, download_bytes=0)}, 10 / MARGIN)
            if rows == 0:
                assert plan.chosen is None and len(plan.reasons) == 1
                continue
            statistics = plan.chosen.strategy.statistics
            assert plan.chosen.classes == (rows, 8)
            assert plan.chosen.cost.bytes_up == 192 + 74 * rows
            assert (statistics.moments, statistics.most_classes) == (False, rows if rows < 8 else 0)
            reasons = (f"class-means sends class statistics of {rows} of 8 classes",) if rows < 8 else ()
            assert plan.reasons == reasons
            assert cheaper([*kinds, FedAvg()], plan.chosen) == (FedAvg(),)


def test_no_more_classes_are_sent_than_the_task_asks_for(load):
    request = ClassStatistics(most_classes=4)
    kinds = [kind_statistics.with_class_statistics(registry.make("class-means"), request)]
    plan = choose(device(1e12), kinds, {MAIN: load}, remaining_s=3.0)
    assert plan.chosen.strategy.statistics == request
    assert plan.chosen.classes == (4, 10)
    narrow = choose(device(1e12, up=200.0), kinds, {MAIN: load}, remaining_s=2.0)
    assert narrow.chosen.classes == (2, 10)


def terms_of(*alone, size=1000):
    return UploadTerms(alone, lambda form: size)


def test_a_kind_that_was_alone_is_chosen_only_if_no_other_fits(load):
    kinds = [registry.make("full"), registry.make("few-shot"), ClassMeans()]
    terms = terms_of("full", "few-shot")
    plan = choose(device(1e12), kinds, {MAIN: load}, 60.0, upload_terms=terms)
    assert plan.chosen.kind == "class-means"
    assert plan.reasons == (f"full {ALONE}", f"few-shot {ALONE}")
    plan = choose(device(1e12), kinds[:2], {MAIN: load}, 60.0, upload_terms=terms)
    assert (plan.chosen.kind, plan.reasons) == ("full", ())
    plan = choose(device(1e6), kinds, {MAIN: load}, 60.0, upload_terms=terms)  # too slow for all three
    assert plan.chosen is None
    assert not any(ALONE in reason for reason in plan.reasons)


def test_a_policy_is_not_given_kinds_that_were_alone(load):
    class Last(ChoicePolicy):
        def pick(self, fitting, profile):
            return fitting[-1]

    kinds = [registry.make("full"), registry.make("few-shot"), ClassMeans()]
    terms = terms_of("class-means")
    plan = choose(device(1e12), kinds, {MAIN: load}, 60.0, policy=Last(), upload_terms=terms)
    assert plan.chosen.kind == "few-shot"


def test_a_masked_update_costs_its_own_bytes(load):
    clear = choose(device(1e12, up=1e4), [FewShot()], {MAIN: load}, 60.0).chosen.cost
    masked = choose(
        device(1e12, up=1e4), [FewShot()], {MAIN: load}, 60.0, upload_terms=terms_of(size=50_000)
    ).chosen.cost
    assert masked.bytes_up == 50_000
    assert masked.seconds - clear.seconds == pytest.approx((50_000 - clear.bytes_up) / 1e4)
    plan = choose(device(1e12, up=1e4), [FewShot()], {MAIN: load}, 5.0, upload_terms=terms_of(size=50_000))
    assert plan.chosen is None
    assert re.fullmatch(r"few-shot needs 5\.\d s and has 4\.5 s \(mostly on the link\)", plan.reasons[0])


def test_a_kind_that_cannot_be_masked_does_not_fit(load):
    def bytes_up(form):
        if form.name == "full":
            raise MaskError("cannot be masked")
        return 1000

    plan = choose(
        device(1e12), [FedAvg(), FewShot()], {MAIN: load}, 60.0, upload_terms=UploadTerms((), bytes_up)
    )
    assert (plan.chosen.kind, plan.reasons) == ("few-shot", ("full cannot be masked",))
