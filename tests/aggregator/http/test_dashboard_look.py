"""What the dashboard looks like with a fleet of real names: measured in a Chromium, on made-up answers."""

import json
import os
import time
from dataclasses import replace
from email.utils import formatdate
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from device_runtime.aggregator.http.shapes import (
    DevicePage,
    DeviceStatus,
    Entries,
    KindFigures,
    LogEntry,
    RoundPage,
    RoundStatus,
    TaskInfo,
    TaskStatus,
)
from device_runtime.broker.security.audit import AuditEntry

from .conftest import PATIENCE_MS

pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")

STATIC = resources.files("device_runtime.aggregator.http") / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
KINDS = ("full+few-shot", "full", "width-slice", "entropy-subset", "few-shot", "zeroth-order", "class-means")
WHY = (
    "full needs 41.2 s of 27.0 s (compute); entropy-subset 50% needs 214 MB of 128 MB; the richest that fits"
)
NOW = time.time()
MEMBERS = (
    (
        "raspberrypi-4b-greenhouse-north-2",
        "raspberry-pi-4-model-b",
        "onnxruntime 1.23.2 (installed with device-runtime, and runs its graphs)",
    ),
    ("jetson-orin-nano-loading-dock", "jetson-orin-nano", "onnxruntime-training 1.19.2"),
    ("pixel-7-anna", "Chrome 140 on Android 15", "onnxruntime-web 1.23.0 wasm"),
    ("pi-zero-2w-door", "raspberry-pi-zero-2-w", "onnxruntime 1.23.2 on 1 thread"),
)


def device(number):
    name, profile, engine = MEMBERS[number % len(MEMBERS)]
    kind = ("", *KINDS)[number % (len(KINDS) + 1)]
    return DeviceStatus(
        device=f"{name}-{number}",
        online=number % 5 != 4,
        profile=profile,
        engine=engine,
        num_examples=1234 * (number + 1),
        battery_percent=80 if "pixel" in name else None,
        doing="sent" if kind else "sits out",
        round=118,
        kind=kind,
        why=WHY if number % 3 else "fits",
        train_s=101.5,
        energy_j=1234.5,
        energy_source="jetson" if "jetson" in name else "modelled",
        energy_uncertainty=0.25,
        bytes_up=312_300,
        contributions=117,
        not_counted=number % 4,
        last_seen=NOW - 12,
        variant="epochs=2" if kind == "full" else "",
        tags=("greenhouse", "floor=2") if "greenhouse" in name else (),
        version="" if "pixel" in name else "0.1.0" if "jetson" in name else "0.2.0",
    )


def closed(number):
    figures = KindFigures(3, 600, 312_300, 312_300, 1234.5, 0.000663 * number)
    return RoundStatus(
        round=number,
        closed_at=NOW,
        accuracy=1 - 1 / (number + 1),
        loss=0.02 / number,
        base_accuracy=None,
        train_loss=0.000663,
        participants=21,
        bytes_up=312_300,
        bytes_down=312_300,
        energy_j=1234.5,
        train_s=10.0,
        duration_s=60.0,
        note="",
        kinds=dict.fromkeys(KINDS, figures),
    )


def entry(number):
    name, _, _ = MEMBERS[number % len(MEMBERS)]
    status = ("accepted", "refused", "late")[number % 3]
    return LogEntry(
        number, 1.0, 118, name, KINDS[number % 7], status, WHY, 600, 0.000663, 101.5, 1234.5, 312_300
    )


LIVE = TaskStatus(
    task="digits", run="r", phase="collecting", round=119, rounds=200, opened_at=NOW - 9, closes_at=NOW + 99,
    needed=2, contributions=dict.fromkeys(KINDS, 3), devices=25, online=20, closed_rounds=118, accuracy=0.963,
    loss=0.000663, bytes_up=10**9, bytes_down=10**9, energy_j=123456.0,
)  # fmt: skip
SETTINGS = {
    "min_devices": 2,
    "kinds": [{"name": kind} for kind in KINDS],
    "title": "Handwritten digits",
    "about": "Your devices teach a model to read digits.",
}
ANSWERS = {
    "audit": [
        AuditEntry(
            "a",
            "2026-11-29T09:14:02.123+00:00",
            "token http-token",
            "10.0.0.7",
            "rollback",
            "round 7",
            "done",
        )
    ],
    "tasks": [TaskInfo("digits", "digits-wrn-10-1", "run", SETTINGS, LIVE, "0.2.0")],
    "devices": [device(number) for number in range(25)],
    "rounds": RoundPage(118, [closed(number) for number in range(1, 119)]),
    "contributions": [entry(number) for number in range(25)],
    "links": {"address": "", "can": False, "why": "", "links": []},
}


