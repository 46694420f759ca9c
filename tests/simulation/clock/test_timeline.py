"""Every second, byte and joule here is worked by hand."""

from dataclasses import dataclass, replace
from math import inf

import pytest

from device_runtime.profiles import Bandwidth, DeviceProfile, GraphWork, Memory, Power, Speed, Workload
from device_runtime.simulation.clock.timeline import AskConditions, RoundDraws, timeline
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.terms.dp_sgd import DpSgd

FULL = FedAvg(epochs=2, batch=32)
DEVICE = DeviceProfile(
    name="board",
    cores=4,
    memory=Memory(2**30, 2**29),
    speed=Speed(1e9),
    bandwidth=Bandwidth(up=1e4, down=2e4),
    power=Power(idle_w=1.0, load_w=5.0),
)
GRAPHS = {name: GraphWork(flops, 1000, 100) for name, flops in (("forward", 1e7), ("train.all", 3e7))}
LOAD = Workload(
    graphs=GRAPHS,
    parameters={"all": 952},
    tensors={"all": 1},
    weights_bytes=4000,
    download_bytes=0,
    feature_width=8,
    class_counts=(50, 50),
    sample_bytes=64,
)
"""100 samples, two epochs at 30 MFLOP: 6 s at 1 GFLOP/s. Up go 4 * 952 + 72 + 120 = 4000 bytes: 0.4 s."""


def run(conditions_: AskConditions, device: DeviceProfile = DEVICE):
    return timeline(device, {"": LOAD}, conditions_)


def conditions(closes_at: float = 100.0, **other) -> AskConditions:
    return AskConditions(now=10.0, closes_at=closes_at, down_bytes=lambda _: 40_000, kinds=(FULL,), **other)


def test_a_device_is_charged_its_download_its_computing_and_its_upload():
    line = run(conditions())
    assert (line.busy.download_s, line.busy.compute_s, line.busy.upload_s) == pytest.approx((2.0, 6.0, 0.4))
    assert line.ends_at == line.back_at == pytest.approx(18.4)
    assert line.energy_j == pytest.approx(6.0 * 5 + 2.4 * 1)
    assert line.bytes_up == 4000
    assert line.flops == pytest.approx(6e9)
    assert line.fate is None


def test_what_was_drawn_for_the_round_slows_it_down():
    line = run(conditions(draws=RoundDraws(slowdown=1.5, uplink=0.5, downlink=2.0), latency_s=0.1))
    assert (line.busy.download_s, line.busy.compute_s, line.busy.upload_s) == pytest.approx((1.1, 9.0, 0.9))


def test_a_device_that_cannot_make_the_deadline_sits_out_before_it_computes():
    line = run(conditions(closes_at=15.0))
    assert line.fate == "sat out"
    assert (line.busy.compute_s, line.busy.upload_s, line.bytes_up) == (0.0, 0.0, 0)
    assert line.ends_at == pytest.approx(12.0)
    assert line.energy_j == pytest.approx(2.0)


def test_a_device_that_is_slower_than_it_believes_gives_up_and_has_learnt_how_slow_it_is():
    """6 s at slowdown 2 are 12; its first look at the clock (1%) is too early, its second (10%) is not."""
    line = run(conditions(closes_at=20.0, draws=RoundDraws(slowdown=2.0)))
    assert line.fate == "sat out"
    assert line.busy.compute_s == pytest.approx(1.2)
    assert line.flops == pytest.approx(0.6e9)
    [timing] = line.outcome.timings
    assert (timing.predicted_s, timing.seconds) == pytest.approx((6.0, 12.0))


