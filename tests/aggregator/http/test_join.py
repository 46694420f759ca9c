"""Browsers that come in over real HTTP: what they are told, and who is enrolled by a link."""

import http.client
import json
import os
import pwd
import threading
from datetime import datetime, timezone

import msgspec
import pytest

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.configuration.join_address import BrowserAccess
from device_runtime.aggregator.http import join, security
from device_runtime.aggregator.http.join import JoinFiles, policies
from device_runtime.aggregator.http.server import HttpServer
from device_runtime.aggregator.http.watch import ServedTask
from device_runtime.aggregator.machine.run_events import Finished, Started
from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.servers import mosquitto, production, register
from device_runtime.broker.servers import one_time_links as link_book
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.broker_folder import BrokerSetup as BrokerSetup
from device_runtime.broker.servers.server import BrokerOptions, WebSockets, find_ports
from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.messages import VERSION
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles.bundle import Bundle, shipped_folder

from .conftest import TOKEN, Answer
from .test_pages import FILES, LIBRARIES, lay
from .test_watch import Broker

TASK = Task(bundle="digits-wrn-10-1", name="digits", rounds=9, kinds=kinds_named(["full", "class-means"]))
MANIFEST = Bundle.open(shipped_folder("digits-wrn-10-1")).manifest
RUNS = Started(TASK, "r", False, (), MANIFEST, model_bytes=312_000)
CLAIM = "c" * 43
NOW = datetime.now(timezone.utc)


@pytest.fixture
def opened(tmp_path):
    """A broker that was set up, and is not running."""
    user = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() == 0 else ""
    port, web = find_ports(BrokerOptions(web=WebSockets()))  # of which the token tells the second
    names = ("127.0.0.1", "localhost")
    return production.init_broker(
        tmp_path / "enrolment", BrokerSetup(names=names, port=port, websockets=web, run_as=user), NOW
    )


@pytest.fixture
def running(tmp_path, clock, monkeypatch):
    """HTTP in this process, with a page of a few files; says what it answers."""
    web = lay(tmp_path / "web", FILES), lay(tmp_path / "libraries", LIBRARIES)
    monkeypatch.setattr(JoinFiles, "of", classmethod(lambda cls, broker: cls(*web, policies(broker))))
    monkeypatch.setattr(join, "KNOWN_WITHIN_S", 1.0)
    (tmp_path / "token").write_text(TOKEN)
    started = []

    def start(browser_access, shares=None, **settings):
        (tmp_path / "run").mkdir(exist_ok=True)
        hosted = ServedTask(TASK, tmp_path / "run", Broker(), lambda: 0.0, clock)
        start.hosted = hosted
        section = {"port": 0, "min_free_mb": 0, **(settings or {"token_file": tmp_path / "token"})}
        started.append(HttpServer(HttpSection(**section), [hosted], browser_access, shares))
        started[-1].start()
        return started[-1].url

    yield start
    for server in started:
        server.stop()


def of(opened, **changes):
    return BrowserAccess(opened.for_aggregator, site=opened, **changes)


def ask(url, path, method="GET", body=None, token=None, **headers):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    content = body if body is None or isinstance(body, bytes) else json.dumps(body)
    connection.request(method, path, content, headers)
    answer = connection.getresponse()
    reply = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    connection.close()
    return reply


def invited(url, query=""):
    reply = ask(url, f"/api/v1/links{query}", "POST", token=TOKEN)
    assert reply.status == 201, reply.body
    return reply.json


def secret_of(invitation):
    return invitation["url"].partition("#link=")[2]


def enrol(url, secret, claim=CLAIM, **more):
    return ask(url, "/join/enrol", "POST", {"secret": secret, "claim": claim, **more})