def answer(route):
    return answer_with(route, ANSWERS, {})


def answer_with(route, answers, headers):
    """Answers as the aggregator does; `answers` by the last part of the path."""
    parts = urlsplit(route.request.url)
    path = parts.path
    if not path.startswith("/api/"):
        file = STATIC / (path.removeprefix("/static/") if path != "/" else "index.html")
        if not file.is_file():
            return route.fulfill(status=404)
        return route.fulfill(body=file.read_bytes(), content_type=TYPES[Path(file.name).suffix])
    leaf = path.rsplit("/", 1)[-1]
    if leaf == "events":
        data = msgspec.json.encode(answers["tasks"][0].live).decode()
        return route.fulfill(
            body=f"data: {data}\n\n", headers={**headers, "Content-Type": "text/event-stream"}
        )
    content = answers[leaf]
    limit = int(parse_qs(parts.query).get("limit", ["25"])[0])
    if leaf == "devices":
        content = DevicePage(len(content), content[:limit])
    if leaf == "contributions":
        content = Entries(content[:limit], None)
    body = msgspec.json.encode(content)
    if leaf == "rounds" and "after=0" not in route.request.url:
        body = json.dumps({"total": content.total, "rounds": []}).encode()
    return route.fulfill(body=body, headers={**headers, "Content-Type": "application/json"})


STREAM = """
    const fetched = window.fetch;
    window.fetch = async (path, options) => {
        const answer = await fetched(path, options);
        if (!String(path).endsWith("/events") || !answer.ok) return answer;
        const bytes = new Uint8Array(await answer.arrayBuffer());
        const body = new ReadableStream({ start: (stream) => stream.enqueue(bytes) });
        return new Response(body, { headers: answer.headers });
    };
"""
"""Lets the answer with live events go on, without an end."""


@pytest.fixture(scope="module", params=[(360, 640), (390, 844), (1280, 800)], ids="{0[0]}x{0[1]}".format)
def page(request, browser, tmp_path_factory):
    """The dashboard at this size, all of it filled."""
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(STREAM)
    page.route("**/*", answer)
    page.goto("http://dashboard.test/")
    rows = 5 if width < 720 else 12
    page.wait_for_selector(f"#fleet-table tbody tr:nth-child({rows})")
    page.wait_for_selector("#charts figure:nth-child(6)", state="attached")
    page.wait_for_selector(f"#log-table tbody tr:nth-child({rows})", state="attached")
    pictures = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("look"))
    page.screenshot(path=pictures / f"look-{width}.png", full_page=True)
    page.tall = page.evaluate("document.documentElement.scrollHeight")
    page.evaluate("document.querySelectorAll('.fold').forEach((fold) => { fold.open = true; })")
    page.wait_for_selector("#audit-table tbody tr")
    if width < 720:
        page.click("#all-charts")
    page.screenshot(path=pictures / f"look-{width}-all.png", full_page=True)
    yield page
    context.close()


def test_nothing_is_wider_than_the_window(page):
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = """width => [...document.querySelectorAll('#board *')].filter((e) => {
        const at = e.getBoundingClientRect();
        return at.width && !e.closest('details, .sr, thead') && (at.right > width + 0.5 || at.left < -0.5);
    }).map((e) => `${e.tagName} ${e.className}`)"""
    assert page.evaluate(wide, width) == []


def test_all_labels_of_the_charts_lie_inside_their_pictures(page):
    outside = """() => [...document.querySelectorAll('#charts figure > svg')].flatMap((svg) => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter((text) => {
            const at = text.getBoundingClientRect();
            return at.left < frame.left || at.right > frame.right
                || at.top < frame.top || at.bottom > frame.bottom;
        }).map((text) => text.textContent);
    })"""
    assert page.evaluate(outside) == []
    assert "0.000663" in page.text_content("#charts")


