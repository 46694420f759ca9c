import msgspec
import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.operator.serve import add_arguments, task_of
from device_runtime.strategies.terms.dp_sgd import DpSgd, dp_settings
from device_runtime.strategies.terms.moon import Moon
from device_runtime.strategies.terms.proximal import FedProx, FscProx

TASK = Task(bundle="digits-wrn-10-1", rounds=10)


def offered(name, task=TASK):
    """(kind, first round, last round) of each kind that the system offers."""
    task_ = systems.task_as_system(name, task)
    return [(kind.name, kind.from_round, kind.until_round) for kind in task_.kinds]


@pytest.mark.parametrize("name", systems.names())
def test_every_system_makes_a_task_and_says_what_it_is(name):
    task = systems.task_as_system(name, TASK)
    assert all(kind.strategy for kind in task.kinds)
    assert task.offered(1)
    assert len(systems.describe(name)) > 20
    assert systems.task_as_system(name, msgspec.structs.replace(TASK, rounds=1)).offered(1)


def test_phases_follow_each_other_without_a_gap():
    assert offered("lp+ft") == [("peft", 1, 5), ("full", 6, None)]
    assert offered("slora") == [("sparse", 1, 2), ("peft", 3, None)]
    assert offered("fedncm+ft") == [("class-means", 1, 1), ("full", 2, None)]
    assert offered("fedncm+slora") == [("class-means", 1, 1), ("sparse", 2, 2), ("peft", 3, None)]
    assert offered("fedncm+mezo") == [("class-means", 1, 1), ("zeroth-order", 2, None)]
    assert offered("fedncm+distmezo-naive") == [("class-means", 1, 1), ("local-zeroth-order", 2, None)]
    assert offered("fedfsc+") == [("full", 1, None), ("few-shot", 2, None)]
    assert offered("fedft-eds") == [("full", 1, 1), ("entropy-subset", 2, None)]


def test_the_first_stage_of_slora_knows_which_round_is_its_last():
    for rounds, last in ((10, 2), (50, 10), (7, 2)):
        [sparse, _] = systems.task_as_system("slora", msgspec.structs.replace(TASK, rounds=rounds)).kinds
        assert (sparse.until_round, sparse.strategy.rounds) == (last, last)


def test_the_pass_before_fedft_has_no_deadline():
    assert systems.task_as_system("fedft-eds", TASK).untimed_rounds == 1
    assert systems.task_as_system("no-stragglers", TASK).untimed_rounds == 10


def test_fedncm_is_done_in_one_round():
    assert systems.task_as_system("fedncm", TASK).rounds == 1


def test_fedncm_and_the_pass_before_fedft_ask_all_devices_once_also_where_others_are_drawn():
    """Bernier 2024, algorithm 1, line 1; Shi 2025, section 6.4.1."""
    drawn = msgspec.structs.replace(TASK, devices_per_round=3)
    for name in ("fedncm", "fedncm+ft", "fedft-eds"):
        task = systems.task_as_system(name, drawn)
        assert (task.ask_all_rounds, task.devices_per_round) == (1, 3), name
        assert systems.task_as_system(name, TASK).ask_all_rounds == 0, "nothing is drawn"
    assert systems.task_as_system("ft", drawn).ask_all_rounds == 0


def test_a_plus_lets_stragglers_train_one_epoch():
    for name in ("fedavg+", "fedprox+", "moon+"):
        [kind] = systems.task_as_system(name, TASK).kinds
        assert [form.epochs for form in kind.strategy.variants()] == [10, 1], name


def test_a_straggler_of_fedprox_with_drawn_epochs_may_train_any_number_of_them():
    [kind] = systems.task_as_system("fedprox+drawn", TASK).kinds
    assert [form.epochs for form in kind.strategy.variants()] == list(range(10, 0, -1))
    assert kind.strategy.terms == (FedProx(0.01),)


@pytest.mark.parametrize(
    ("name", "anchor", "sends"), [("fscprox", "few-shot", True), ("baseprox", "base", False)]
)
def test_fedfsc_plus_with_a_proximal_term_sends_devices_the_few_shot_classifier(name, anchor, sends):
    """Thesis 002, table 4.7: non-stragglers have the term, stragglers train few-shot updates."""
    full, few = systems.task_as_system(f"fedfsc++{name}", TASK).kinds
    assert (full.name, full.strategy.terms, full.from_round) == ("full", (FscProx(0.01, anchor),), 1)
    assert (few.name, few.strategy.send_mean, few.from_round) == ("few-shot", sends, 2)


