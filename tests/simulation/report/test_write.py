"""What a comparison ends with, from made-up runs: the table, the plots, the page."""

import csv
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.history.metrics import tally
from device_runtime.simulation.report.canvas import read_comparison
from device_runtime.simulation.report.write import (
    held_out,
    refused,
    resting,
    sitting_out,
    stragglers,
    with_notes,
    write,
)

PLOTS = {"accuracy-time", "accuracy-costs", "participation", "one-round", "busy-times", "accuracy-by-class"}


def plots(report):
    """The names of the drawings on the page."""
    return set(re.findall(r'<figure id="([\w-]+)">', report.page.read_text("utf-8")))


class Balanced(HTMLParser):
    """Notes the ids of a page, and tags that are closed in another order than opened."""

    VOID = frozenset(("meta", "br", "hr", "img", "link", "input"))

    def __init__(self):
        super().__init__()
        self.ids, self.open, self.wrong = [], [], []

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def report(comparison):
    return write(comparison())


def test_a_report_is_four_files_and_every_plot_is_on_the_page(comparison):
    plan = comparison()
    before = {path.name for path in plan.folder.iterdir()}
    report = write(plan)
    assert {path.name for path in plan.folder.iterdir()} - before == {
        "report.html",
        "accuracy.png",
        "rounds.csv",
        "summary.json",
    }
    assert plots(report) == PLOTS


def test_the_page_is_one_file_that_needs_no_network(report):
    text = report.page.read_text()
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert all(
        address.startswith("http://www.w3.org/") for address in addresses
    )  # names of XML, never fetched
    assert not re.findall(r'<(?:link|img|script)[^>]+(?:src|href)="(?!data:)', text)
    assert text.count("<svg") == len(PLOTS)


def test_the_page_is_whole_and_no_id_stands_twice(report):
    parser = Balanced()
    parser.feed(report.page.read_text())
    assert parser.wrong == []
    assert parser.open == []
    assert [name for name in set(parser.ids) if parser.ids.count(name) > 1] == []


def test_colours_of_text_follow_the_theme(report):
    text = report.page.read_text()
    drawn = text[text.index("<svg") :]
    assert "var(--ink)" in drawn
    assert "#1b2430" not in drawn


def test_the_page_says_how_it_was_made(report):
    text = report.page.read_text()
    assert "device-runtime simulate fleet.toml --compare kinds=choose,drop" in text
    assert "stragglers are dropped" in text
    assert re.search(r"<dt>seeds</dt><dd>0, 1</dd>", text)
    assert "python 3.11" in text


def test_the_table_has_policies_across_and_measures_down(report):
    lines = report.text(whole=True).splitlines()
    head = next(line for line in lines if line.startswith("  "))
    assert head.split() == ["choose", "drop"]
    [took_part] = [line for line in lines if line.startswith("devices that counted")]
    assert re.search(r"[\d.]+ ± [\d.]+% +[\d.]+ ± [\d.]+%$", took_part)
    assert lines[-1] == f"report {report.page}"


def test_a_report_begins_with_a_sentence_and_a_table_with_a_row_for_each_policy(report):
    lines = report.text().splitlines()
    ends = r"\[-?[\d.]+, -?[\d.]+\]"
    head = re.compile(rf"^(\w+) ([\d.]+)%, ([\d.]+) {ends} points over (\w+) at equal time")
    best, value, points, other = head.match(lines[1]).groups()
    assert lines[3].split()[:2] == ["policy", "accuracy"]
    assert [line.split()[0] for line in lines[5:7]] == ["choose", "drop"]
    [row] = [line for line in lines if line.startswith(f"{best} ") and "±" in line]
    assert row.split()[1] == value, "the table has the sentence's figure"
    assert lines[-2:] == [f"plot   {report.plot}", f"report {report.page}"]
    whole = report.text(whole=True)
    first, second = sorted((best, other), key=["choose", "drop"].index)
    [pair] = re.findall(rf"all classes +{first} − {second} .*", whole)
    pair_figures = {figure.strip("+-") for figure in re.findall(r"([+-][\d.]+) \[", pair)}
    assert points in pair_figures, "one difference has one figure"
    page = report.page.read_text("utf-8")
    assert page.index(f'<p class="lead">{lines[1]}</p>') < page.index("<table>") < page.index("<figure")
    assert page.count("<figure", 0, page.index("<details>")) == 1


def test_the_same_figures_come_as_json(report):
    whole = json.loads(report.json())
    assert whole["policies"].keys() == {"choose", "drop"}
    final = whole["policies"]["choose"]["final_acc"]
    assert (final["n"], final["of"]) == (2, 2)
    assert whole["equal"]["lacking"] == []
    assert {row["part"] for row in whole["equal"]["by_class"]} == set("0123456789")
    [paired] = [row for row in whole["equal"]["rows"] if row["against"] and row["part"] == "worst class"]
    assert (paired["policy"], paired["against"]) == ("choose", "drop")
    content = json.loads((report.page.parent / "summary.json").read_text())
    assert {**content, "report": str(report.page)} == {**whole, "failed": {}, "runs": content["runs"]}
    assert [(run["policy"], run["seed"]) for run in content["runs"]][:2] == [("choose", 0), ("drop", 0)]
    ends = [run["rounds"]["accuracy"][-1] for run in content["runs"] if run["policy"] == "choose"]
    assert sum(ends) / 2 == pytest.approx(final["mean"])