def test_the_page_is_served_to_everybody_and_isolated(running):
    url = running(BrowserAccess(BrokerUrl("127.0.0.1", 1)))
    for path, where in (("/join", "join/"), ("/join/", "page/")):
        moved = ask(url, path)
        assert (moved.status, moved.headers["location"]) == (308, where)
    page = ask(url, "/join/page/")
    assert (page.status, page.body.decode()) == (200, FILES["page/index.html"])
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cross-origin-embedder-policy"] == "require-corp"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    head = ask(url, "/join/page/main.js", "HEAD")
    assert (head.status, head.body) == (200, b"")
    wasm = ask(url, "/join/vendor/ort/ort-wasm-simd-threaded.wasm")
    assert (wasm.headers["content-type"], wasm.body) == ("application/wasm", b"\0asm")
    for path in (
        "/join/package.json",
        "/join/../etc/passwd",
        "/join/page/../../token",
        "/join/page/%2e%2e/%2e%2e/token",
        "/join/page/..%2f..%2ftoken",
        "/join//etc/passwd",
        "/join/%2fetc/passwd",
        "/join/page/..\\..\\token",
    ):
        assert ask(url, path).status == 404, path
    assert "embedder" not in "".join(ask(url, "/").headers)


def test_without_web_there_is_no_page_and_the_dashboard_knows(running):
    url = running(None)
    assert ask(url, "/join/").status == 404
    assert ask(url, "/join/config.json").status == 404
    link_list = ask(url, "/api/v1/links", token=TOKEN).json
    assert link_list == {"page": "", "open": False, "makes": False, "qr": [], "links": []}


def test_who_calls_us_by_a_name_of_this_machine_is_told_how_to_join(running):
    url = running(BrowserAccess(BrokerUrl("127.0.0.1", 1)))
    running.hosted.watch(RUNS)
    reply = ask(url, "/join/config.json")
    assert reply.headers["cache-control"] == "no-store"
    config = reply.json
    assert (config["enrolment"], config["gateway"]) == ("open", "mqtt")
    assert (config["key"], config["version"], config["protocol"]) == ("", 1, VERSION)
    assert 0 < config["page_bytes"] < 10_000
    [task] = config["tasks"]
    assert task["model_bytes"] == 312_000
    assert task["name"] == "digits"
    assert task["kinds"] == ["full", "class-means"]
    assert task["labels"] == [str(digit) for digit in range(10)]
    assert task["input"]["shape"] == [1, 8, 8]
    for name in ("evil.example", "127.0.0.1.evil.example", "evil.example:80"):
        assert ask(url, "/join/config.json", Host=name).status == 403
    assert ask(url, "/join/config.json", Host="localhost").status == 200
    assert enrol(url, "anything").status == 404
    reply = ask(url, "/api/v1/links", token=TOKEN).json
    assert (reply["open"], reply["makes"], reply["page"]) == (True, False, f"{url}/join/")
    assert ask(url, "/api/v1/links", "POST", token=TOKEN).status == 403


def test_what_is_learnt_is_what_the_service_goes_by_at_that_moment(running):
    """Not what was there when the page was first asked for, nor what became of the bundle's files since."""
    url = running(BrowserAccess(BrokerUrl("127.0.0.1", 1)))

    def task():
        [entry] = ask(url, "/join/config.json").json["tasks"]
        return entry["labels"], entry["input"].get("shape"), entry["over"]

    watch = running.hosted.watch
    assert task() == ([], None, False)
    watch(RUNS)
    assert task() == ([str(digit) for digit in range(10)], [1, 8, 8], False)
    watch(Started(TASK, "r2", False, (), msgspec.structs.replace(MANIFEST, labels=("no", "yes"))))
    assert task() == (["no", "yes"], [1, 8, 8], False)
    watch(Finished("r2", 9))
    assert task() == (["no", "yes"], [1, 8, 8], True)


def test_a_task_has_a_title_and_two_sentences_for_people_else_its_name(running):
    url = running(BrowserAccess(BrokerUrl("127.0.0.1", 1)))

    def texts():
        [entry] = ask(url, "/join/config.json").json["tasks"]
        return entry["title"], entry["about"], entry["ask"]

    assert texts() == (TASK.name, "", "")
    for_people = {"title": "Read digits", "about": "We read handwriting.", "ask": "Draw a digit."}
    running.hosted.task = msgspec.structs.replace(TASK, **for_people)
    assert texts() == ("Read digits", "We read handwriting.", "Draw a digit.")


