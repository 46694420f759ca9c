import pytest

from profiles import ProfileError, shipped, shipped_names


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_profile_is_complete_and_names_its_sources(name):
    profile = shipped(name)
    assert profile.name == name
    assert 0 < profile.memory.limit_bytes < profile.memory.total_bytes
    assert 0 < profile.power.idle_w < profile.power.load_w
    assert profile.speed.source
    assert profile.power.source
    assert profile.bandwidth.up > 0


def test_speed_comes_from_the_published_latency():
    """MobileNetV2, 0.6 GFLOP, in 147 ms on the Zero 2 W and 10.5 ms on the Pi 5."""
    assert shipped("pi-zero-2w").speed.flops_per_s == pytest.approx(0.6e9 / 0.147)
    assert shipped("pi-5").speed.flops_per_s == pytest.approx(0.6e9 / 0.0105)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ProfileError, match="no profile named 'vax'; there are .*jetson-nano"):
        shipped("vax")