def test_labels_of_an_axis_do_not_run_into_each_other_or_into_the_curves(page):
    met = """() => [...document.querySelectorAll('#charts figure > svg')].flatMap((svg) => {
        const frames = [...svg.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
        const left = svg.querySelector('.grid').getBoundingClientRect().left;
        const ends = [...svg.querySelectorAll('text.axis')]
            .filter((text) => text.getBoundingClientRect().right > left);
        const met = frames.flatMap((a, i) => frames.slice(i + 1).filter((b) =>
            a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2));
        return [...ends.map((t) => t.textContent), ...met.map(() => 'two labels')];
    })"""
    assert page.evaluate(met) == []


def test_axes_have_names_and_round_numbers_and_accuracy_goes_from_0_to_100(page):
    texts = """() => Object.fromEntries([...document.querySelectorAll('#charts figure')].map((figure) => [
        figure.querySelector('figcaption').textContent,
        [...figure.querySelectorAll('svg > text')].map((text) => text.textContent)]))"""
    axes = page.evaluate(texts)
    assert axes["Accuracy"][:5] == ["0", "25", "50", "75", "100"]
    assert "accuracy, %" in axes["Accuracy"]
    names = {
        "Loss": "loss",
        "Contributions": "contributions in a round",
        "Bytes up, by kind": "sent in a round, MB",
        "Energy, by kind": "used in a round, kJ",
        "Training time of one, by kind": "of training, milliseconds",
    }
    for title, name in names.items():
        assert name in axes[title], axes[title]
        assert axes[title][-1] == "round"
        ticks = axes[title][: axes[title].index(name) - 3]
        assert len(ticks) >= 2
        assert all(len(tick.strip("0.")) <= 3 for tick in ticks), ticks
    assert all("." not in tick for tick in axes["Contributions"])


def test_a_phone_s_page_is_not_long_and_its_first_screen_says_what_and_how_far(page):
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    if width < 720:
        assert page.tall <= 3100
        assert page.locator(".tile").last.evaluate("e => e.offsetTop + e.offsetHeight") <= height
    assert page.inner_text("#now") == "Handwritten digits"
    assert "teach a model" in page.inner_text("#about")


def test_a_device_has_its_tags_its_variant_its_version_and_what_updates_an_old_one(page):
    text = page.inner_text("#fleet-table")
    for words in ("floor=2", "full, epochs=2", "program 0.1.0 (old)", "program 0.2.0"):
        assert words in text
    assert text.count("pip install --upgrade device-runtime==0.2.0") == 1
    assert text.count("installed with device-runtime, and runs its graphs") == 1


def test_a_button_that_fails_says_so_beside_it(page):
    page.route(
        "**/model", lambda route: route.fulfill(status=404, json={"detail": "there is no served model"})
    )
    page.click("#model")
    page.wait_for_selector("#model + .trouble")
    assert "there is no served model" in page.inner_text("#model + .trouble")
    assert page.is_enabled("#model")


def test_a_row_of_the_fleet_is_a_few_lines_of_whole_words(page):
    rows = """(table) => [...document.querySelectorAll(`#${table} tbody tr`)].map((row) => ({
        lines: Math.max(...[...row.children].map((cell) => cell.getBoundingClientRect().height / 20.25)),
        narrowest: Math.min(...[...row.children].filter((cell) => cell.textContent.trim().length > 8)
            .map((cell) => cell.getBoundingClientRect().width)),
    }))"""
    for table in ("fleet-table", "log-table"):
        for row in page.evaluate(rows, table):
            assert row["lines"] <= 7, table
            assert row["narrowest"] >= 64, table


QUIET = replace(
    LIVE, contributions={}, closed_rounds=0, accuracy=None, loss=None, bytes_up=0, bytes_down=0, energy_j=0.0
)
NOBODY = {"devices": [], "rounds": RoundPage(0, []), "contributions": [], "audit": []}
RESTING = [
    replace(
        device(number),
        doing=("sits out", "rests")[number % 2],
        kind="",
        why=("full needs 41.2 s of 27.0 s (compute); zeroth-order is not allowed here", "rests 3 rounds")[
            number % 2
        ],
        contributions=number,
    )
    for number in range(12)
]


def judged_by(name):
    """Closed rounds of a task whose model is judged by this metric, and by others."""
    rounds = [replace(closed(number), metric=name, metrics={"rmse": 0.5}) for number in range(1, 31)]
    return {"rounds": RoundPage(30, rounds)}