def test_rounds_of_all_runs_come_in_one_csv(report):
    with (report.page.parent / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"], row["round"]) for row in rows[:12:11]] == [
        ("choose", "0", "1"), ("choose", "0", "12"),
    ]  # fmt: skip
    assert len(rows) == 4 * 12
    last = report.compared.runs[0].rounds[-1]
    assert float(rows[11]["eval_acc"]) == last.eval_acc
    assert rows[11]["closed_form_eval_acc"] == "", "nan is an empty cell"
    assert [float(word) for word in rows[11]["eval_acc_by_class"].split(" ")] == list(last.eval_acc_by_class)


def test_equal_points_and_classes_stand_below_the_table(report):
    text, terms = report.text(whole=True), report.compared.terms
    assert terms.rounds == 12
    _, own, rest = re.split(r"^.*(?:mean of the last 5 evaluations|\(Student's t\))$", text, flags=re.M)[:3]
    heads = own.split("\n")[2]
    assert re.fullmatch(r"classes +policy +at 12 rounds +at [\d.]+ \w+ +at [\d.]+ k?J +at [\d.]+ MB", heads)
    [all_of_choose] = [line for line in own.splitlines() if re.match(r"all classes +choose ", line)]
    assert len(re.findall(r"\d\.\d ± \d\.\d%", all_of_choose)) == 4
    [all_of_pair] = [line for line in rest.splitlines() if re.match(r"all classes +choose − drop ", line)]
    assert len(re.findall(r"[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]", all_of_pair)) == 4
    page = report.page.read_text("utf-8")
    assert '<th scope="row">worst class</th>' in page
    assert "choose − drop</th>" in page
    assert "<h3>Recall of each class at 12 rounds: mean of the last 5 evaluations</h3>" in page


@pytest.mark.slow
def test_classes_that_one_group_alone_holds_have_rows_and_a_plot(comparison):
    report = write(comparison(seeds=1, data={"groups": {"pi-5": {"classes": [8, 9]}}}))
    assert plots(report) == PLOTS | {"accuracy-of-groups"}
    assert re.search(r"^pi-5 alone: 8, 9 +choose +\d+\.\d%", report.text(whole=True), re.M)
    assert "worst class" not in report.text(whole=True)


@pytest.mark.slow
def test_a_folder_from_before_classes_were_kept_is_reported_and_said_to_lack_them(comparison):
    plan = comparison(seeds=1, data={"groups": {"pi-5": {"classes": [8, 9]}}})
    for name in plan.names:
        path = plan.of(name) / "rounds.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            del line["eval_acc_by_class"]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = write(plan)
    text = "no recall by class is kept of choose-0, drop-0, which an older version ran"
    assert text in report.text(whole=True)
    assert text in report.page.read_text("utf-8")
    assert json.loads(report.json())["equal"]["lacking"] == ["choose-0", "drop-0"]
    assert plots(report) == PLOTS - {"accuracy-by-class"}
    assert re.search(r"^all classes +choose +\d+\.\d%", report.text(whole=True), re.M)
    assert "alone" not in report.text(whole=True)


@pytest.mark.slow
def test_the_same_runs_give_the_same_report(comparison):
    plan = comparison(seeds=2)
    first = write(plan)
    files = [first.page, plan.folder / "summary.json", plan.folder / "rounds.csv"]
    before = [path.read_bytes() for path in files]
    write(plan)
    assert [path.read_bytes() for path in files] == before


@pytest.mark.slow
def test_one_policy_and_one_seed_are_reported_and_what_people_named_is_escaped(comparison):
    report = write(comparison(policies=("few-shot",), seeds=1, name="<b>&fleet"))
    assert plots(report) == PLOTS
    assert "±" not in report.text(whole=True)
    text = report.page.read_text()
    assert "&lt;b&gt;&amp;fleet" in text
    assert "<b>&fleet" not in text


@pytest.mark.slow
def test_many_policies_are_drawn_side_by_side(comparison):
    report = write(comparison(policies=("choose", "drop", "reduced", "full", "zeroth-order"), seeds=1))
    assert plots(report) == PLOTS


def test_a_run_that_is_missing_is_named(comparison):
    plan = comparison()
    (plan.of(RunName("drop", 1)) / "run.json").unlink()
    with pytest.raises(SimulationError, match=r"drop-1 holds no finished run"):
        write(plan)


@pytest.mark.slow
def test_the_best_policy_is_set_against_the_nearest_and_not_the_weakest(comparison):
    policies = ("choose", "drop", "full")
    plan = comparison(policies, seeds=1)
    summary = write(plan).compared.summary
    reached = {policy: summary[policy]["acc_at_equal_time"].mean for policy in policies}
    best, nearest, weakest = sorted(reached, key=lambda policy: -reached[policy])
    lead = (plan.folder / "report.html").read_text("utf-8").partition("<table>")[0]
    points = 100 * (reached[best] - reached[nearest])
    assert f"{best} {reached[best]:.1%}, {points:.1f} points over {nearest}, the nearest, at equal" in lead
    assert reached[nearest] > reached[weakest]