def test_it_ends_after_fewer_epochs_where_the_round_allows_them():
    """Two epochs would take 12 s, as it sees after a tenth of them: it goes on to the end of the first."""
    kinds = (replace(FULL, reduced_epochs=1),)
    line = run(replace(conditions(closes_at=20.0, draws=RoundDraws(slowdown=2.0)), kinds=kinds))
    assert line.fate is None
    assert line.busy.compute_s == pytest.approx(6.0)
    assert line.outcome.plan.chosen.strategy == replace(FULL, epochs=1, reduced_epochs=1)
    assert line.ends_at == pytest.approx(12.0 + 6.0 + 0.4)
    assert line.flops == pytest.approx(3e9)
    [timing] = line.outcome.timings
    assert (timing.predicted_s, timing.seconds) == pytest.approx((3.0, 6.0))


def test_what_is_whole_when_it_sees_that_it_will_be_late_is_what_it_sends():
    """Ten epochs of 6 s each, with 40 s until the upload must begin: it sees so when the first is done."""
    kinds = (replace(FULL, epochs=10, reduced_epochs=1),)
    line = run(replace(conditions(closes_at=52.4, draws=RoundDraws(slowdown=2.0)), kinds=kinds))
    assert line.fate is None
    assert line.outcome.plan.chosen.strategy.epochs == 1
    assert line.busy.compute_s == pytest.approx(6.0)


def test_one_that_has_no_time_for_the_least_gives_up():
    """7.6 s are left, an epoch takes 9: it sees so after a tenth of two, then after a tenth of one."""
    kinds = (replace(FULL, reduced_epochs=1),)
    line = run(replace(conditions(closes_at=20.0, draws=RoundDraws(slowdown=3.0)), kinds=kinds))
    assert line.fate == "sat out"
    assert line.busy.compute_s == pytest.approx(1.8 + 0.9)
    assert line.flops == pytest.approx(0.6e9 + 0.3e9)


def test_a_process_that_dies_loses_its_work_and_has_spent_its_energy():
    """Half of 8.4 s: the download, and 2.2 s of computing."""
    line = run(conditions(draws=RoundDraws(crash=0.5, away_s=60.0)))
    assert line.fate == "crashed"
    assert line.ends_at == pytest.approx(14.2)
    assert line.back_at == pytest.approx(74.2)
    assert (line.busy.download_s, line.busy.compute_s, line.busy.upload_s) == pytest.approx((2.0, 2.2, 0.0))
    assert line.energy_j == pytest.approx(2.2 * 5 + 2.0)
    assert line.bytes_up == 0
    assert line.flops == pytest.approx(2.2e9)


@pytest.mark.parametrize(
    ("drop", "away_s", "ends_at"),
    [
        (0.25, 30.0, 12.1 + 30.0 + 0.4),  # computing goes on, the upload waits
        (0.25, 3.0, 18.4),  # it is back before anything is to be sent
        (0.125, 30.0, 11.05 + 30.0 + 0.95 + 6.4),  # half of the download is missing yet
        (0.975, 30.0, 18.19 + 30.0 + 0.21),  # half of the upload is
    ],
)
def test_a_lost_link_delays_what_goes_over_it_and_loses_nothing(drop, away_s, ends_at):
    """Download 2, computing 6, upload 0.4 s, from 10 on; lost after this share of 8.4 s."""
    line = run(conditions(draws=RoundDraws(drop=drop, away_s=away_s)))
    assert line.fate is None
    assert line.ends_at == line.back_at == pytest.approx(ends_at)
    assert line.gaps == (pytest.approx((10 + 8.4 * drop, 10 + 8.4 * drop + away_s)),)
    assert (line.busy.download_s, line.busy.compute_s) == pytest.approx((2.0, 6.0))
    assert (line.bytes_down, line.bytes_up) == (40_000, 4000)


def test_of_a_transfer_that_is_cut_off_only_what_went_is_counted():
    """A tenth of 8.4 s is 0.84 of the download's 2; at 0.975 half of the upload is done."""
    early, late = (run(conditions(draws=RoundDraws(crash=share))) for share in (0.1, 0.975))
    assert (early.bytes_down, early.bytes_up, early.flops) == (16_800, 0, 0.0)
    assert (late.bytes_down, late.flops) == (40_000, pytest.approx(6e9))
    assert late.bytes_up == 1900  # (0.975 * 8.4 - 8) / 0.4 = 0.475 of 4000


