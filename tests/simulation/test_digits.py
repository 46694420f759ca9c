import numpy as np

from device_runtime.simulation import digits


def test_the_digits_are_split_without_loss_or_overlap():
    split = digits.load(np.random.default_rng(0), test=360)
    assert (len(split.train.y), len(split.test.y)) == (1437, 360)
    from sklearn.datasets import load_digits

    def rows(images):
        return sorted(image.tobytes() for image in images.astype(np.uint8).reshape(-1, 64))

    assert rows(np.concatenate([split.train.x, split.test.x])) == rows(load_digits().images)


def test_images_stay_with_their_labels():
    from sklearn.datasets import load_digits

    every = load_digits()
    pairs = {(i.astype(np.uint8).tobytes(), int(t)) for i, t in zip(every.images, every.target, strict=True)}
    test = digits.load(np.random.default_rng(0)).test
    assert {(x.tobytes(), int(y)) for x, y in zip(test.x, test.y, strict=True)} <= pairs
    assert test.x.shape == (360, 1, 8, 8)
    assert (test.x.dtype, test.x.max()) == (np.uint8, 16)


def test_the_split_is_that_of_its_seed():
    first, same, other = (digits.load(np.random.default_rng(seed)).test.y for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
