"""Browsers as devices: a real service with its page, real training in Chromium, beside devices in Python."""

import json
import re
import signal
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from device_runtime.strategies.kinds import registry

from .conftest import DEVICES, Visit
from .services import KINDS, Services, one_of_each, task
from .test_page_look import PLACES

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
pytest.importorskip("sklearn.datasets", reason="needs pip install scikit-learn")


def arc(middle, radii, begin, end):
    """Points of a part of an ellipse, by degrees clockwise from the right; lengths in hundredths."""
    angles = np.radians(np.linspace(begin, end, 15))
    return [
        (middle[0] / 100 + radii[0] / 100 * np.cos(a), middle[1] / 100 + radii[1] / 100 * np.sin(a))
        for a in angles
    ]


DRAWN = (
    [arc((50, 50), (30, 45), -90, 270)],
    [[(0.4, 0.2), (0.52, 0.05), (0.52, 0.95)]],
    [[*arc((50, 30), (28, 25), -170, 40), (0.2, 0.95), (0.82, 0.95)]],
    [[*arc((48, 27), (26, 22), -150, 90), *arc((48, 72), (28, 23), -90, 150)]],
    [[(0.55, 0.05), (0.18, 0.6), (0.85, 0.6)], [(0.62, 0.35), (0.62, 0.97)]],
    [[(0.78, 0.05), (0.3, 0.05), (0.26, 0.45)], arc((48, 68), (28, 27), -120, 150)],
    [[(0.65, 0.05), (0.35, 0.4), *arc((50, 70), (24, 26), -150, 210)]],
    [[(0.2, 0.08), (0.8, 0.08), (0.42, 0.97)]],
    [[*arc((50, 27), (22, 22), 90, 450), *arc((50, 73), (27, 24), -90, 270)]],
    [[*arc((50, 30), (24, 24), 0, 360), (0.74, 0.3), (0.7, 0.95)]],
)
"""The ten digits, as somebody draws them: lines of points, as shares of the drawing area."""

HELPED = "JSON.parse(localStorage.getItem('device-runtime helped') ?? '[0]')[0]"


def read(visitor):
    """What the model of a browser takes each of the drawn digits for."""
    digits = []
    for lines in DRAWN:
        visitor.draw(lines)
        text = visitor.page.get_by_text(re.compile(r"It takes this for “\d”"))
        text.wait_for()
        digits.append(int(re.search(r"“(\d)”", text.inner_text())[1]))
        visitor.page.get_by_role("button", name="Clear").click()
    return digits


@pytest.fixture
def serve(launched, eventually, tmp_path):
    return Services(launched, eventually, tmp_path)


@pytest.fixture
def browse(chromium):
    """A browser of its own in the task, with the samples of a file."""
    visits = []

    def join(served, samples, **context):
        visitor = Visit(chromium, served.pages, **context)
        visits.append(visitor)
        page = visitor.open()
        page.click("#join button")
        page.click("#files summary")
        page.set_input_files("#files-input", samples)
        page.get_by_text(re.compile(r"^\d+ samples kept")).wait_for()
        return visitor

    yield join
    for guest in visits:
        guest.context.close()


def test_a_browser_joins_trains_contributes_and_sees_how_well_it_does(
    serve, browse, digits_in, eventually, tmp_path
):
    with serve(task(tmp_path / "digits.toml", rounds=2, epochs=1)) as served:
        visitor = browse(served, digits_in(tmp_path / "mine.npz"))
        visitor.page.get_by_text(re.compile("The task is over after 2 rounds")).wait_for()
        eventually(lambda: visitor.page.locator("#chart circle").count() >= 2, timeout_s=120)
        now = visitor.page.inner_text("section[aria-labelledby=now-head]")
        assert "the whole model as it is after training" in now
        assert visitor.page.evaluate("crossOriginIsolated")
        cores = visitor.page.evaluate("navigator.hardwareConcurrency")
        runs_on = f"on {min(4, cores - 1)} threads of {cores}" if cores > 2 else "on one thread"
        assert f"Computes by WASM {runs_on}" in visitor.page.text_content("#computes")
        paths = visitor.page.workers[0].evaluate("performance.getEntriesByType('resource').map(e => e.name)")
        assert any(path.endswith("/ort-wasm-simd-threaded.wasm") for path in paths)
        visitor.draw([[(0.5, 0.1), (0.5, 0.9)]])
        visitor.page.get_by_text(re.compile(r"It takes this for “\d”")).wait_for()
        assert served.process.wait(600) == 0
    sent = served.contributions()
    assert [row["round"] for row in sent] == [1, 2]
    assert {row["kind"] for row in sent} == {"full"}
    hosts = ("http://127.0.0.1:", "ws://127.0.0.1:", "blob:http://127.0.0.1:")
    assert all(url.startswith(hosts) for url in visitor.requests)
    assert visitor.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(360, 640), (390, 844), (820, 1180)], ids=["small", "phone", "tablet"])
