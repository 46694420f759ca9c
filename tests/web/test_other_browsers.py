"""Browsers of other makers as devices: Firefox, and WebKit, which an iPhone's browsers are made of."""

import json
import re
import signal
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from device_runtime.broker.servers import mosquitto, register

from . import driven
from .conftest import DEVICES
from .services import KINDS, Services, one_of_each, task
from .serving_pages import WEB
from .test_browsers import DRAWN
from .test_enrolled_browser import House

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
pytest.importorskip("sklearn.datasets", reason="needs pip install scikit-learn")

PHONE = 360
FINISHED = r"The task is over after \d+ round"


@pytest.fixture
def serve(launched, eventually, tmp_path):
    return Services(launched, eventually, tmp_path)


@pytest.fixture(params=["firefox", "webkit"])
def browser(request):
    """Opens one; what is kept in a folder is there again when it is opened anew."""
    if why := driven.missing(request.param):
        pytest.skip(why)
    if not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("web/vendor is missing: npm ci && npm run vendor in web/")
    return getattr(driven, request.param)


def wrong(tab):
    """What the browser calls errors, but for the link's: it ends with its service."""
    return [line for line in tab.wrong() if "/join/mqtt" not in line]


def joined(tab, url, samples):
    """By the form, with the samples of a file."""
    tab.open(url)
    tab.click("#join button")
    tab.click("#files summary")
    tab.choose("#files-input", samples)
    tab.reads(r"(?m)^\d+ samples kept")


def test_a_browser_of_another_maker_learns_and_is_the_same_device_after_a_reload(
    browser, serve, digits_in, tmp_path
):
    samples = digits_in(tmp_path / "mine.npz", slice(150))
    with serve(task(tmp_path / "digits.toml", 4, epochs=1)) as served, browser(tmp_path / "browser") as tab:
        joined(tab, served.pages.url, samples)
        tab.reads("Sent in round 2: .*the whole model as it is after training")
        tab.open(served.pages.url)
        tab.reads(FINISHED, 120)
        assert "150 samples" in tab.text()
        assert served.process.wait(600) == 0
        shared = tab.run("return crossOriginIsolated && 'SharedArrayBuffer' in globalThis")
        cores = tab.run("return navigator.hardwareConcurrency")
        assert ("Computes by WASM on one thread" in tab.text()) == (not shared or cores <= 2)
        for digit, lines in enumerate(DRAWN):
            tab.draw(lines)
            tab.reads(r"It takes this for “\d”")
            tab.run("document.querySelectorAll('#labels button')[given[0]].click()", digit)
            tab.reads(f"{151 + digit} samples, ")
        assert wrong(tab) == []
    sent = served.contributions()
    assert [(row["round"], row["kind"]) for row in sent] == [(number, "full") for number in (1, 2, 3, 4)]
    assert len({row["device"] for row in sent}) == 1


def test_a_phone_of_another_maker_joins_by_a_link_over_tls(browser, program, launched, eventually, tmp_path):
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    pytest.importorskip("cryptography", reason="needs pip install 'device-runtime[aggregator]'")
    house = House(tmp_path, program, launched, eventually)
    np.savez(tmp_path / "mine.npz", x=np.eye(8, dtype=np.uint8)[None].repeat(40, 0), y=np.arange(40) % 10)
    options = ("--rounds", "2", "--deadline", "20", "--kinds", "few-shot")
    authority = (house.opened.folder / "ca.pem").read_text()
    opened = browser(tmp_path / "browser", PHONE, authority)
    with house.mosquitto(), house.serve(*options) as service, opened as tab:
        joined(tab, house.link(), tmp_path / "mine.npz")
        assert tab.run("return crossOriginIsolated && isSecureContext && !location.hash")
        tab.reads(FINISHED, 120)
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        assert service.wait(600) == 0
        assert wrong(tab) == []
    [entry] = register.entries(house.opened)
    assert [(row["round"], row["device"]) for row in house.sent()] == [(1, entry.name), (2, entry.name)]


@pytest.mark.slow
def test_a_browser_of_another_maker_contributes_every_kind(browser, serve, digits, tmp_path):
    with serve(*one_of_each(tmp_path)) as served, browser(tmp_path / "browser") as tab:
        joined(tab, served.pages.url, digits / "0.npz")
        assert served.process.wait(900) == 0
        assert wrong(tab) == []
    assert {row["kind"] for row in served.contributions()} == set(KINDS)


@pytest.mark.slow
def test_a_browser_of_another_maker_that_is_killed_while_it_uploads_goes_on(
    browser, serve, digits_in, tmp_path
):
    samples = digits_in(tmp_path / "mine.npz")
    with serve(task(tmp_path / "digits.toml", 1, epochs=30)) as served:  # long enough to be seen at it
        with browser(tmp_path / "browser") as tab:
            joined(tab, served.pages.url, samples)
            tab.reads("Round 1: working")
            served.process.send_signal(signal.SIGSTOP)  # the contribution is told of, and nobody fetches it
            tab.reads("Round 1: done here, and sent")
        served.process.send_signal(signal.SIGCONT)
        with browser(tmp_path / "browser") as tab:
            tab.open(served.pages.url)
            tab.reads("received, and counted|task is over after 1 round")
            assert "Computing it took" not in tab.text()  # it was not computed again
            assert served.process.wait(600) == 0
            assert wrong(tab) == []
    assert [(row["round"], row["kind"]) for row in served.contributions()] == [(1, "full")]


@pytest.mark.slow
def test_firefox_webkit_and_four_python_devices_learn_as_well_as_six_in_python(
    serve, launched, digits, tmp_path
):
    for which in ("firefox", "webkit"):
        if why := driven.missing(which):
            pytest.skip(why)
    accuracies = {}
    for others in ((driven.firefox, driven.webkit), ()):
        name = f"with-{len(others)}"
        options = ("--bundle", "digits-wrn-10-1", "--rounds", "8", "--deadline", "60", "--min-devices", "6")
        kinds = ("--kinds", "full", "--eval-data", digits / "held.npz")
        with ExitStack() as stack:
            served = stack.enter_context(serve(*options, *kinds, name=name))
            broker = re.search(r"join (mqtt://\S+)", served.log.read_text())[1]
            for number in range(len(others), DEVICES):
                settings = ("--data", digits / f"{number}.npz", "--state", tmp_path / f"{name}-{number}")
                log = tmp_path / f"{name}-{number}.log"
                stack.enter_context(launched(log, "join", broker, "--name", f"py-{number}", *settings))
            tabs = [stack.enter_context(open_tab(tmp_path / open_tab.__name__)) for open_tab in others]
            for number, tab in enumerate(tabs):
                joined(tab, served.pages.url, digits / f"{number}.npz")
            assert served.process.wait(900) == 0
            assert [wrong(tab) for tab in tabs] == [[] for _ in tabs]
        counted = Counter(row["device"] for row in served.contributions())
        assert len(counted) == DEVICES
        assert min(counted.values()) >= 7
        accuracies[len(others)] = float(served.rounds()[-1]["eval_acc"])
    print(json.dumps({"accuracy by browsers among six devices": accuracies}))
    assert accuracies[2] > 0.9
    assert abs(accuracies[2] - accuracies[0]) < 0.03