@pytest.mark.slow
def test_where_no_run_beats_chance_there_is_no_target_and_the_curves_are_drawn(comparison, monkeypatch):
    from device_runtime.simulation.compare import figures

    monkeypatch.setattr(figures, "_reachable", lambda runs: float("nan"))
    plan = comparison(seeds=1)
    report = write(plan)
    assert "time to" not in report.text(whole=True), "no row of dashes"
    assert "accuracy-time" in plots(report)


@pytest.mark.parametrize("policies", [("choose",), ("choose", "drop")])
def test_refused_updates_are_told_in_one_line_with_the_most_frequent_reason(policies, ask):
    asks = [ask(), *(ask(fate="refused", into=0, why=why) for why in ("too far", "not finite", "not finite"))]
    runs = [SimpleNamespace(name=RunName(policy, 0), tally=tally(asks)) for policy in policies]
    assert refused([*runs, SimpleNamespace(name=RunName("reduced", 0), tally=tally(asks[:1]))]) == [
        f"{3 * len(policies)} updates were refused ({', '.join(policies)}), most often: not finite"
    ]
    assert refused([]) == []


def with_asks(compared, asks_of):
    """The compared runs with other asks; `asks_of` gives those of a policy."""
    runs = tuple(replace(run, tally=tally(asks_of(run.name.policy))) for run in compared.runs)
    return replace(compared, runs=runs)


def test_a_comparison_without_stragglers_says_that_equal_policies_cannot_differ(comparison, ask):
    compared = read_comparison(comparison())
    calm = with_asks(compared, lambda _: [ask(straggler=False)])
    line = "no device was a straggler here: all had the memory and time for a full update"
    assert stragglers(calm) == [line]
    same = replace(calm, runs=tuple(replace(run, rounds=calm.runs[0].rounds) for run in calm.runs))
    assert stragglers(same) == [f"{line}: choose and drop cannot differ"]


def test_who_was_a_straggler_is_told_by_group_of_the_first_policy(comparison, ask):
    compared = read_comparison(comparison(policies=("choose", "drop"), seeds=1))
    slow = [ask(group="slow", device="slow-0", straggler=late) for late in (True, False)]
    asks = [*slow, ask(group="slow", device="slow-1"), ask(group="fast", device="fast-0")]
    late = {"choose": asks, "drop": [ask(straggler=True)]}
    assert stragglers(with_asks(compared, late.__getitem__)) == [
        "stragglers (choose): 33% of the devices, 25% of the asks: slow 1 of 2; nobody of fast"
    ]


def test_accuracy_on_devices_that_are_held_out_is_told(comparison):
    compared = read_comparison(comparison(policies=("choose",), seeds=2))
    assert held_out(compared) == []
    finals = zip(compared.runs, (0.5, 0.7), strict=True)
    ends = [(run, replace(run.rounds[-1], held_out_eval_acc=accuracy)) for run, accuracy in finals]
    runs = tuple(replace(run, rounds=(*run.rounds[:-1], end)) for run, end in ends)
    assert held_out(replace(compared, runs=runs)) == [
        "final accuracy on the devices that are held out: choose 60.0%"
    ]


def test_a_group_that_sat_out_all_asks_is_named_with_the_reason(comparison, ask):
    compared = read_comparison(comparison(seeds=1))
    out = ask(group="slow", fate="sat out", why="full needs 61 s and has 10 s")
    lines = sitting_out(with_asks(compared, lambda _: [ask(group="fast"), out, out]))
    assert lines == ["choose: group slow sat out 2 of 2 asks, at first because: full needs 61 s and has 10 s"]
    assert sitting_out(with_asks(compared, lambda _: [out, ask(group="slow")])) == []


def test_how_often_stragglers_rested_is_said_of_policies_in_which_some_did(comparison, ask):
    compared = read_comparison(comparison(seeds=1))
    asks = {"choose": [ask(), ask(fate="rested", kind=""), ask(fate="rested", kind="")], "drop": [ask()]}
    assert resting(with_asks(compared, asks.__getitem__)) == [
        "choose: stragglers rested in 2 of 3 asks, as nothing of their classes was wanted"
    ]


def test_a_policy_that_failed_stays_in_the_tables_with_its_reason(comparison):
    plan = comparison(policies=("choose", "drop"), seeds=1)
    shutil.rmtree(plan.of(RunName("drop", 0)))
    report = write(plan.finished({"drop": "nobody can"}))
    row = next(line for line in report.text().splitlines() if line.startswith("drop "))
    assert row.split()[1:] == ["–"] * 5
    assert "drop failed: nobody can" in report.text()
    assert "failed: nobody can" in report.page.read_text("utf-8")
    assert "nobody can" in with_notes(report.compared)
