"""Every source of data by its name. A new one is a module with `load`, its test, and one line here."""

SOURCES = {
    "digits": "handwritten_digits",
    "npz": "arrays",
    "jpeg-npz": "jpegs",
    "speech-npz": "speech_arrays",
    "mnist": "idx",
    "fashion-mnist": "idx",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "speech-commands": "speech_commands",
    "text": "text",
    "sst2": "sst2",
    "images": "images",
}
"""The module here whose `load(spec: DataSpec, seed: int) -> DataSet` reads it; imported when asked for."""

OF_TEXTS = ("text", "sst2")
"""Sources whose `load` takes what makes a bundle's input of texts besides, or None."""
