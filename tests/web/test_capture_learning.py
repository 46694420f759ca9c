"""Real words said into the microphone, real pictures held before the camera: taught, learnt, read right."""

import io
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, write
from device_runtime.models.data.sound import RATE, log_mel, resampled, samples_of
from device_runtime.models.training.optimizer import Adam

from .conftest import OPEN, SCRIPTED, Visit
from .props import BANDS, FAST_HZ, FRAMES, nearest, record
from .services import Services
from .serving_pages import Pages

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
pytest.importorskip("torch", reason="bundles are exported with torch")
DATA = Path(os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data"))
SPEECH, FEATURES = DATA / "speech_commands12_8k_small.npz", DATA / "speech_commands12_logmel_u8.npz"
PICTURES = DATA / "cifar10_10k_2k_jpegbytes.npz"
WORDS = ("yes", "no", "stop")
SEEN = ("automobile", "ship")
LOW_BANDS = 30
"""Of 40: what sound of 8 kHz has."""
EPOCHS, BATCH = 12, 32
TAUGHT, JUDGED = 3, 4
"""Words of each label."""
pytestmark = pytest.mark.slow


class Speech:
    """Clips of three words at 8 kHz, and features of more of them."""

    def __init__(self):
        if not (SPEECH.exists() and FEATURES.exists()):
            pytest.skip(f"no speech in {DATA}")
        self._few, self._many = np.load(SPEECH), np.load(FEATURES)

    def clips(self, part):
        """Samples (n, 8000) and labels (n,)."""
        x, y = self._of(self._few, part)
        return x, y

    def _of(self, arrays, part):
        numbers = [list(arrays["class_names"]).index(word) for word in WORDS]
        which = np.isin(arrays[f"y_{part}"], numbers)
        labels = np.array([numbers.index(number) for number in arrays[f"y_{part}"][which]])
        return arrays[f"x_{part}"][which], labels

    def training(self):
        """Features (n, 1, 61, 40) of all there are, as of sound of 8 kHz; labels (n,)."""
        x, y = self.clips("train")
        count = samples_of(FRAMES)
        features = np.stack(
            [log_mel(resampled(sound.astype(np.float32), 8000, RATE, count)[None])[0] for sound in x]
        )
        more, labels = self._of(self._many, "train")
        more = np.where(np.arange(BANDS) < LOW_BANDS, more, 0)
        return np.concatenate([features, more])[:, None], np.concatenate([y, labels])

    def sound_of(self, label, number):
        """A clip that no training has seen, as it is heard by a microphone: silence, the word, silence."""
        x, y = self.clips("test")
        clip = resampled(x[y == label][number].astype(np.float32), 8000, FAST_HZ, FAST_HZ)
        around = np.zeros(FAST_HZ * 5 // 4, np.float32), clip, np.zeros(3 * FAST_HZ, np.float32)
        return np.clip(np.rint(np.concatenate(around)), -32768, 32767)


@pytest.fixture(scope="module")
def speech():
    return Speech()


def exported(program, folder, *words):
    """A bundle with random weights."""
    subprocess.run([program, "export", *words, "--out", folder], check=True, capture_output=True)
    return Bundle.open(folder)


def trained(bundle, x, y, folder):
    """The same bundle with weights that know something; clips are moved by up to an eighth of a second."""
    model, rng = OnnxModel(bundle), np.random.default_rng(0)
    trainer = model.trainer("all")
    steps = Adam(lr=3e-3).start(trainer.params.vector)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            moved = np.stack([np.roll(feature, rng.integers(-8, 9), axis=1) for feature in x[some]])
            trainer.loss_and_grads(bundle.manifest.input.prepare(moved), y[some])
            steps.step(trainer.params.vector, trainer.grads.vector)
    weights = dict(model.weights) | trainer.params.views
    return write(
        folder, bundle.manifest, weights, {name: bundle.graph(name) for name in bundle.manifest.graphs}
    )


@pytest.fixture(scope="module")
def words(program, speech, tmp_path_factory):
    """A keyword spotter that was trained a little on words of other speakers."""
    folder = tmp_path_factory.mktemp("words")
    scaled = ("--scale", str(1 / 255), "--mean", "0.423", "--std", "0.175")
    shape = ("--input", f"1,{FRAMES},{BANDS}", "--labels", ",".join(WORDS), "--set", f"classes={len(WORDS)}")
    return trained(
        exported(program, folder / "none", "keywords", *shape, *scaled), *speech.training(), folder / "words"
    )


@pytest.fixture
def serve(launched, eventually, tmp_path):
    """A task of a bundle that goes on for long, in small steps."""
    services = Services(launched, eventually, tmp_path)

    def start(bundle):
        file = tmp_path / "task.toml"
        kinds = "kinds = [{ name = 'full', settings = { epochs = 2, lr = 0.01, batch = 8 } }]"
        task = f"bundle = '{bundle.path}'\nname = 'taught'\nrounds = 200\nround_deadline_s = 60"
        file.write_text(f"{task}\n{kinds}\n")
        return services(file)

    return start


@pytest.fixture
def joined(studio):
    visits = []

    def join(pages):
        visits.append(Visit(studio, pages))
        visits[-1].open().click("#join button")
        visits[-1].page.wait_for_selector("#teach:not([hidden])")
        return visits[-1]

    yield join
    for visitor in visits:
        visitor.context.close()


def taken_for(page):
    text = page.get_by_text(re.compile(r"It takes this for “"))
    text.wait_for()
    return re.search(r"“(\w+)”", text.inner_text())[1]


def keep(page, label):
    page.locator(".label:enabled").get_by_text(label, exact=True).click()
    page.get_by_text(f"Kept as “{label}”").wait_for()


def test_features_of_real_words_are_those_that_python_makes_of_the_same_file(speech, props, studio):
    script = "self.scripted = 'words';\n" + SCRIPTED.read_text()
    visitor = Visit(studio, Pages(OPEN, {}, {"/join/worker.js": script}))
    visitor.joined()
    fars = []
    for number in range(6):
        sound = speech.sound_of(number % 3, number)
        props.say(sound, FAST_HZ)
        record(visitor.page)
        x = [message for message in visitor.messages() if message["do"] == "guess"][-1]["x"]
        raw = (np.array(list(x.values())) * 0.376 + 0.305) * 255
        fars.append(nearest(raw.reshape(FRAMES, BANDS), sound, FAST_HZ)[1])
    visitor.context.close()
    visitor.pages.shutdown()
    print(f"log-mel, steps of half a decibel: mean {np.mean(fars):.3f}, 99% {np.quantile(fars, 0.99):.1f}")
    assert np.mean(fars) < 0.2
    assert np.quantile(fars, 0.99) < 1.5


def test_words_are_taught_learnt_and_then_read_right(words, speech, props, serve, joined, eventually):
    with serve(words) as served:
        visitor = joined(served.pages)
        for number in range(TAUGHT):
            for label, word in enumerate(WORDS):
                props.say(speech.sound_of(label, number), FAST_HZ)
                record(visitor.page)
                keep(visitor.page, word)
        visitor.page.get_by_text(f"{TAUGHT * len(WORDS)} samples").wait_for()
        before = len(served.contributions())
        eventually(lambda: len(served.contributions()) >= before + 3)
        visitor.page.click("#pause")
        right = []
        for number in range(TAUGHT, TAUGHT + JUDGED):
            for label, word in enumerate(WORDS):
                props.say(speech.sound_of(label, number), FAST_HZ)
                record(visitor.page)
                right.append(taken_for(visitor.page) == word)
        assert visitor.wrong == []
    knew = accuracy_of(words, speech)
    print(f"{sum(right)} of {len(right)} new words right after {before + 3} rounds; {knew} by Python before")
    assert {row["kind"] for row in served.contributions()} == {"full"}
    assert sum(right) >= max(8, knew - 1)


def accuracy_of(bundle, speech):
    """How many of the words that are judged the bundle reads right as it is, of their clips, in Python."""
    count, right = samples_of(FRAMES), 0
    x, y = speech.clips("test")
    for label in range(len(WORDS)):
        for clip in x[y == label][TAUGHT : TAUGHT + JUDGED]:
            raw = log_mel(resampled(clip.astype(np.float32), 8000, RATE, count)[None])
            right += int(
                OnnxModel(bundle).logits(bundle.manifest.input.prepare(raw[:, None])).argmax() == label
            )
    return right


def pictures():
    """Of two classes: (label, picture (32, 32, 3)), one of each in turn."""
    image = pytest.importorskip("PIL.Image", reason="needs pip install pillow")
    if not PICTURES.exists():
        pytest.skip(f"no pictures in {DATA}")
    arrays = np.load(PICTURES)
    jpeg, offsets, names = arrays["jpeg_train"], arrays["off_train"], list(arrays["class_names"])
    places = [np.flatnonzero(arrays["y_train"] == names.index(name)) for name in SEEN]
    for pair in zip(*places, strict=True):
        for label, place in enumerate(pair):
            data = jpeg[offsets[place] : offsets[place + 1]].tobytes()
            yield label, np.asarray(image.open(io.BytesIO(data)).convert("RGB"))


THUMB = """canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 32, 32).data)"""


def test_pictures_are_taken_kept_as_they_are_and_learnt(program, props, serve, joined, eventually, tmp_path):
    many = pictures()
    shape = (
        "--input",
        "3,32,32",
        "--labels",
        ",".join(SEEN),
        "--scale",
        str(1 / 255),
        "--mean",
        "0.47",
        "--std",
        "0.25",
    )
    wrn = ("wrn", "--set", "depth=10", "--set", "width=1", "--set", "classes=2")
    bundle = exported(program, tmp_path / "seen", *wrn, *shape)
    with serve(bundle) as served:
        visitor = joined(served.pages)
        for _ in range(8):
            label, picture = next(many)
            props.show(picture)
            visitor.page.get_by_role("button", name="Use the camera").click()
            visitor.page.get_by_role("button", name="Take a picture").click()
            visitor.page.get_by_role("button", name="Switch it off").click()
            keep(visitor.page, SEEN[label])
            if label == 0:  # they stand first, and the newest of them before the others
                stored = np.array(visitor.page.locator("canvas.thumb").first.evaluate(THUMB))
                assert np.abs(stored.reshape(32, 32, 4)[:, :, :3] - picture.astype(int)).mean() < 8
        visitor.page.get_by_text("8 samples").wait_for()
        before = len(served.contributions())
        eventually(lambda: len(served.contributions()) >= before + 3)
        assert visitor.wrong == []
    assert {row["kind"] for row in served.contributions()} == {"full"}
