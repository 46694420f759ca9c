import re
from math import inf, isnan, log

import numpy as np
import pytest

from device_runtime.profiles import ProfileError, shipped
from device_runtime.profiles.fleets import draws
from device_runtime.profiles.fleets.draws import counts
from device_runtime.profiles.fleets.fleet import FleetSpec, load, preset_names, read

DAY = 86_400


def fleet(devices=20_000, seed=7, **group):
    """One group, "g", of middle phones unless said otherwise."""
    return read(
        {"name": "f", "groups": {"g": {"profile": "phone-mid", "share": 1.0, **group}}}
    ).draw(devices, seed)  # fmt: skip


def test_counts_are_the_largest_remainders():
    """10 devices by thirds: 3 each, and the first gets the tenth. 7 by 0.5, 0.3, 0.2 is 3.5, 2.1, 1.4:
    3, 2, 1, and the seventh goes to the first, of remainder 0.5."""
    assert counts([1 / 3, 1 / 3, 1 / 3], 10) == [4, 3, 3]
    assert counts([0.5, 0.3, 0.2], 7) == [4, 2, 1]
    assert counts([0.1, 0.2, 0.7], 10) == [1, 2, 7]
    assert counts([0.05, 0.95], 1) == [0, 1]


def test_groups_have_their_counts_and_are_mixed():
    spec = load("boards")
    drawn = spec.draw(1000, 1)
    groups = [drawn.group(i) for i in range(1000)]
    sizes = {"zero-2w": 100, "pi-3": 200, "pi-4": 350, "pi-5": 200, "jetson-nano": 100, "orin-nano": 50}
    assert {name: groups.count(name) for name in sizes} == sizes
    assert 45 < groups[:200].count("pi-4") < 95  # 70 expected, standard deviation 6
    assert groups != [spec.draw(1000, 2).group(i) for i in range(1000)]


def test_the_same_seed_makes_the_same_devices_and_another_does_not():
    first, same, other = (load("mixed").draw(300, seed) for seed in (5, 5, 6))
    assert [first.profile(i) for i in range(300)] == [same.profile(i) for i in range(300)]
    assert (first.draws.windows == same.draws.windows).all()
    assert [first.profile(i) for i in range(300)] != [other.profile(i) for i in range(300)]


def test_the_order_in_which_groups_are_written_changes_no_device():
    spec = load("mixed")
    turned = FleetSpec(name="mixed", groups=dict(reversed(spec.groups.items())))
    first, other = spec.draw(41, 3), turned.draw(41, 3)
    assert [first.name(i) for i in range(41)] == [other.name(i) for i in range(41)]
    assert [first.profile(i) for i in range(41)] == [other.profile(i) for i in range(41)]


def test_a_spread_that_is_set_changes_no_other_draw():
    plain, spread = fleet(100, link={"sigma": 1.0}), fleet(100, link={"sigma": 1.0}, speed={"sigma": 0.5})
    assert [plain.profile(i).bandwidth for i in range(100)] == [
        spread.profile(i).bandwidth for i in range(100)
    ]


def test_names_are_topic_levels_and_lead_back():
    drawn = load("mixed").draw(200, 3)
    names = [drawn.name(i) for i in range(200)]
    assert len(set(names)) == 200
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) for name in names)
    assert [drawn.index(name) for name in names] == list(range(200))
    assert names[42] == f"{drawn.group(42)}-00042"
    for wrong in ("pi-5-00200", "pi-5", "nobody-00001", f"{drawn.group(42)}-42", ""):
        with pytest.raises(ProfileError, match=f"fleet mixed of 200 devices has none named {wrong!r}"):
            drawn.index(wrong)


def test_identical_devices_are_the_shipped_profile_and_never_leave():
    drawn = load("uniform").draw(3, 0)
    assert [drawn.profile(i) for i in range(3)] == [shipped("pi-5")] * 3
    assert drawn.until(1, 12345.6) == inf
    assert drawn.battery(1) is None
    assert drawn.latency_s(1) == 0.0
    assert drawn.present(0.0).all()


