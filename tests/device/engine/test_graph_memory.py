"""What graphs hold that were not tried, by hand and against what was seen of two networks."""

import pytest

from device_runtime.device.engine.engine_guard import MARGIN, MARGIN_BYTES
from device_runtime.device.engine.profiling import held_bytes
from device_runtime.models.bundles.manifest import Graph
from device_runtime.profiles.cost import session_bytes

MB = 10**6


def graph(live, kb=0):
    return Graph("f", "", kb * 1000, (), 0, 0, bytes_per_sample=live)


def shaped(graph_, rows):
    return session_bytes(graph_.bytes) + 2 * rows * graph_.bytes_per_sample


def test_what_was_seen_counts_and_others_of_its_sort_are_as_far_off():
    graphs = {
        "forward": graph(3 * MB),
        "loss.all": graph(3 * MB),
        "train.all": graph(8 * MB),
        "train.mid": graph(6 * MB),
    }
    rows = {"forward": 20, "loss.all": 20, "train.all": 8, "train.mid": 10}
    peaks = {
        "forward": shaped(graphs["forward"], 20) // 2,
        "train.all": 3 * shaped(graphs["train.all"], 8) // 2,
    }
    estimates = held_bytes(peaks, graphs, rows)
    assert {name: estimates[name] for name in peaks} == peaks
    assert estimates["loss.all"] == pytest.approx(1.3 * shaped(graphs["loss.all"], 20) / 2, rel=1e-6)
    assert estimates["train.mid"] == pytest.approx(1.5 * shaped(graphs["train.mid"], 10), rel=1e-6)


def test_nothing_is_concluded_from_graphs_of_fewer_live_bytes_nor_from_those_that_do_not_train():
    graphs = {"forward": graph(3 * MB), "train.head": graph(3 * MB), "train.all": graph(8 * MB)}
    rows = dict.fromkeys(graphs, 8)
    peaks = {"forward": 1 * MB, "train.head": 1 * MB}
    assert held_bytes(peaks, graphs, rows)["train.all"] == round(1.4 * shaped(graphs["train.all"], 8))


SQUEEZENET = {  # 1.0, 128 pixels: live MB of a run, its samples, kB of the file, MB grown by
    "train.all": (66.96, 8, 90, 175.5), "train.mid": (65.02, 11, 71, 135.8),
    "train.head": (65.49, 22, 37, 116.4), "train.bias": (61.57, 8, 61, 116.7),
    "train.lora": (61.47, 7, 99, 159.1), "train.sparse": (66.25, 8, 88, 170.2),
}  # fmt: skip
MOBILENET = {  # V2 of width 0.5, 96 pixels
    "forward": (28.3, 32, 43, 37.9), "loss.all": (28.3, 32, 37, 50.0), "loss.bias": (28.3, 32, 39, 54.6),
    "train.all": (63.0, 8, 155, 88.2), "train.mid": (65.6, 31, 115, 109.6),
    "train.head": (28.3, 32, 44, 38.1), "train.bias": (62.3, 12, 99, 102.8),
}  # fmt: skip


@pytest.mark.parametrize(
    "network, names",
    [
        *((SQUEEZENET, names) for names in ((), ("train.all",), ("train.head",), ("train.all", "train.mid"))),
        *(
            (MOBILENET, names)
            for names in (("forward",), ("forward", "train.all"), ("forward", "train.head"))
        ),
    ],
)
def test_no_graph_holds_more_than_is_said_whichever_were_tried(network, names):
    graphs = {name: graph(round(MB * live / rows), kb) for name, (live, rows, kb, _) in network.items()}
    peaks = {name: round(MARGIN * MB * network[name][3]) + MARGIN_BYTES for name in names}
    estimates = held_bytes(peaks, graphs, {name: rows for name, (_, rows, *_) in network.items()})
    assert all(estimates[name] >= MB * network[name][3] for name in graphs)
