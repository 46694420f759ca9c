import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import sound as wav
from device_runtime.models.data.sound import log_mel, resampled, samples_needed
from device_runtime.models.data.units import Refused
from device_runtime.simulation.data import speech

SPEECH = InputSpec((1, 61, 40), 1 / 255)
SAMPLES = np.random.default_rng(0).integers(-9000, 9000, 16000).astype("<i2")


def tone(hertz, rate, seconds=1.0):
    return (9000 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def test_features_are_those_that_a_simulation_makes(tmp_path):
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(SAMPLES[:12000].tobytes())
    simulated = log_mel(speech.one_second(speech.clip(path))[None])
    assert np.array_equal(wav.decode(path.read_bytes()).raw(SPEECH)[:, 0], simulated)


@pytest.mark.parametrize(
    "bits, kind, stored",
    [
        (16, 1, SAMPLES.tobytes()),
        (24, 1, (SAMPLES.astype("<i4") * 65536).view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()),
        (32, 1, (SAMPLES.astype("<i4") * 65536).tobytes()),
        (32, 3, (SAMPLES / 32768).astype("<f4").tobytes()),
        (64, 3, (SAMPLES / 32768).astype("<f8").tobytes()),
    ],
)
def test_every_form_of_the_same_sound_gives_the_same_samples(wav_bytes, bits, kind, stored):
    assert np.array_equal(wav.decode(wav_bytes(stored, bits=bits, kind=kind)).samples(), SAMPLES)


def test_eight_bits_are_unsigned(wav_bytes):
    assert wav.decode(wav_bytes(bytes([0, 128, 255]), bits=8)).samples().tolist() == [-32768, 0, 32512]


def test_channels_are_averaged(wav_bytes):
    both = np.stack([SAMPLES, SAMPLES[::-1]], 1)
    sound = wav.decode(wav_bytes(both.tobytes(), channels=2))
    assert np.array_equal(sound.samples(), (SAMPLES.astype(float) + SAMPLES[::-1]) / 2)
    assert sound.form == "sound 16000 Hz, 2 channels, 16 bits"


def test_the_extensible_header_and_other_chunks_are_read():
    head = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 16000, 32000, 2, 16, 22, 16, 4, 1) + bytes(14)
    body = b"WAVEfmt " + struct.pack("<I", 40) + head + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    body += b"data" + struct.pack("<I", 0xFFFFFFFF) + SAMPLES.tobytes()  # as written into a pipe
    assert np.array_equal(wav.decode(b"RIFF" + bytes(4) + body).samples(), SAMPLES)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "no RIFF WAVE"),
        (b"RIFF\0\0\0\0WAVE", "WAVE without samples"),
        (lambda to_wav: to_wav(SAMPLES.tobytes())[:-2], "31998 of 32000 bytes"),
        (lambda to_wav: to_wav(b""), "a sound without samples"),
        (lambda to_wav: to_wav(bytes(4), kind=6, bits=8), "WAVE format 6"),
        (lambda to_wav: to_wav(bytes(4), bits=12), "12 bits"),
        (lambda to_wav: to_wav(bytes(4), rate=100), "100 Hz, expected 4000 to 384000"),
        (lambda to_wav: to_wav(bytes(4), channels=0), "0 channels"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "without its format"),
    ],
)
def test_what_is_no_whole_sound_is_refused(wav_bytes, data, message):
    with pytest.raises(Refused, match=message):
        wav.decode(data if isinstance(data, bytes) else data(wav_bytes))


def test_samples_that_are_no_numbers_are_refused(wav_bytes):
    nan = np.full(16000, np.nan, "<f4").tobytes()
    with pytest.raises(Refused, match="not finite"):
        wav.decode(wav_bytes(nan, bits=32, kind=3)).raw(SPEECH)


@settings(max_examples=200)
@given(cut=st.integers(0, 60), junk=st.binary(max_size=60))
def test_any_bytes_are_a_sound_or_refused(wav_bytes, cut, junk):
    whole = wav_bytes(SAMPLES[:500].tobytes())
    try:
        assert wav.decode(whole[:cut] + junk + whole[cut + len(junk) :]).raw(SPEECH).shape == (1, 1, 61, 40)
    except Refused as error:
        assert error.reason


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_a_tone_is_the_same_tone_at_another_rate(rate):
    ours = resampled(tone(1000, rate), rate, 16000, 16000)
    assert len(ours) == 16000
    inside = slice(500, -500)
    assert np.abs(ours - tone(1000, 16000))[inside].max() < 5  # of 9000


def test_what_the_new_rate_cannot_hold_is_taken_away():
    high = resampled(tone(9500, 48000), 48000, 16000, 16000)
    assert np.abs(high[500:-500]).max() < 90  # 40 dB down


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_only_the_beginning_that_is_needed_is_read(rate):
    long = tone(440, rate, 3.0)
    part = long[: samples_needed(16000, rate, 16000)]
    assert len(part) < 0.4 * len(long)
    assert np.array_equal(resampled(part, rate, 16000, 16000), resampled(long, rate, 16000, 16000))


def test_an_input_without_forty_bands_takes_no_sound(wav_bytes):
    sound = wav.decode(wav_bytes(SAMPLES.tobytes()))
    assert sound.raw(InputSpec((30, 40))).shape == (1, 30, 40)
    for shape in ((1, 8, 8), (3, 61, 40), (16000,)):
        with pytest.raises(Refused, match="no log-mel of 40 bands"):
            sound.raw(InputSpec(shape))


def test_a_value_that_fills_more_bytes_than_its_bits_is_refused(wav_bytes):
    file = bytearray(wav_bytes(bytes(400), bits=24))
    file[32:34] = struct.pack("<H", 4)  # 24 bits in 4 bytes
    with pytest.raises(Refused, match="WAVE of 24 bits, 1 channels in 4 bytes"):
        wav.decode(bytes(file))


@pytest.mark.parametrize("value", [1e300, -1e30, np.nan])
def test_sound_beyond_all_loudness_is_refused(wav_bytes, value):
    sound = wav.decode(wav_bytes(np.array([0.1, value]).tobytes(), bits=64, kind=3))
    with pytest.raises(Refused, match="not finite"):
        sound.raw(SPEECH)
