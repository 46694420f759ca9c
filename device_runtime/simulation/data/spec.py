"""The [data] table of a scenario: which source of samples, and how they are divided among devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

PARTITIONS = ("iid", "dirichlet", "dirichlet-by-class", "dirichlet-fedml", "shards", "classes", "natural")
BY_CLASS = PARTITIONS[1:-1]
"""Partitions that look at the classes of samples."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
NotNegativeInt = Annotated[int, msgspec.Meta(ge=0)]

SHARES_OFF = 1e-6
"""How far the sum of shares may be from 1: rounding of thirds that are written as decimals."""


SOURCES = {
    "digits": "standard_images.load_digits",
    "npz": "arrays.load",
    "jpeg-npz": "arrays.load_jpegs",
    "speech-npz": "speech.load_arrays",
    "mnist": "standard_images.load_idx",
    "fashion-mnist": "standard_images.load_idx",
    "cifar10": "standard_images.load_cifar",
    "cifar100": "standard_images.load_cifar",
    "speech-commands": "speech.load",
    "table": "tables.load",
    "text": "text.load",
    "sst2": "text.load_sst2",
    "images": "images.load",
    "recordings": "recordings.load",
}
"""The function of this package that reads each source, `(spec: DataSpec, seed: int) -> DataSet`.

It is imported when it is needed. A new source is a function, its test, and one line here.
"""
OF_TEXTS = ("text", "sst2")
"""Sources of text, whose token ids a bundle with a tokenizer makes."""
OF_WINDOWS = ("recordings",)
"""Sources that a bundle cuts into windows."""
OF_TABLES = ("table", "text")
"""Sources whose files are tables, which are read as on a device of the bundle."""
OF_FOLDERS = ("images",)
"""Sources that are folders of files, which are read as on a device of the bundle."""
OF_BUNDLES = ("npz", "table", *OF_TEXTS, *OF_WINDOWS, *OF_FOLDERS)
"""Sources whose `load` also takes the bundle, or None: how they are read depends on the task."""


_OF_PARTITIONS: Mapping[str, tuple[str, ...]] = {
    "alpha": ("dirichlet", "dirichlet-by-class", "dirichlet-fedml"),
    "classes_per_client": ("classes", "shards"),
    "groups_per_client": ("natural",),
    "client_column": ("natural",),
    "client_level": ("natural",),
}
"""Fields, and the partitions that look at them."""
_OF_SOURCES: Mapping[str, tuple[str, ...]] = {
    "coarse": ("cifar100",),
    "size": OF_FOLDERS,
    "words": ("speech-commands",),
    "vocabulary": OF_TEXTS,
    "length": OF_TEXTS,
    "vectors": OF_TEXTS,
    "text_column": ("text",),
    "label_column": ("table", "text", "recordings", "images"),
}
"""Fields, and the sources that look at them."""
_ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "feature_columns": ("table", *OF_WINDOWS),
    "client_column": (*OF_TABLES, *OF_FOLDERS, *OF_WINDOWS, "npz"),
}
"""Fields, and the sources that take them."""
_DIVIDED = ("mnist", "fashion-mnist", "cifar10", "cifar100", "speech-commands")
"""Sources that come with their test samples."""


