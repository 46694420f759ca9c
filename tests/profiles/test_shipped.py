import pytest

from device_runtime.profiles import ProfileError, shipped, shipped_names
from device_runtime.profiles.device import boards


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_profile_is_complete_and_names_its_sources(name):
    profile, board = shipped(name), boards()[name]
    assert profile.name == name
    assert 0 < profile.memory.limit_bytes < profile.memory.total_bytes
    assert 0 < profile.power.idle_w < profile.power.load_w
    assert 0 < profile.bandwidth.up <= profile.bandwidth.down
    for source in (board.speed_source, board.memory_source, board.power_source, board.link_source):
        assert any(word in source for word in ("assumed", "benchmark", "maker", "HPL"))


def test_the_boards_and_phones_of_the_field_are_there():
    assert {
        "pi-zero-2w", "pi-3", "pi-4", "pi-5", "jetson-nano", "orin-nano", "phone-low", "phone-mid",
        "phone-high", "laptop", "x86-server",
    } == set(shipped_names())  # fmt: skip


def test_speed_comes_from_the_published_latency():
    """MobileNetV2, 0.6 GFLOP, in 147 ms on the Zero 2 W and 10.5 ms on the Pi 5; ResNet-18, 3.6, in 353."""
    assert shipped("pi-zero-2w").speed.flops_per_s == pytest.approx(0.6e9 / 0.147)
    assert shipped("pi-5").speed.flops_per_s == pytest.approx(0.6e9 / 0.0105)
    assert boards()["pi-zero-2w"].wide_flops_per_s == pytest.approx(3.6e9 / 0.353)


@pytest.mark.parametrize("name", shipped_names())
def test_the_rate_in_use_is_the_careful_one(name):
    """docs/fleets.md says that MobileNetV2's is the lower one on every board, by a factor of 4 at most."""
    board = boards()[name]
    assert shipped(name).speed.flops_per_s == board.flops_per_s
    assert 1 < board.wide_flops_per_s / board.flops_per_s < 4


def test_figures_that_were_scaled_are_what_their_source_says():
    orin, laptop = boards()["orin-nano"], boards()["laptop"]
    assert orin.mobilenet_v2_ms == pytest.approx(5.15 * 2.2 / 1.5, abs=0.05)
    assert orin.resnet18_ms == pytest.approx(10.35 * 2.2 / 1.5, abs=0.05)
    assert laptop.mobilenet_v2_ms == pytest.approx(7.89 * 22.65 / 62.57, abs=0.05)
    assert laptop.resnet18_ms == pytest.approx(20.74 * 54.07 / 161.03, abs=0.05)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ProfileError, match="no profile named 'vax'; there are .*jetson-nano"):
        shipped("vax")