WRONG = "the aggregator does not take this token"
STATES = {
    "starting": (replace(QUIET, phase="starting", round=0, devices=0, online=0), NOBODY, "Starting."),
    "waiting": (
        replace(QUIET, phase="waiting", round=1, devices=1, online=1),
        NOBODY | {"devices": [replace(device(0), doing="", why="", kind="", contributions=0)]},
        "Waiting for devices: 1 of 2 are online",
    ),
    "running": (LIVE, {}, "Round 119 collects"),
    "resting": (
        replace(LIVE, contributions={"full": 1}, sitting_out=12),
        {"devices": RESTING},
        "sitting out",
    ),
    "extended": (
        replace(LIVE, extended=3, contributions={"full": 1}, note="too few contributions: 1 of 2"),
        {},
        "extended 3 times",
    ),
    "without-broker": (replace(LIVE, broker=False), {}, "no broker"),
    "lost": (LIVE, {"events": None}, "No connection to the aggregator"),
    "old-tables": (LIVE, {"devices": None}, "tables may be old"),
    "clock": (
        replace(LIVE, opened_at=NOW + 3591, closes_at=NOW + 3699),
        {"Date": NOW + 3600},
        "behind the aggregator",
    ),
    "finished": (replace(LIVE, phase="finished", round=200, closed_rounds=118), {}, "The task is finished."),
    "many": (
        replace(LIVE, devices=200, online=160),
        {"devices": [device(number) for number in range(200)]},
        "of 200",
    ),
    "held-out": (
        replace(LIVE, accuracy=None, loss=None, held_out_accuracy=0.93, held_out_samples=412),
        {},
        "held out by devices",
    ),
    "both-heads": (
        replace(
            LIVE,
            accuracy=None,
            loss=None,
            held_out_accuracy=0.875,
            held_out_samples=8,
            held_out_head="closed-form",
            held_out_other_accuracy=1.0,
        ),
        {},
        "trained head, on the same",
    ),
    "regression": (replace(LIVE, metric="r2", accuracy=0.71, metrics={"rmse": 0.5}), judged_by("r2"), "rmse"),
    "sign-in": (LIVE, {"tasks": None}, "Paste the token"),
    "denied": (LIVE, {"tasks": None}, WRONG),
}
"""The state of a task, other answers by path (None: an error), and the words expected on the page."""
SIZES = ((360, 640), (390, 844), (820, 1180), (1280, 800))


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_every_state_is_said_and_fits(browser, state, tmp_path):
    live, others, words = STATES[state]
    answers = ANSWERS | {"tasks": [replace(ANSWERS["tasks"][0], live=live)]} | others
    now = others.get("Date")

    def answered(route):
        leaf = urlsplit(route.request.url).path.rsplit("/", 1)[-1]
        if answers.get(leaf, "") is None:
            status, detail = (401, WRONG) if leaf == "tasks" else (500, "the journal is locked")
            return route.fulfill(status=status, json={"detail": detail})
        return answer_with(route, answers, {"Date": formatdate(now, usegmt=True)} if now else {})

    pictures = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    pictures.mkdir(exist_ok=True)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.add_init_script(STREAM)
    page.route("**/*", answered)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.goto("http://dashboard.test/")
        if state == "denied":
            page.fill("#token", "wrong")
            page.keyboard.press("Enter")
        page.wait_for_function("words => document.querySelector('main').innerText.includes(words)", arg=words)
        page.wait_for_timeout(300)  # charts and tables, for the picture
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(300)
            page.screenshot(path=pictures / f"{state}-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if state not in ("sign-in", "denied"):
            assert page.evaluate("document.querySelector('#board').hidden") is False
    assert wrong == []
    context.close()


@pytest.mark.slow
def test_a_connection_that_says_nothing_for_too_long_is_said_to_be_lost(browser):
    """Keep the stream of events open in silence, without comments, as when the network is gone."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.clock.install()
    page.add_init_script(STREAM)
    page.route("**/*", answer)
    page.goto("http://dashboard.test/")
    page.wait_for_function("document.querySelector('#connection').textContent === 'live'")
    assert page.is_hidden("#doubt")
    page.clock.fast_forward(41_000)
    page.wait_for_function("document.querySelector('#doubt').textContent.includes('No connection')")
    page.clock.fast_forward(4_000)
    page.wait_for_function("document.querySelector('#doubt').hidden")
    context.close()