def quantile_ratio(values, low, high):
    return float(np.quantile(values, high) / np.quantile(values, low))


def test_tails_are_log_normal():
    """With sigma s, half of the devices lie within e^(+-0.6745 s) of the median, 90% within e^(+-1.645 s)."""
    drawn = fleet(speed={"factor": 0.5, "sigma": 0.6}, link={"sigma": 1.1, "up_bytes_per_s": 760_000})
    profiles = [drawn.profile(i) for i in range(len(drawn))]
    rates = [profile.speed.flops_per_s for profile in profiles]
    ups = [profile.bandwidth.up for profile in profiles]
    assert np.median(rates) == pytest.approx(0.5 * 0.6e9 / 0.013, rel=0.02)
    assert np.median(ups) == pytest.approx(760_000, rel=0.03)
    assert log(quantile_ratio(rates, 0.25, 0.75)) == pytest.approx(2 * 0.6745 * 0.6, rel=0.03)
    assert log(quantile_ratio(ups, 0.05, 0.95)) == pytest.approx(2 * 1.645 * 1.1, rel=0.03)
    assert np.mean(np.array(ups) < 380_000) == pytest.approx(0.264, abs=0.01)  # FedScale's trace: 26%
    assert all(
        profile.bandwidth.down / profile.bandwidth.up == pytest.approx(8e6 / 760e3) for profile in profiles
    )


def test_memory_is_never_more_than_the_device_has():
    drawn = fleet(memory={"limit_mb": 4000, "sigma": 1.0})
    limits = np.array([drawn.profile(i).memory.limit_bytes for i in range(len(drawn))])
    assert limits.max() == 6144 * 2**20
    assert np.median(limits) == pytest.approx(4000 * 2**20, rel=0.03)
    assert fleet(2, memory={"limit_mb": 100}).profile(0).memory.limit_bytes == 100 * 2**20


def test_a_battery_in_joule_and_its_level_at_the_start():
    drawn = fleet(battery={"wh": 10, "charge_w": 5, "start": 0.8, "start_spread": 0.4, "minimum": 0.3})
    batteries = [drawn.battery(i) for i in range(len(drawn))]
    assert {(battery.capacity_j, battery.charge_w, battery.minimum) for battery in batteries} == {
        (36_000.0, 5, 0.3)
    }
    starts = np.array([battery.start for battery in batteries])
    assert starts.min() == pytest.approx(0.4, abs=0.01)
    assert starts.max() == 1.0
    assert np.mean(starts == 1.0) == pytest.approx(
        0.25, abs=0.02
    )  # what 0.8 + 0.4 * (0.5..1) would be over 1


def test_only_the_groups_with_a_battery_have_one():
    drawn = load("sensors").draw(100, 0)
    assert all((drawn.battery(i) is None) == (drawn.group(i) == "mains") for i in range(100))


def test_windows_follow_the_hours_they_are_set_to():
    """From 22 h, 8 hours, seen from a run that begins at 20 h: from 2 h to 10 h of the run."""
    spec = read(
        {"name": "f", "begins_h": 20.0, "groups": {"g": {
            "profile": "pi-4", "share": 1.0, "windows": [{"start_h": 22, "length_h": 8}]}}}
    )  # fmt: skip
    drawn = spec.draw(5, 0)
    assert [drawn.available(0, hour * 3600.0) for hour in (1, 2, 9, 10)] == [False, True, True, False]
    assert drawn.next(4, 0.0) == 2 * 3600
    assert drawn.until(4, 3 * 3600.0) == 10 * 3600
    assert drawn.next(4, 11 * 3600.0) == 26 * 3600


def test_windows_differ_by_their_spreads():
    window = {"start_h": 12, "start_sd_h": 1.5, "length_h": 4, "length_sigma": 0.3}
    drawn = fleet(windows=[window])
    starts, lengths = drawn.draws.windows[:, 0] / 3600, drawn.draws.windows[:, 1] / 3600
    assert np.mean(starts) == pytest.approx(12, abs=0.05)
    assert np.std(starts) == pytest.approx(1.5, rel=0.03)
    assert np.median(lengths) == pytest.approx(4, rel=0.02)
    assert np.std(np.log(lengths)) == pytest.approx(0.3, rel=0.03)