class GroupData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The samples of one group of the fleet: `classes` or `speakers` by number, or a `share` of the rest.

    The rest are the samples that no group names. Raises ValueError unless exactly one of the three is given,
    and for a number that is given twice.
    """

    classes: tuple[NotNegativeInt, ...] = ()
    speakers: tuple[NotNegativeInt, ...] = ()
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        if bool(self.classes) + bool(self.speakers) + (self.share is not None) != 1:
            raise ValueError("expected one of classes, speakers and share, not empty")
        if len(set(self.named)) < len(self.named):
            raise ValueError(f"{list(self.named)} names one twice, expected each once")

    @property
    def named(self) -> tuple[int, ...]:
        """The classes or speakers."""
        return self.classes or self.speakers


class DataSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The source of samples and their division among devices; docs/data-sources.md describes each field.

    Raises ValueError for an unknown source or partition, and for fields that exclude each other.
    """

    source: str = "digits"  # a name in SOURCES
    path: str = ""  # folder or file, where the source needs one
    test_path: str = ""  # table, text, a table of recordings: a second file, for evaluation
    test_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.2  # of data that comes without a split
    classes: tuple[NotNegativeInt, ...] | None = None  # only samples of these, which become 0, 1, ..
    max_train: Count | None = None  # a random part of the training samples
    max_test: Count | None = None
    validation_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # of training samples, for evaluation
    device_test_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # of each device's, for its own test
    generic_samples: Annotated[int, msgspec.Meta(ge=0)] = 0  # held out of training, on no device
    generic_classes: Annotated[int, msgspec.Meta(ge=0)] = 0  # classes of these, drawn by the seed; 0: all

    partition: str = ""  # one of PARTITIONS; "": natural where client_column is set, else dirichlet
    alpha: Positive = 0.3  # of the partitions named dirichlet
    classes_per_client: Count = 2  # for classes; the shards of each client, for shards
    groups_per_client: Annotated[int, msgspec.Meta(ge=0)] = 0  # for natural; 0: all groups are given out
    quantity_sigma: NotNegative = 0.0  # log-normal sizes, for iid and dirichlet
    quantity_alpha: NotNegative = 0.0  # sizes by Dirichlet, for iid and dirichlet
    samples_per_client: Count | None = None  # exactly, for iid and dirichlet; at most, for the others
    min_samples: Count = 1
    reuse: bool = False  # several clients may have the same sample, for iid and dirichlet
    groups: dict[str, GroupData] = {}  # samples of the fleet's groups, by name; other groups share the rest

    coarse: bool = False  # cifar100: the 20 superclasses
    size: Count = 32  # images: pixels of a side, if no bundle says it
    client_level: NotNegativeInt = (
        0  # images: folders of this level are the clients, 1 is the outermost; 0: none
    )
    words: tuple[str, ...] = ()  # speech-commands: the classes; () is the usual ten, unknown and silence
    vocabulary: Annotated[int, msgspec.Meta(ge=3)] = 10_000  # text: token ids
    length: Count = 32  # text: tokens of a sample
    vectors: str = ""  # text: a GloVe file; only its words enter the vocabulary
    text_column: str = ""  # text: name or number of the column; "" is found as on a device
    label_column: str = ""  # text, table, recordings: "" is found as on a device
    feature_columns: str = ""  # table, recordings: names or numbers, with commas; "" is all others
    client_column: str = ""  # of tables, or an array of npz: whose each sample is; "" is found by its name

    def __post_init__(self) -> None:
        if not self.partition:
            msgspec.structs.force_setattr(self, "partition", "natural" if self.client_column else "dirichlet")
        if self.source not in SOURCES:
            raise ValueError(f"source is {self.source!r}, expected one of {', '.join(SOURCES)}")
        if self.path and self.source == "digits":
            raise ValueError(f"path is {self.path}, and source digits has none: name another source")
        if self.test_path and self.source not in ("table", *OF_TEXTS, *OF_WINDOWS):
            raise ValueError(f"test_path is {self.test_path}: it is for tables and texts, not {self.source}")
        for name, allowed in _ONLY_OF.items():
            if getattr(self, name) and self.source not in allowed:
                expected = ", ".join(allowed)
                raise ValueError(f"{name} is {getattr(self, name)}: it is for {expected}, not {self.source}")
        if self.client_level and self.source not in OF_FOLDERS:
            raise ValueError(f"client_level is {self.client_level}: it is for images, not {self.source}")
        if self.classes is not None and (not self.classes or len(set(self.classes)) < len(self.classes)):
            raise ValueError(f"classes is {list(self.classes)}, expected one or more, each once")
        if self.generic_classes and not self.generic_samples:
            raise ValueError("generic_classes is for generic_samples: give these too")
        if self.partition not in PARTITIONS:
            raise ValueError(f"partition is {self.partition!r}, expected one of {', '.join(PARTITIONS)}")
        mixed = self.partition in ("iid", "dirichlet")
        if self.quantity_sigma and self.quantity_alpha:
            raise ValueError("quantity_sigma and quantity_alpha are both given, expected one of them")
        if not mixed and (self.quantity_sigma or self.quantity_alpha or self.reuse):
            raise ValueError(
                f"partition {self.partition} takes no quantity_sigma, quantity_alpha or reuse: "
                "they are for iid and dirichlet"
            )
        if self.reuse and self.samples_per_client is None:
            raise ValueError("reuse = true needs samples_per_client, or each client would have everything")
        if self.by_speaker and any(group.classes for group in self.groups.values()):
            raise ValueError("groups name classes and speakers, expected one of the two")
        shares = {name: group.share for name, group in self.groups.items() if group.share is not None}
        if (total := sum(shares.values())) > 1 + SHARES_OFF:
            listing = ", ".join(f"{name} {share:g}" for name, share in shares.items())
            raise ValueError(f"shares of groups are {listing}: {total:g} in all, expected 1 at most")

    def held_alone(self, fleet: Sequence[str], classes: int) -> dict[str, tuple[int, ...]]:
        """The classes that only one group of the `fleet` has, by group; empty if no group names classes."""
        alone: dict[str, tuple[int, ...]] = {}
        if len(fleet) < 2 or not any(group.classes for group in self.groups.values()):
            return alone
        left = 1 - sum(group.share or 0.0 for group in self.groups.values()) > SHARES_OFF
        rest = [name for name in fleet if (self.groups[name].share if name in self.groups else left)]
        for number in range(classes):
            named = [name for name, group in self.groups.items() if number in group.classes]
            if len(holders := named or rest) == 1:
                alone[holders[0]] = (*alone.get(holders[0], ()), number)
        return alone

    @property
    def without_effect(self) -> tuple[str, ...]:
        """A sentence for each field that a person has changed and that changes nothing here."""
        usual = {field.name: field.default for field in msgspec.structs.fields(DataSpec)}
        changed = [name for name, default in usual.items() if getattr(self, name) != default]
        return (
            *(
                f"{name} has no effect: it is of partition {' or '.join(partitions)}, not {self.partition}"
                for name, partitions in _OF_PARTITIONS.items()
                if name in changed and self.partition not in partitions
                if name != "client_column" or self.source not in OF_WINDOWS  # it cuts them too
            ),
            *(
                f"{name} has no effect: it is of source {' or '.join(sources)}, not {self.source}"
                for name, sources in _OF_SOURCES.items()
                if name in changed and self.source not in sources
            ),
            *(
                f"test_share has no effect: {self.source if has else 'test_path'} says what is evaluated on"
                for has in [self.source in _DIVIDED]
                if "test_share" in changed and (has or self.test_path)
            ),
        )

    @property
    def by_speaker(self) -> bool:
        """Whether groups name speakers."""
        return any(group.speakers for group in self.groups.values())