def test_a_device_that_sits_out_may_die_before_it_says_so():
    """All of its work is a download of 2 s, of which it does a half."""
    line = run(conditions(closes_at=15.0, draws=RoundDraws(crash=0.5, away_s=60.0)))
    assert (line.fate, line.ends_at, line.back_at) == ("crashed", 11.0, 71.0)
    assert (line.busy.download_s, line.bytes_down, line.energy_j) == (1.0, 20_000, 1.0)


def test_a_battery_that_runs_empty_ends_the_work_and_no_energy_comes_from_nowhere():
    """12 J: 2 for the download, 10 for 2 of the 6 s of computing; at 1 W of charging 14: 3.5 s."""
    line = run(conditions(charge_j=12.0))
    assert (line.fate, line.ends_at) == ("crashed", pytest.approx(14.0))
    assert (line.energy_j, line.busy.compute_s) == pytest.approx((12.0, 2.0))
    charging = run(conditions(charge_j=14.0, charge_w=1.0))
    assert (charging.fate, charging.ends_at) == ("crashed", pytest.approx(15.5))
    assert run(conditions(charge_j=32.5)).fate is None  # 2 + 30 + 0.4 J


def test_a_link_that_never_comes_back_loses_the_update():
    line = run(
        conditions(draws=RoundDraws(drop=0.25, away_s=30.0), back=lambda now: inf if now > 20 else now)
    )
    assert (line.fate, line.back_at) == ("dropped out", inf)
    assert line.ends_at == pytest.approx(12.1)
    assert line.busy.compute_s == pytest.approx(0.1)


@dataclass(frozen=True)
class Window:
    """There from `start` to `end`, and for good from `again` on."""

    end: float
    again: float

    def until(self, now: float) -> float:
        return self.end if now < self.end else (inf if now >= self.again else now)

    def back(self, now: float) -> float:
        return now if now < self.end else max(now, self.again)


def test_a_device_goes_on_when_it_is_available_again():
    """4 of 8.4 s until it goes at 14; the rest from 100 on."""
    window = Window(end=14.0, again=100.0)
    line = run(conditions(until=window.until, back=window.back))
    assert line.fate is None
    assert line.ends_at == pytest.approx(104.4)
    assert line.gaps == ((14.0, 100.0),)


def test_a_device_that_never_comes_back_is_lost():
    window = Window(end=14.0, again=inf)
    line = run(conditions(until=window.until, back=window.back))
    assert (line.fate, line.ends_at, line.back_at) == ("dropped out", 14.0, inf)
    assert line.busy.compute_s == pytest.approx(2.0)
    assert line.gaps == ((14.0, inf),)


def test_what_a_device_has_learnt_changes_what_it_chooses_and_not_how_fast_it_is():
    """It believes that full updates take 3 times as long: 18 s do not fit into 0.9 * 18; 6 would."""
    wary = replace(DEVICE, corrections={"full": 3.0})
    assert run(conditions(closes_at=30.0), wary).fate == "sat out"
    line = run(conditions(closes_at=40.0), wary)
    assert line.busy.compute_s == pytest.approx(6.0)
    [timing] = line.outcome.timings
    assert (timing.predicted_s, timing.seconds) == pytest.approx((18.0, 6.0))


def test_what_was_fetched_in_the_lobby_costs_bytes_and_energy_and_no_time_of_the_round():
    """20 kB more at 20 kB/s are a second at idle power."""
    line = run(conditions(prefetched_bytes=20_000))
    assert line.ends_at == run(conditions()).ends_at
    assert line.bytes_down == 60_000
    assert line.energy_j == pytest.approx(6.0 * 5 + 3.4 * 1)