def test_time_zones_spread_westward_and_some_never_come():
    drawn = fleet(windows=[{"start_h": 6, "length_h": 1, "share": 0.75}], zones_h=4)
    comes = np.array([drawn.next(i, 0.0) for i in range(len(drawn))])
    assert np.mean(np.isinf(comes)) == pytest.approx(0.25, abs=0.01)
    comes = comes[np.isfinite(comes)] / 3600
    assert comes.min() == pytest.approx(6, abs=0.01)
    assert comes.max() == pytest.approx(10, abs=0.01)
    assert comes.mean() == pytest.approx(8, abs=0.05)


def test_chances_have_their_probabilities_and_spreads():
    drawn = fleet(
        speed={"jitter": 0.3}, link={"jitter": 0.5},
        failures={"crash": 0.02, "drop": 0.1, "away_s": 600, "away_sigma": 1.0},
    )  # fmt: skip
    devices = np.arange(len(drawn))
    chances = drawn.disturbances(devices, np.random.default_rng(0))
    assert np.mean(~np.isnan(chances.crash)) == pytest.approx(0.02, abs=0.003)
    assert np.mean(~np.isnan(chances.drop)) == pytest.approx(0.1, abs=0.007)
    assert np.nanmin(chances.drop) > 0
    assert np.nanmax(chances.drop) < 1
    assert np.nanmean(chances.drop) == pytest.approx(0.5, abs=0.02)
    assert np.median(chances.slowdown) == pytest.approx(1, abs=0.01)
    assert np.std(np.log(chances.slowdown)) == pytest.approx(0.3, rel=0.03)
    assert np.std(np.log(chances.uplink)) == pytest.approx(0.5, rel=0.03)
    assert np.corrcoef(np.log(chances.uplink), np.log(chances.downlink))[0, 1] == pytest.approx(0, abs=0.03)
    assert np.median(chances.away_s) == pytest.approx(600, rel=0.05)


def test_chances_are_of_the_device_s_own_group_and_repeat():
    spec = read({"name": "f", "groups": {
        "sure": {"profile": "pi-5", "share": 0.5, "failures": {"crash": 1.0, "away_s": 60}},
        "never": {"profile": "pi-4", "share": 0.5},
    }})  # fmt: skip
    drawn = spec.draw(40, 2)
    devices = np.array([39, 3, 17, 8])
    first, same = (drawn.disturbances(devices, np.random.default_rng(9)) for _ in range(2))
    assert [isnan(share) for share in first.crash] == [drawn.group(i) == "never" for i in devices]
    assert (first.slowdown == 1).all()
    assert set(first.away_s) <= {60.0, 600.0}
    np.testing.assert_array_equal(first.crash, same.crash)
    assert len(drawn.disturbances(np.array([], np.int64), np.random.default_rng(9)).drop) == 0


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_drawn(name):
    drawn = load(name).draw(50, 0)
    assert drawn.spec.name == name
    for i in range(50):
        profile = drawn.profile(i)
        assert profile.speed.flops_per_s > 0
        assert 0 < profile.memory.limit_bytes <= profile.memory.total_bytes
        assert drawn.next(i, 0.0) >= 0


def test_phones_come_at_night_four_times_as_many_as_by_day():
    drawn = load("phones").draw(20_000, 1)
    shares = [drawn.present(3600.0 * hour).mean() for hour in range(24)]
    assert max(shares) / min(shares) == pytest.approx(4, abs=0.5)
    assert np.argmax(shares) in (1, 2, 3, 4, 5)


def test_most_of_the_straggler_heavy_fleet_is_five_times_slower_than_the_fast_and_half_ten_times():
    drawn = load("straggler-heavy").draw(1000, 1)
    fast = shipped("pi-5").speed.flops_per_s
    assert sum(drawn.profile(i).speed.flops_per_s < fast / 5 for i in range(1000)) > 700
    assert sum(drawn.profile(i).speed.flops_per_s < fast / 10 for i in range(1000)) > 500


