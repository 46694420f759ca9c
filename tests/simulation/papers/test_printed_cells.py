"""The papers' numbers in the tables, cell by cell against the text of the papers.

A cell is found by the table's caption, the label of its row and the place of its column.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.papers import catalogue

NAMES = [name for name in catalogue.names() if name.startswith("paper:")]
PAPERS = Path(__file__).parents[4] / "shared" / "papers"


@dataclass(frozen=True)
class Printed:
    """Where a table's cells are printed: `columns` are the places of ours among the cells of a line.

    A place is (n, i): cell i of the n-th line of the table that has the row's label. The label is that of
    our row, or else in `labels`. `others` has cells that are elsewhere: (caption, label, n, i).
    """

    caption: str
    columns: dict[str, tuple[int, int]]
    labels: dict[str, str] = field(default_factory=dict)
    others: dict[tuple[str, str], tuple[str, str, int, int]] = field(default_factory=dict)
    above: bool = True  # the caption is below the cells


FULL = {"full": "Full Fine-tuning"}
PLACES = {
    "paper:000-t3.2": Printed(
        "Table 3.2:",
        {"accuracy": (0, 2), "compute": (0, 3), "bytes": (0, 4), "accuracy-32": (1, 2)},
        others={
            (row, "accuracy-32"): ("Table 3.2:", f"{label}(J. Nguyen et al. (2023))", 0, 2)
            for row, label in (("random", "Random"), ("ft", "FT"), ("lp", "LP"))
        },
    ),
    "paper:000-t4.1": Printed(
        "Table 4.1:",
        {"sst2": (0, 3), "sst2-bytes": (0, 4)},
        {"fedmezo-iid": "FedMeZO IID", "fedmezo": "FedMeZO NON-IID", "slora-iid": "SLoRA IID",
         "slora": "SLoRA NON-IID"},
    ),
    "paper:002-t4.3": Printed(
        "**Table 4.3:**",
        {"cifar10-0.1": (0, 2), "speech-0.1": (0, 4), "cifar10-0.5": (1, 2), "speech-0.5": (1, 4)},
        others={
            ("centralised", column): ("**Table 4.3:**", "Centralised", 0, place)
            for column, place in (("cifar10-0.5", 2), ("speech-0.5", 4))
        },
    ),
    "paper:002-t4.5": Printed("**Table 4.5:**", {"cifar10": (0, 2), "speech": (0, 4)}),
    "paper:002-t4.6": Printed("**Table 4.6:**", {"cifar10": (0, 2), "speech": (0, 4)}),
    "paper:002-t4.7": Printed(
        "**Table 4.7:**",
        {"cifar10-0.1": (0, 2), "speech-0.1": (0, 4), "cifar10-0.5": (1, 2), "speech-0.5": (1, 4)},
        {"fedavg-fscprox": "FedAvg w/ FSCProx", "fedfsc": "FedFSC+(FedAvg)",
         "fscprox": "FedFSC+(FedAvg) w/ f"},
    ),
    "paper:002-t5.7": Printed(
        "**Table 5.7:**",
        {"diri-0.5": (0, 3), "diri-0.1": (0, 4)},
        {**{f"fedavg-{share}": f"FedAvg|{share}" for share in (0, 40, 60, 80)}, "fedat": "FedAT|0"},
    ),
    "paper:002-t5.11": Printed(
        "**Table 5.11:**",
        {"cifar10-0.1": (0, 2), "cifar10-0.5": (0, 3), "speech-0.1": (0, 4), "speech-0.5": (0, 5)},
        {**{f"fedavg-{share}": f"FedAvg|{share}" for share in (0, 40, 60)},
         **{f"{system}-{share}": f"{label}|{share}" for share in (0, 40, 60)
            for system, label in (("fedprox", "FedProx"), ("fedprox+", "FedProx+"))},
         "fedmd": "FedMD (global)|0", "fedkad": "FedKAD|0"},
    ),
    "paper:002-t6.3": Printed(
        "**Table 6.3:**",
        {"low": (0, 2), "mid": (0, 3), "up": (0, 4)},
        others={
            (row, column): ("**Table 6.3:**", label, 0, 1)  # printed once, beside the levels
            for row, label in (("centralised", "Centralised"), ("fedavg", "FedAvg"))
            for column in ("low", "mid", "up")
        },
    ),
    "paper:002-t6.8": Printed(
        "**Table 6.8:**",
        {"acc-0.1": (0, 2), "imagenet-0.1": (0, 2), "acc-0.5": (0, 3)},
        {"random": "FedAvg w/o pret.", "fedft-rds": "FedFT-RDS", "fedft-eds": "FedFT-EDS",
         "fedavg-rds": "FedAvg-RDS"},
        {("centralised", "acc-0.5"): ("**Table 6.8:**", "Centralised", 0, 2)},  # one cell of both columns
    ),
    "paper:002-t6.9": Printed(
        "**Table 6.9:**",
        {"acc-0.1": (0, 3), "acc-0.5": (0, 4)},
        {"random": "FedAvg w/o pret.|100%|100%", "fedavg": "FedAvg|100%|100%", "fedavg-20": "FedAvg|20%|100%",
         "fedavg-10": "FedAvg|10%|100%", "fedft-rds": "FedFT-RDS|100%|10%",
         "fedft-eds": "FedFT-EDS|100%|10%", "fedft-all": "FedFT-ALL|100%|100%",
         "fedft-rds-50": "FedFT-RDS|100%|50%", "fedft-eds-50": "FedFT-EDS|100%|50%"},
    ),
    "paper:003-t1": Printed(
        "TABLE I:",
        {"acc": (0, -2), "bytes": (0, -4)},
        {"full": "Full Fine-tuning 85.88M 8", "head": "Head-tuning 0.08M 8", "bias": "FedPEFT-Bias 0.18M 8",
         "adapter": "FedPEFT-Adapter 0.23M 8", "prompt": "FedPEFT-Prompt 0.17M 8"},
        {("lora", "acc"): ("TABLE IX:", "FedPEFT-LoRA [29] 0.22M", 0, -2),
         ("prefix", "acc"): ("TABLE IX:", "FedPEFT-Prefix [34] 0.08M", 0, -2)},
        above=False,
    ),
    "paper:003-t4": Printed("TABLE IV:", {"without": (0, -4), "with": (0, -3)}, FULL, above=False),
    "paper:003-t5": Printed(
        "TABLE V:", {"k-1000": (0, -6), "k-1500": (0, -4), "k-2000": (0, -2)}, FULL, above=False
    ),
    "paper:003-t8": Printed(
        "TABLE VIII:", {"fedavg": (0, -6), "fedprox": (0, -5), "moon": (0, -4)}, FULL, above=False
    ),
    "paper:003-t10": Printed(
        "TABLE X:",
        {"sst2": (0, 2)},
        others={
            (row, "sst2"): ("TABLE X:", "Server|Acc.", 0, 2 + place)
            for place, row in enumerate(("full", "head", "bias", "adapter", "prompt"))
        },
        above=False,
    ),
    "paper:004-t4": Printed("Table 4:", {"near": (0, 1), "far": (0, 2)}, FULL, above=False),
}  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    if not PAPERS.is_dir():
        pytest.skip("papers are read from ../shared/papers, which is not there")
    return {file.name[:3]: file.read_text("utf-8").splitlines() for file in PAPERS.glob("*.txt")}


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_number_stands_in_its_cell_of_the_paper(name, texts):
    table, where = catalogue.load(name), PLACES[name]
    checked = 0
    for row in table.rows:
        for column, cell in row.paper.items():
            usual = where.caption, where.labels.get(row.name, row.title), *where.columns[column]
            if row.name == "centralised":
                usual = *usual[:2], 0, usual[3]
            number_ = printed(texts[table.paper], where.others.get((row.name, column), usual), where.above)
            number = plain(re.sub(r"(?<=[\d}]) GB$", "", cell))  # the unit of its column
            assert re.match(rf"{re.escape(number)}(?![\d.])", number_), (row.name, column, cell, number_)
            checked += 1
    assert checked


def printed(lines, place, above):
    """The cell at this place. Raises AssertionError if there is none, or more than one line fits."""
    caption, label, number, cell = place
    [at] = [number for number, line in enumerate(lines) if line.startswith(caption)]
    rows = [parts(line) for line in block(lines, at, above)]
    fitting = [row for row in rows if labelled(row, plain(label))]
    assert len(fitting) > number, f"{label} is not in {caption}"
    return fitting[number][cell]


def block(lines, at, above):
    """The lines of the table beside its caption."""
    if above:
        end = at - 1
        while not lines[end].strip():
            end -= 1
        begin = end
        while lines[begin - 1].strip():
            begin -= 1
        return lines[begin : end + 1]
    begin = at + 1
    while not lines[begin].strip():
        begin += 1
    end = begin
    while lines[end].strip() and not lines[end].startswith("TABLE"):
        end += 1
    return lines[begin:end]


def parts(line):
    """The cells of a line, plain; where only spaces are between them, each word is a cell."""
    if "|" in line:
        return [plain(cell) for cell in line.strip().strip("|").split("|")]
    if "\t" in line:
        return [plain(cell) for cell in line.split("\t")]
    line = re.sub(r"\([^)]*\)?", "", line.replace("×\\times×", " "))
    return [plain(cell) for cell in line.split()]


def labelled(row, label):
    """Whether cells of the row, in sequence and without the empty ones, are exactly the label."""
    words = [part for part in label.split("|") if part]
    filled = [cell for cell in row if cell]
    if any(filled[i : i + len(words)] == words for i in range(2)):
        return True
    joined = "".join(filled)  # of a line with spaces, which may begin with the name of a model
    return bool(re.match(rf"(ViT-B)?{re.escape(label)}(?=[\d(]|$)", joined)) and " " not in label


def plain(text):
    """The text without marks of print and spaces."""
    text = re.sub(r"</?b>|</?i>|\*\*|\*|\$\\uparrow\$|[↑↓$\\]", "", text)
    text = text.replace("plus-or-minuspm±", "").replace("FedAVg", "FedAvg")
    return re.sub(r"\s+", "", text)