def test_a_device_that_has_spent_the_privacy_of_its_samples_sits_out():
    """Planned for one round: the second is refused, with what it would have come to."""
    private = FedAvg(epochs=2, batch=32, terms=(DpSgd(rounds=1),))
    first = run(replace(conditions(), kinds=(private,)))
    assert (first.fate, first.ledger.rounds) == (None, 1)
    assert 4.9 < first.outcome.epsilon <= 5.0
    second = run(replace(conditions(), kinds=(private,), ledger=first.ledger))
    assert second.fate == "sat out"
    assert "epsilon would be" in second.outcome.reasons[0]


@dataclass(frozen=True)
class OfSize(FedAvg):
    """A full update of a member of the family."""

    of: str = ""

    @property
    def member(self) -> str:
        return self.of


def test_of_a_family_a_device_fetches_the_model_that_it_can_afford_and_trains_no_other():
    """Of the main model 6 s of training and 2 s of download do not fit into 0.9 * 8; of one a third as large
    they do: 0.5 s for 10 kB, then 2 s.
    """
    third = replace(LOAD, graphs={"train.all": GraphWork(1e7, 1000, 100)}, parameters={"all": 200})
    loads = {"": replace(LOAD, download_bytes=40_000), "small": replace(third, download_bytes=10_000)}
    kinds = (OfSize(epochs=2, batch=32), OfSize(epochs=2, batch=32, of="small"))
    offered = replace(conditions(), kinds=kinds, down_bytes={"": 40_000, "small": 10_000}.__getitem__)
    line = timeline(DEVICE, loads, replace(offered, closes_at=18.0))
    assert (line.member, line.fetched, line.straggler, line.fate) == ("small", True, True, None)
    assert (line.busy.download_s, line.busy.compute_s) == pytest.approx((0.5, 2.0))
    assert line.bytes_down == 10_000
    rich = timeline(DEVICE, loads, replace(offered, closes_at=30.0))
    assert (rich.member, rich.straggler) == ("", False)
    assert rich.outcome.plan.candidates[0].misfits == ()


def test_where_no_member_fits_it_has_fetched_the_main_model_and_sits_out():
    loads = dict.fromkeys(("", "small"), replace(LOAD, download_bytes=40_000))
    kinds = (OfSize(epochs=2, batch=32), OfSize(epochs=2, batch=32, of="small"))
    line = timeline(DEVICE, loads, replace(conditions(closes_at=13.0), kinds=kinds))
    assert (line.member, line.fate, line.bytes_down) == ("", "sat out", 40_000)
    assert line.outcome.reasons[-1] == "full needs the model small, which is not here"


def test_a_download_that_is_cut_off_has_not_fetched_the_base():
    assert not run(conditions(draws=RoundDraws(crash=0.1, away_s=60.0))).fetched
    assert run(conditions(draws=RoundDraws(crash=0.9, away_s=60.0))).fetched


@pytest.mark.parametrize(
    ("now", "seconds", "joules", "sizes"),
    [
        (11.0, (1.0, 0.0, 0.0), 1.0, (20_000, 0)),
        (15.0, (2.0, 3.0, 0.0), 2.0 + 3.0 * 5, (40_000, 0)),
        (18.1, (2.0, 6.0, 0.1), 2.1 + 6.0 * 5, (40_000, 1000)),
        (99.0, (2.0, 6.0, 0.4), 2.4 + 6.0 * 5, (40_000, 4000)),
    ],
)
def test_work_that_is_cut_off_has_cost_what_was_spent_until_then(now, seconds, joules, sizes):
    line = run(conditions()).until(now)
    assert (line.busy.download_s, line.busy.compute_s, line.busy.upload_s) == pytest.approx(seconds)
    assert line.energy_j == pytest.approx(joules)
    assert (line.bytes_down, line.bytes_up) == sizes
    assert line.flops == pytest.approx(1e9 * seconds[1])


def test_what_was_fetched_before_it_was_asked_stays_spent_when_work_is_cut_off():
    line = run(conditions(prefetched_bytes=10_000)).until(10.0)
    assert (line.bytes_down, line.energy_j) == (10_000, pytest.approx(0.5))