def test_fedavg_rds_trains_everything_on_samples_drawn_at_random():
    """Thesis 002, table 6.8: FedAvg from the pre-trained model, after the same pass as FedFT."""
    assert offered("fedavg-rds") == [("full", 1, 1), ("entropy-subset", 2, None)]
    rds = systems.task_as_system("fedavg-rds", TASK).kinds[1].strategy
    assert (rds.trained, rds.select) == ("all", "random")


def test_modifiers_compose():
    task = systems.task_as_system("fedncm+ft+fedprox+fedadam", TASK)
    assert (task.server.name, task.kinds[1].strategy.terms) == ("fedadam", (FedProx(0.01),))
    [kind] = systems.task_as_system("fedpeft-bias+moon+fedprox", TASK).kinds
    assert (kind.strategy.tunable, kind.strategy.terms) == ("bias", (FedProx(0.01), Moon(1.0)))


def test_moon_does_not_compose_with_privacy():
    with pytest.raises(TaskError, match="term moon: its features come from runs"):
        systems.task_as_system("fedpeft-bias+moon+dp", TASK)


def test_private_training_is_planned_for_all_rounds():
    [kind] = systems.task_as_system("fedpeft-bias+dp", TASK).kinds
    assert dp_settings(kind.strategy) == DpSgd(epsilon=5.0, delta=1e-3, rounds=10)


@pytest.mark.parametrize(
    ("cohort", "devices", "expected"), [(8, 64, 7), (8, 8, 50), (8, None, 50), (None, 64, 50), (1, 100, 1)]
)
def test_private_training_is_planned_for_the_rounds_that_a_drawn_device_is_expected_in(
    cohort, devices, expected
):
    """Paper 003: 50 rounds of 8 out of 64 clients are 6.25 of each."""
    drawn = msgspec.structs.replace(TASK, rounds=50, devices_per_round=cohort)
    [kind] = systems.task_as_system("fedpeft-bias+dp", drawn, devices).kinds
    assert dp_settings(kind.strategy).rounds == expected


def test_what_a_task_says_stands_over_the_papers_but_not_over_what_makes_the_system():
    kinds = (
        KindSettings(
            name="full", settings={"terms": {"fedprox": {"mu": 0.5}}, "epochs": 3, "reduced_epochs": 2}
        ),
        KindSettings(name="few-shot", settings={"join_base": True, "shots": 4}, weight=2.0),
    )
    task = Task(bundle="b", rounds=10, kinds=kinds)
    [prox] = systems.task_as_system("fedprox", task).kinds
    assert (prox.strategy.terms, prox.strategy.epochs) == ((FedProx(0.5),), 3)
    [_, few] = systems.task_as_system("fedfsc+", task).kinds
    assert (few.strategy.join_base, few.strategy.shots, few.weight) == (False, 4, 2.0)
    [plus] = systems.task_as_system("fedprox+", task).kinds
    assert plus.strategy.reduced_epochs == 2


def test_a_papers_system_has_none_of_our_settings_for_rounds_of_several_kinds():
    task = Task(bundle="b", rounds=10)
    assert task.kinds[0].strategy.graded
    for name, epochs in (("fedavg", 0), ("full", 0), ("fedprox", 0), ("no-stragglers", 0), ("fedavg+", 1)):
        full = systems.task_as_system(name, task).kinds[0].strategy
        assert (full.reduced_epochs, full.graded) == (epochs, False), name
    for name in ("fedncm", "fedncm+ft", "fedncm+mezo", "class-means"):
        means = next(
            kind.strategy for kind in systems.task_as_system(name, task).kinds if kind.name == "class-means"
        )
        assert (means.head, means.smallest_count) == ("normalised-means", 1), name
    for name in ("fedfsc+", "few-shot", "fscprox"):
        few = next(
            kind.strategy for kind in systems.task_as_system(name, task).kinds if "few-shot" in kind.name
        )
        own = few if few.name == "few-shot" else few.few_shot
        assert own.least_samples == 0 and not own.join_base, name
    for name in ("fedft-all", "fedft-rds", "fedft-eds"):
        assert systems.task_as_system(name, task).kinds[-1].strategy.least_samples == 0


def test_a_task_may_say_that_slow_devices_train_as_many_epochs_as_they_can():
    graded = KindSettings(name="full", settings={"reduced_epochs": 1, "graded": True})
    [full] = systems.task_as_system("fedprox", Task(bundle="b", rounds=10, kinds=(graded,))).kinds
    assert (full.strategy.reduced_epochs, full.strategy.graded) == (1, True)