def refused(**changes):
    group = {"profile": "pi-4", "share": 1.0, **changes}
    with pytest.raises(ProfileError) as caught:
        read({"name": "f", "groups": {"g": group}})
    return str(caught.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"share": 0.5}, "shares are g 0.5: 0.5 in all, expected 1"),
        ({"share": 0.0}, "groups.g.share is 0.0, expected a number above 0, 1 at most"),
        ({"profile": "vax"}, "groups.g.profile: no profile named 'vax'; there are pi-zero-2w"),
        ({"speed": {"factor": 0}}, "groups.g.speed.factor is 0.0, expected a number above 0"),
        ({"speed": {"sigma": -1}}, "groups.g.speed.sigma is -1.0, expected a number 0 or more, 3 at most"),
        ({"speed": {"jitter": float("nan")}}, "groups.g.speed.jitter is nan, expected a number 0 or more"),
        ({"link": {"up_bytes_per_s": 0}}, "groups.g.link.up_bytes_per_s is 0.0, expected a number above 0"),
        (
            {"link": {"latency_s": float("inf")}},
            "groups.g.link.latency_s is inf, expected a number 0 or more",
        ),
        (
            {"memory": {"limit_mb": 5000}},
            "groups.g.memory.limit_mb is 5000, expected a number 1 or more, 4096",
        ),
        ({"windows": [{"start_h": 25, "length_h": 1}]}, "groups.g.windows[0].start_h is 25.0, expected"),
        ({"windows": [{"start_h": 1, "length_h": 1}] * 3}, "groups.g.windows are 3, expected 2 or fewer"),
        (
            {"failures": {"drop": 1.2}},
            "groups.g.failures.drop is 1.2, expected a number 0 or more, 1 at most",
        ),
        ({"battery": {"wh": 0}}, "groups.g.battery.wh is 0.0, expected a number above 0"),
        ({"battery": {"wh": 1, "minimum": 2}}, "groups.g.battery.minimum is 2.0, expected"),
        ({"battery": {}}, "groups.g.battery.wh is missing"),
        ({"sped": {}}, "groups.g.sped: there is no such key; there are profile, share, speed, link,"),
        ({"speed": {"sigma": "wide"}}, "groups.g.speed.sigma: expected `float`, got `str`"),
        ({"zones_h": 30}, "groups.g.zones_h is 30.0, expected a number 0 or more, 24 at most"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(changes, message):
    text = refused(**changes)
    assert text.startswith(message)
    assert "\n" not in text


@pytest.mark.parametrize("preset", ["phones", "mixed", "sensors"])
def test_a_fleet_is_the_same_however_many_devices_are_drawn_at_a_time(preset, monkeypatch):
    whole = load(preset).draw(1000, 5).draws
    monkeypatch.setattr(draws, "BLOCK", 37)
    parts = load(preset).draw(1000, 5).draws
    for name in ("group", "speed", "link", "memory", "charge", "windows"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name), equal_nan=name == "charge")


def test_properties_that_no_group_varies_are_not_drawn():
    fleet = read({"name": "f", "groups": {"g": {"profile": "pi-5", "share": 1.0}}}).draw(2_000_000, 0)
    assert fleet.profile(1_999_999) is fleet.profile(0)
    assert (fleet.available(7, 0.0), fleet.next(7, 3.5), fleet.until(7, 3.5)) == (True, 3.5, np.inf)
    assert fleet.name(1_999_999) == "g-1999999"
    drawn = {name for name, value in vars(fleet.draws).items() if isinstance(value, np.ndarray)}
    assert drawn == {"group"}


