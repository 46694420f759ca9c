from pathlib import Path

import numpy as np
import pytest

from device_runtime.models.data.sound import filters, fit_length, log_mel, samples_of

SHARED = Path(__file__).parents[4] / "shared" / "data"
WAVES, FEATURES = SHARED / "speech_commands12_8k_small.npz", SHARED / "speech_commands12_logmel_u8.npz"


def tone(hertz, rate, amplitude=0.5):
    samples = amplitude * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)
    return np.round(32767 * samples).astype(np.int16)[None]


def test_a_second_has_61_frames_of_40_bands():
    assert log_mel(np.zeros((3, 16000), np.int16)).shape == (3, 61, 40)
    assert log_mel(np.zeros((3, 8000), np.int16), 8000).shape == (3, 61, 40)


def test_as_many_samples_as_frames_take_give_the_features_of_the_whole_second():
    second = np.random.default_rng(0).integers(-9000, 9000, (1, 16000)).astype(np.int16)
    assert samples_of(61) == 512 + 60 * 256
    assert np.array_equal(log_mel(second[:, : samples_of(61)]), log_mel(second))
    assert np.array_equal(log_mel(second.astype(np.float32)), log_mel(second))


def test_a_clip_is_cut_off_or_filled_up_behind():
    assert fit_length(np.array([1, 2, 3], np.int16), 5).tolist() == [1, 2, 3, 0, 0]
    assert fit_length(np.array([1, 2, 3], np.int16), 2).tolist() == [1, 2]


def test_silence_is_the_floor():
    assert (log_mel(np.zeros((1, 16000), np.int16)) == 0).all()


def test_a_tone_is_loudest_in_the_band_around_it():
    # corners are 41 equal steps from mel(20) = 31.75 to mel(7600) = 2786.96; 1000 Hz is mel 999.99,
    # step (999.99 - 31.75) / 67.20 = 14.41, so that its nearest centre is that of band 13
    features = log_mel(tone(1000, 16000))[0]
    assert (features.argmax(1) == 13).all()


def test_the_level_is_that_of_the_formula():
    # a tone on bin 32 (1000 Hz) under a Hann window of 512 samples: |X| = A/2 * 256 there, half of it beside
    weights = filters(512, 16000)[13]
    power = (0.5 / 2 * 256) ** 2 * (weights[32] + (weights[31] + weights[33]) / 4)
    expected = 2 * (10 * np.log10(power) + 80)
    assert log_mel(tone(1000, 16000))[0, 30, 13] == pytest.approx(expected, abs=0.6)


def test_half_the_amplitude_is_six_decibels_less():
    loud, soft = (log_mel(tone(1000, 16000, a))[0, 30, 13].astype(int) for a in (0.8, 0.4))
    assert loud - soft in (12, 13)  # 6.02 dB, in half decibels, each rounded


def test_filters_are_triangles_of_height_one_that_sum_to_one_between_the_first_and_last_centre():
    bank = filters(4096, 16000)
    frequencies = np.arange(2049) * 16000 / 4096
    assert (bank[:, frequencies < 20] == 0).all()
    assert (bank[:, frequencies > 7600] == 0).all()
    inside = (frequencies > 70) & (frequencies < 7100)
    assert bank.sum(0)[inside] == pytest.approx(1.0)
    assert bank.max(1) == pytest.approx(1.0, abs=0.1)


def test_another_rate_gives_the_same_level():
    low, high = (log_mel(tone(1000, rate), rate)[0, 30].max() for rate in (8000, 16000))
    assert abs(int(low) - int(high)) <= 3


@pytest.mark.slow
@pytest.mark.skipif(not (WAVES.exists() and FEATURES.exists()), reason="the real data is not here")
def test_features_agree_with_those_of_the_real_data():
    """The same test clips are there as 8 kHz waveforms and as features of the 16 kHz originals.

    Brought to 16 kHz, the waveforms have all that bands 0 to 25, below 3.2 kHz, take.
    """
    with np.load(WAVES) as waves:
        clips, speaker, y = waves["x_test"], waves["speaker_test"], waves["y_test"]
    with np.load(FEATURES) as stored:
        reference = stored["x_test"]
        same = (stored["speaker_test"] == speaker[:, None]) & (stored["y_test"] == y[:, None])
    doubled = np.fft.irfft(np.fft.rfft(clips), 16000) * 2  # twice the rate
    ours = log_mel(np.clip(doubled, -32768, 32767).astype(np.int16))[:, :, :26].astype(int)
    off = [
        min(np.abs(ours[i] - reference[j, :, :26]).mean() for j in np.flatnonzero(same[i]))
        for i in range(0, len(ours), 4)
        if same[i].any()
    ]
    assert len(off) > 50
    assert np.median(off) < 0.6  # of 255 steps of half a decibel