def test_a_link_that_the_dashboard_makes_enrols_one_browser_once(running, opened):
    url = running(of(opened))
    config = ask(url, "/join/config.json").json
    assert (config["enrolment"], config["gateway"]) == ("link", "mqtt")
    assert config["key"] == opened.signer.public.hex()
    invitation = invited(url)
    assert invitation["url"].startswith(f"{url}/join/#link=")
    assert (invitation["link"]["state"], invitation["link"]["used"]) == ("open", None)
    answer = enrol(url, secret_of(invitation), name="phone")
    assert answer.status == 200
    enrolment = Enrolment.of_token(answer.json["token"])
    assert (enrolment.name, answer.json["name"]) == ("phone", "phone")
    assert (enrolment.url, enrolment.key) == (opened.site.web_url, opened.signer.public)
    assert enrol(url, secret_of(invitation), name="phone").json == answer.json
    other = enrol(url, secret_of(invitation), "d" * 43, name="phone")
    assert (other.status, "used by another browser" in other.json["detail"]) == (410, True)
    assert [entry.name for entry in register.entries(opened)] == ["phone"]
    [listed] = ask(url, "/api/v1/links", token=TOKEN).json["links"]
    assert (listed["state"], listed["device"]) == ("used", "phone")
    assert secret_of(invitation) not in json.dumps(listed)


def test_the_qr_code_is_of_the_link(running, opened):
    import segno

    invitation = invited(running(of(opened, address="https://fl.example.org")), "?device=phone&minutes=5")
    assert invitation["url"].startswith("https://fl.example.org/join/#link=")
    assert (invitation["link"]["device"], invitation["link"]["ends"] - invitation["link"]["made"]) == (
        "phone",
        300,
    )
    code = segno.make(invitation["url"], error="m", micro=False)
    assert invitation["qr"] == ["".join(str(int(module)) for module in row) for row in code.matrix]


def test_what_is_no_link_or_is_over_is_refused_with_what_to_do(running, opened):
    url = running(of(opened))
    wrong = enrol(url, "w" * 32)
    assert (wrong.status, wrong.json["detail"]) == (403, "there is no such link: ask for a new one")
    first, second = invited(url), invited(url, "?device=given")
    assert ask(url, f"/api/v1/links/{first['link']['id']}", "DELETE", token=TOKEN).json["state"] == "revoked"
    assert enrol(url, secret_of(first)).status == 410
    assert enrol(url, secret_of(invited(url)), name="given").status == 409
    assert enrol(url, secret_of(invited(url)), name="a/b").status == 409
    link, secret = links.make(opened, NOW.timestamp() - 1000, 900)
    assert (enrol(url, secret).status, link.state(NOW.timestamp())) == (410, "expired")
    assert ask(url, "/api/v1/links?device=given", "POST", token=TOKEN).status == 409
    assert ask(url, "/api/v1/links/nothing", "DELETE", token=TOKEN).status == 409
    assert register.entries(opened) == []
    assert enrol(url, secret_of(second)).json["name"] == "given"


def test_who_was_given_a_token_by_hand_is_told_that_the_link_is_good_no_more(running, opened):
    url = running(of(opened))
    secret = secret_of(invited(url, "?device=phone"))
    assert enrol(url, secret).status == 200
    register.add(opened, "phone", NOW, again=True)
    answer = enrol(url, secret)
    assert answer.status == 410
    assert answer.json["detail"].startswith("device 'phone' was given another token meanwhile (`device add`)")