def test_a_redrawn_fleet_draws_its_stragglers_anew_for_every_round():
    """Shi 2025, section 4.4.1. Half of ten are slow in a round; of 200 a device is so in 100 +- 4 sd."""
    groups = {
        "fast": {"profile": "pi-5", "share": 0.5},
        "slow": {"profile": "pi-5", "share": 0.5, "speed": {"factor": 0.1}},
    }
    fleet = read({"name": "f", "groups": groups, "redrawn": True}).draw(10, 3)
    rate = fleet.profile(fleet.draws.group.tolist().index(0)).speed.flops_per_s
    slow = np.zeros(10)
    for number in range(1, 201):
        now = fleet.in_round(number)
        slow_ones = [now.profile(i).speed.flops_per_s < rate for i in range(10)]
        assert slow_ones == [now.group(i) == "slow" for i in range(10)]
        assert sum(slow_ones) == 5
        slow += slow_ones
    assert np.abs(slow - 100).max() < 4 * np.sqrt(200 * 0.25)
    assert np.array_equal(fleet.in_round(7).order, fleet.in_round(7).order)
    permanent = read({"name": "f", "groups": groups}).draw(10, 3)
    assert permanent.in_round(7) is permanent


@pytest.mark.parametrize(
    "more", [{"members": ["a"]}, {"battery": {"wh": 1}}, {"windows": [{"start_h": 1, "length_h": 1}]}]
)
def test_devices_of_a_redrawn_fleet_cannot_keep_what_belongs_to_one(more):
    group = {"profile": "pi-5", "share": 1.0, **more}
    with pytest.raises(ProfileError, match="groups.g has windows, a battery or members, which devices of a"):
        read({"name": "f", "groups": {"g": group}, "redrawn": True})


def test_a_group_may_be_dealt_members_of_the_family():
    fleet = read({"name": "f", "groups": {
        "a": {"profile": "pi-5", "share": 0.5, "members": ["small"]}, "b": {"profile": "pi-5", "share": 0.5},
    }}).draw(4, 0)  # fmt: skip
    assert {fleet.group(i): fleet.members(i) for i in range(4)} == {"a": ("small",), "b": ()}


def test_what_cannot_be_meant_above_the_groups_is_refused():
    group = {"profile": "pi-4", "share": 1.0}
    with pytest.raises(ProfileError, match="group name 'a/b': use 1 to 48 letters"):
        read({"name": "f", "groups": {"a/b": group}})
    with pytest.raises(ProfileError, match=re.escape("expected one table [groups.NAME] or more")):
        read({"name": "f", "groups": {}})
    with pytest.raises(ProfileError, match="groups is missing"):
        read({"name": "f"})
    with pytest.raises(ProfileError, match="shares: there is no such key; there are .*"):
        read({"name": "f", "groups": {"g": group}, "shares": 1})
    with pytest.raises(ProfileError, match="begins_h is 30.0, expected a number 0 or more, 24 at most"):
        read({"name": "f", "groups": {"g": group}, "begins_h": 30})
    with pytest.raises(ProfileError, match="shares are a 0.5, b 0.4: 0.9 in all, expected 1"):
        read({"name": "f", "groups": {"a": {**group, "share": 0.5}, "b": {**group, "share": 0.4}}})
    spec = read({"name": "f", "groups": {"g": group}})
    assert isinstance(spec, FleetSpec)
    with pytest.raises(ProfileError, match="a fleet of 0 devices: expected 1 or more"):
        spec.draw(0, 1)
    with pytest.raises(ProfileError, match="seed is -1, expected 0 or more"):
        spec.draw(1, -1)


def test_a_file_is_named_in_what_is_said_of_it(tmp_path):
    path = tmp_path / "mine.toml"
    with pytest.raises(ProfileError, match=f"cannot read {path}: no such file"):
        load(path)
    path.write_text("[groups.g]\nprofile = 'pi-4'\nshare = 2\n")
    with pytest.raises(ProfileError, match=f"fleet {path}: groups.g.share is 2.0, expected"):
        load(path)
    path.write_text("[groups.g\n")
    with pytest.raises(ProfileError, match=f"{path} is not TOML"):
        load(path)
    path.write_text("[groups.g]\nprofile = 'pi-4'\nshare = 1\n")
    assert load(path).name == "mine"
    assert load(str(path)).draw(1, 0).profile(0) == shipped("pi-4")
    with pytest.raises(
        ProfileError, match="no fleet named 'phone': give a file \\*.toml or one of boards, mixed"
    ):
        load("phone")