def test_nothing_moves_under_a_finger_in_three_rounds_of_a_real_service(
    serve, browse, digits_in, eventually, size, scheme, tmp_path
):
    with serve(task(tmp_path / "digits.toml", rounds=6, epochs=1)) as served:
        view = {"width": size[0], "height": size[1]}
        visitor = browse(served, digits_in(tmp_path / "mine.npz"), viewport=view, color_scheme=scheme)
        page = visitor.page
        page.click("#files summary")
        page.evaluate("scrollTo(0, 0)")
        helped = page.evaluate(HELPED)
        page.evaluate(PLACES)
        eventually(lambda: page.evaluate(HELPED) >= helped + 3, timeout_s=240)
        (places,) = page.evaluate("[...window.places]")
        for place in json.loads(places):
            assert place["top"] >= 0
            assert place["bottom"] <= size[1]
        assert visitor.wrong == []


@pytest.mark.slow
def test_three_browsers_and_three_python_devices_learn_as_well_as_six_in_python(
    serve, browse, launched, digits, tmp_path
):
    accuracies, readings = {}, []
    for browsers in (3, 0):
        name = f"with-{browsers}"
        options = ("--bundle", "digits-wrn-10-1", "--rounds", "8", "--deadline", "40", "--min-devices", "6")
        kinds = ("--kinds", "full", "--eval-data", digits / "held.npz")
        with ExitStack() as stack:
            served = stack.enter_context(serve(*options, *kinds, name=name))
            broker = re.search(r"join (mqtt://\S+)", served.log.read_text())[1]
            for number in range(browsers, DEVICES):
                settings = ("--data", digits / f"{number}.npz", "--state", tmp_path / f"{name}-{number}")
                log = tmp_path / f"{name}-{number}.log"
                stack.enter_context(launched(log, "join", broker, "--name", f"py-{number}", *settings))
            visits = [browse(served, digits / f"{number}.npz") for number in range(browsers)]
            assert served.process.wait(900) == 0
            readings = read(visits[0]) if visits else readings
            assert all(visitor.wrong == [] for visitor in visits)
            counted = Counter(row["device"] for row in served.contributions())
        assert len(counted) == DEVICES
        assert min(counted.values()) >= 7
        accuracies[browsers] = float(served.rounds()[-1]["eval_acc"])
    print(f"accuracy by browsers among six devices: {accuracies}; drawn 0 to 9, taken for {readings}")
    assert sum(digit == number for number, digit in enumerate(readings)) >= 8
    assert accuracies[3] > 0.9
    assert abs(accuracies[3] - accuracies[0]) < 0.03


@pytest.mark.slow
def test_a_browser_contributes_every_kind_one_task_after_the_other(serve, browse, digits, tmp_path):
    assert set(registry.DEFAULT_KINDS) <= set(KINDS)
    with serve(*one_of_each(tmp_path)) as served:
        visitor = browse(served, digits / "0.npz")
        assert served.process.wait(900) == 0
        assert visitor.wrong == []
    assert {row["kind"] for row in served.contributions()} == set(KINDS)


@pytest.mark.slow
def test_a_tab_killed_while_it_uploads_goes_on_when_it_is_opened_again(serve, browse, digits_in, tmp_path):
    with serve(task(tmp_path / "digits.toml", rounds=1, epochs=30)) as served:  # long enough to be seen at it
        visitor = browse(served, digits_in(tmp_path / "mine.npz"))
        visitor.page.get_by_text("Round 1: working").wait_for()
        served.process.send_signal(signal.SIGSTOP)  # the contribution is told of, and nobody fetches it
        visitor.page.get_by_text("Round 1: done here, and sent").wait_for()
        with pytest.raises(Exception, match="crash"):
            visitor.page.goto("chrome://crash")
        visitor.page.close()
        served.process.send_signal(signal.SIGCONT)
        page = visitor.page = visitor.context.new_page()
        page.goto(served.pages.url)
        page.get_by_text(re.compile("received, and counted|task is over after 1 round")).wait_for()
        assert page.get_by_text("Computing it took").count() == 0  # it was not computed again
        assert served.process.wait(600) == 0
    assert [(row["round"], row["kind"]) for row in served.contributions()] == [(1, "full")]