def test_kinds_that_train_a_whole_model_follow_what_the_task_says_of_full_updates():
    task = Task(bundle="b", kinds=(KindSettings(name="full", settings={"epochs": 3, "lr": 0.05}),))
    for name in ("heterofl", "fedfsc", "fedat", "fedkad", "fedsplit"):
        kind = systems.task_as_system(name, task).kinds[-1].strategy
        assert (kind.epochs, kind.lr) == (3, 0.05), name


def test_a_system_is_served_by_name():
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    task = task_of(parser.parse_args(["--bundle", "digits-wrn-10-1", "--system", "fedadam", "--rounds", "4"]))
    assert (task.server.name, task.rounds, [kind.name for kind in task.kinds]) == ("fedadam", 4, ["full"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("best", "no system is called 'best'; there are fedavg, "),
        (
            "FedAdam",
            "no system is called 'FedAdam'; near it are fedadam.*; `device-runtime systems` lists all$",
        ),
        ("fedprx+dp", "no system is called 'fedprx\\+dp'; near it are fedprox"),
        (
            "fedavg+better",
            "'fedavg\\+better': there is no modifier \\+better; there are \\+, \\+drawn, \\+fedprox",
        ),
        ("fedavg+fedadam+fedyogi", "\\+fedadam and \\+fedyogi are alternatives"),
        ("fedavg+fast+all", "\\+fast and \\+all are alternatives"),
        ("mixed", "'mixed': what a task is without a system: leave it out"),
        ("centralised", "only `simulate` has that"),
        ("fedncm+", "\\+ changes reduced_epochs, which none of class-means has"),
    ],
)
def test_a_name_that_is_none_is_refused_with_those_there_are(name, why):
    with pytest.raises(TaskError, match=why):
        systems.task_as_system(name, TASK)


def test_fedmezo_stays_that_of_the_thesis_and_ours_may_be_set():
    kind = KindSettings(name="zeroth-order", settings={"sizing": "relative", "num_z": 3, "lr": 0.5})
    task = msgspec.structs.replace(TASK, kinds=(kind,))
    [thesis] = systems.task_as_system("fedmezo", task).kinds
    assert (thesis.strategy.sizing, thesis.strategy.num_z, thesis.strategy.lr) == ("absolute", 3, 0.5)
    _, ours = systems.task_as_system("fedncm+mezo", task).kinds
    assert (ours.strategy.sides, ours.strategy.num_z, ours.strategy.lr) == (1, 3, 0.5)
    assert ours.strategy.tunable == "head"


def test_where_some_devices_are_drawn_class_means_are_gathered_over_rounds_and_steps_are_shorter():
    drawn = msgspec.structs.replace(TASK, rounds=100, devices_per_round=3)
    means, scalars = systems.task_as_system("fedncm+mezo", drawn).kinds
    assert (means.strategy.gathered, means.until_round, scalars.from_round) == (True, 10, 11)
    assert (scalars.strategy.lr, scalars.strategy.sampled) == (0.002, 0.1)
    means, scalars = systems.task_as_system(
        "fedncm+mezo", msgspec.structs.replace(drawn, devices_per_round=None)
    ).kinds
    assert (means.strategy.gathered, means.until_round, scalars.from_round) == (False, 1, 2)
    assert (scalars.strategy.lr, scalars.strategy.sampled) == (0.02, 0.1)
    short = systems.task_as_system("fedncm+mezo", msgspec.structs.replace(drawn, rounds=6)).kinds
    assert [(kind.from_round, kind.until_round) for kind in short] == [(1, 3), (4, None)]


MASKED = MaskSettings(("site-a=" + "5b" * 32,), 5)


def test_central_noise_is_added_to_the_masks_of_a_task():
    task = systems.task_as_system("fedavg+central-dp", msgspec.structs.replace(TASK, masks=MASKED))
    assert (task.masks.epsilon, task.masks.delta, task.masks.clip_norm) == (5.0, 1e-3, 1.0)
    assert (task.masks.helpers, task.masks.min_group) == (MASKED.helpers, 5)
    own_masks = msgspec.structs.replace(MASKED, epsilon=2.0, delta=1e-6, clip_norm=0.1)
    kinds = (KindSettings(name="full"),)
    task = systems.task_as_system(
        "lp+central-dp", msgspec.structs.replace(TASK, kinds=kinds, masks=own_masks)
    )
    assert task.masks == own_masks


def test_central_noise_without_masks_or_with_class_sums_is_refused():
    with pytest.raises(TaskError, match=r"\+central-dp is noise of mask helpers, and the task has none"):
        systems.task_as_system("fedavg+central-dp", TASK)
    with pytest.raises(TaskError, match="class-means cannot be masked: sums and counts are sent without"):
        systems.task_as_system("fedncm+ft+central-dp", msgspec.structs.replace(TASK, masks=MASKED))