def test_what_is_posted_must_be_what_a_page_of_ours_posts(running, opened):
    url = running(of(opened))
    secret = secret_of(invited(url))
    whole = {"secret": secret, "claim": CLAIM}
    for body, status in ((None, 415), ({}, 400), ([], 400), ({**whole, "more": 1}, 400), (secret, 400)):
        assert ask(url, "/join/enrol", "POST", body).status == status
    assert ask(url, "/join/enrol", "POST", b'{"secret": "\xff", "claim": "", "name": ""}').status == 400
    assert ask(url, "/join/enrol", "POST", {**whole, "name": "x" * 5000}).status == 413
    assert ask(url, "/join/enrol", "POST", whole, **{"Content-Type": "text/plain"}).status == 415
    assert ask(url, "/join/enrol", "POST", whole, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert ask(url, "/join/enrol").status == 404
    assert register.entries(opened) == []
    assert ask(url, "/join/enrol", "POST", whole, **{"Sec-Fetch-Site": "same-origin"}).status == 200


def test_who_guesses_is_slowed(running, opened, monkeypatch):
    monkeypatch.setattr(join, "BURST", 5.0)
    monkeypatch.setattr(join, "RATE", 1e-6)
    url = running(of(opened))
    secret = secret_of(invited(url))
    assert [enrol(url, "w" * 32).status for _ in range(7)] == [403] * 5 + [429] * 2
    slowed = enrol(url, secret)
    assert (slowed.status, slowed.headers["retry-after"]) == (429, "5")
    assert register.entries(opened) == []


def test_of_browsers_that_use_a_link_at_once_one_gets_in(running, opened):
    url = running(of(opened))
    secret = secret_of(invited(url))
    answers = []
    threads = [
        threading.Thread(target=lambda letter=letter: answers.append(enrol(url, secret, letter * 43)))
        for letter in "abcdef"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200, 410, 410, 410, 410, 410]
    assert len(register.entries(opened)) == 1


def test_links_are_for_who_has_the_token(running, opened):
    url = running(of(opened))
    for token in (None, "wrong", TOKEN + "x"):
        for path, method in (("", "GET"), ("", "POST"), ("/x", "DELETE")):
            assert ask(url, f"/api/v1/links{path}", method, token=token).status == 401
    assert link_book.read_links(opened).links == ()


def test_where_no_token_is_asked_for_nobody_makes_links(running, opened):
    url = running(of(opened), open=True)
    assert ask(url, "/api/v1/links").json["makes"] is False
    assert ask(url, "/api/v1/links", "POST").status == 403
    assert ask(url, "/api/v1/links/x", "DELETE").status == 403


def test_without_the_broker_s_own_files_no_link_is_made_or_used(running, opened):
    for name in ("passwords", "devices.json"):
        (opened.folder / name).unlink()
    url = running(of(opened))
    assert ask(url, "/api/v1/links", token=TOKEN).json["makes"] is False
    assert ask(url, "/api/v1/links", "POST", token=TOKEN).status == 403
    assert enrol(url, "w" * 32).status == 404


def test_links_survive_a_new_start(running, opened):
    invitation = invited(running(of(opened)))
    url = running(of(BrokerFolder(opened.folder)))
    answer = enrol(url, secret_of(invitation))
    again = running(of(BrokerFolder(opened.folder)))
    assert enrol(again, secret_of(invitation)).json == answer.json
    assert enrol(again, secret_of(invitation), "d" * 43).status == 410


@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_when_the_answer_is_there_the_broker_knows_the_device_and_a_revoked_one_no_more(
    running, opened, launched, tmp_path, eventually
):
    import queue

    from device_runtime.broker.errors import BrokerRefused

    command = (str(mosquitto.find()), "-c", str(opened.folder / "mosquitto.conf"))
    with launched(tmp_path / "mosquitto.log", other=command):
        eventually(lambda: "running" in (tmp_path / "mosquitto.log").read_text())
        url = running(of(opened))
        invitation = invited(url)
        enrolment = Enrolment.of_token(enrol(url, secret_of(invitation)).json["token"])
        link = Link(enrolment.address, enrolment.client_id, queue.SimpleQueue())
        link.connect()
        link.close()
        ask(url, f"/api/v1/links/{invitation['link']['id']}", "DELETE", token=TOKEN)

        def refused():
            another = Link(enrolment.address, enrolment.client_id, queue.SimpleQueue())
            try:
                another.connect()
            except BrokerRefused:
                return True
            finally:
                another.close()
            return False

        assert eventually(refused)


def test_the_dashboard_s_own_pages_keep_their_policy(running):
    url = running(BrowserAccess(BrokerUrl("127.0.0.1", 1)))
    assert ask(url, "/").headers["content-security-policy"] == security.HEADERS["content-security-policy"]
    assert ask(url, "/").headers["permissions-policy"].startswith("camera=()")
