"""A real service over HTTP: what it tells, whom, and that nothing which asks can stop the rounds."""

import json
import re
import signal
import socket
import stat
from contextlib import suppress

import pytest

from device_runtime.models.bundles import tensors

from .conftest import TOKEN

TASK = "rounds = 500\nmin_devices = 3\nround_deadline_s = 20"
SECRET_PATHS = (
    "/metrics",
    "/api/v1/tasks",
    "/api/v1/tasks/digits",
    "/api/v1/tasks/digits/rounds",
    "/api/v1/tasks/digits/devices",
    "/api/v1/tasks/digits/contributions",
    "/api/v1/tasks/digits/versions",
    "/api/v1/tasks/digits/model",
    "/api/v1/tasks/digits/events",
)


def test_a_run_is_told_from_its_first_round_to_its_last(serve, fleet, eventually):
    service = serve(f"{TASK}\nkinds = [{{ name = 'full' }}, {{ name = 'few-shot' }}]")
    assert service.get("/api/v1/tasks/digits/model").status == 404
    fleet("full", "few-shot")
    live = service.wait(lambda live: live["closed_rounds"] >= 2 and live["phase"] == "collecting")
    assert live["rounds"] == 500

    rounds = service.get("/api/v1/tasks/digits/rounds").json
    assert [row["round"] for row in rounds["rounds"]][:2] == [1, 2]
    first = rounds["rounds"][0]
    assert {kind: figures["contributions"] for kind, figures in first["kinds"].items()} == {
        "full": 1,
        "few-shot": 1,
    }
    assert first["accuracy"] is None  # no evaluation data
    assert first["bytes_up"] > first["kinds"]["full"]["bytes_up"] > 100_000
    assert first["energy_j"] == 4.0  # two contributions of 2 J
    assert service.get("/api/v1/tasks/digits/rounds?after=1&limit=1").json["rounds"][0]["round"] == 2

    def devices_by_name():
        rows = service.get("/api/v1/tasks/digits/devices").json["devices"]
        return {row["device"]: row for row in rows}

    devices = eventually(
        lambda: of if len(of := devices_by_name()) == 4 and of["liar"]["not_counted"] else None
    )
    assert set(devices) == {"pi-full", "pi-few-shot", "liar", "idle"}
    assert (devices["pi-full"]["kind"], devices["pi-full"]["profile"]) == ("full", "pi")
    assert devices["idle"]["doing"] == "sits out"
    assert "nonsense" in devices["liar"]["why"]
    assert devices["liar"]["last_seen"] > 1e9
    listing = service.get("/api/v1/tasks/digits/devices?search=FEW&limit=5").json
    assert [row["device"] for row in listing["devices"]] == ["pi-few-shot"]

    path = "/api/v1/tasks/digits/contributions?status=refused"
    refused = eventually(lambda: service.get(path).json["entries"])  # the log is written a little later
    assert {row["device"] for row in refused} == {"liar"}
    eventually(lambda: len(service.get("/api/v1/tasks/digits/contributions").json["entries"]) >= 4)
    page = service.get("/api/v1/tasks/digits/contributions?limit=2").json
    after = service.get(f"/api/v1/tasks/digits/contributions?limit=2&before={page['next']}").json
    ids = [row["id"] for row in (*page["entries"], *after["entries"])]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 4

    served = service.get("/api/v1/tasks/digits/model")
    assert served.headers["content-disposition"] == 'attachment; filename="digits.safetensors"'
    assert "head.weight" in " ".join(tensors.decode(served.body))

    metrics = service.get("/metrics").body.decode()
    counted = re.search(r'contributions_total\{kind="full",status="accepted",task="digits"\} (\S+)', metrics)
    assert float(counted[1]) >= 2
    assert float(re.search(r"(?m)^device_runtime_resident_memory_bytes (\S+)", metrics)[1]) > 10**7
    assert 'device_runtime_devices_online{task="digits"} 4.0' in metrics
    assert 'device_runtime_energy_joules_total{kind="full",task="digits"}' in metrics

    health = service.get("/healthz")
    assert health.status == 200
    assert {check["name"]: check["ok"] for check in health.json["checks"]} == dict.fromkeys(
        ("loop", "broker", "disk", "round"), True
    )


def test_only_who_has_the_token_learns_anything_and_no_log_or_answer_holds_it(serve):
    service = serve(TASK)
    for path in SECRET_PATHS:
        for token in (None, "wrong", TOKEN + "x", TOKEN[:-1], "é"):
            answer = service.get(path, token=token)
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert TOKEN.encode() not in answer.body
        assert service.get(f"{path}?token={TOKEN}", token=None).status == 401, path
    assert service.get("/healthz", token=None).json["checks"][0]["detail"] == ""
    assert service.get("/healthz").json["checks"][0]["detail"] != ""
    for path in ("/", "/docs", "/openapi.json", "/static/app.js", "/static/style.css"):
        answer = service.get(path, token=None)
        assert answer.status == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/static/../site.py", "/static/%2e%2e/site.py", "/static//etc/passwd", "/nothing"):
        assert service.get(path).status == 404, path
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(600) == 0
    assert TOKEN not in service.log.read_text()


def test_bad_questions_are_answered_with_what_was_expected(serve):
    service = serve(TASK)
    assert service.get("/api/v1/tasks/none").json["detail"] == "there is no task of this name: digits"
    for query in ("limit=0", "limit=1001", "limit=x", "before=-1", "status=maybe", f"round={2**64}"):
        assert service.get(f"/api/v1/tasks/digits/contributions?{query}").status == 422, query
    assert service.get("/api/v1/tasks/digits/rounds?after=99999999999999999999").status == 422
    host, port = service.url.removeprefix("http://").split(":")
    for rubbish in (
        b"\x00\xff" * 500,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
        b"POST /metrics HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=120) as raw, suppress(OSError):
            raw.sendall(rubbish)
            raw.recv(100)
    assert service.live()["phase"] == "waiting"


def until(raw, end):
    """What comes, up to something and the rest of its part."""
    content = b""
    while end not in content:
        more = raw.recv(65536)
        assert more, f"it ended before {end}: {content[-500:]}"
        content += more
    return content


def test_a_live_view_hears_of_what_happens_and_ends_with_the_service(serve, fleet):
    service = serve(TASK)
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as raw:
        ask = f"GET /api/v1/tasks/digits/events HTTP/1.1\r\nHost: {host}\r\n"
        raw.sendall(f"{ask}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        content = until(raw, b"event: live")
        assert b"text/event-stream" in content
        fleet("full")
        content += until(raw, b'"phase":"collecting"')
        service.process.send_signal(signal.SIGTERM)
        while more := raw.recv(65536):
            content += more
    events = [json.loads(line[6:]) for line in content.decode().splitlines() if line.startswith("data: ")]
    versions = [event["version"] for event in events]
    assert versions == sorted(versions)
    assert service.process.wait(600) == 0


@pytest.mark.slow
def test_a_stopped_service_goes_on_with_its_log_of_contributions(serve, fleet, eventually):
    service = serve(TASK)
    fleet("full")
    service.wait(lambda live: live["closed_rounds"] >= 2)
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    again = serve(
        TASK,
        'token_file = "token"',
        "--run-dir",
        str(service.folder / "run"),
    )
    live = again.wait(lambda live: live["closed_rounds"] >= 3)
    assert live["round"] >= 3
    for number in (1, 2):
        path = f"/api/v1/tasks/digits/contributions?status=accepted&round={number}"
        counted = eventually(lambda address=path: again.get(address).json["entries"])
        assert [(row["device"], row["kind"]) for row in counted] == [("pi-full", "full")]


def test_a_run_goes_back_to_an_earlier_model_when_asked_over_http(serve, fleet, eventually):
    service, versions = serve(TASK), "/api/v1/tasks/digits/versions"
    assert service.get(versions).json == []
    fleet("full")
    service.wait(lambda live: live["closed_rounds"] >= 3)
    rows = service.get(versions).json
    assert [row["round"] for row in rows[:3]] == [1, 2, 3]
    assert [row["served"] for row in rows].index(True) == len(rows) - 1
    assert (rows[0]["kept"], rows[0]["accuracy"], len(rows[0]["sha256"])) == (True, None, 64)

    answer = service.get("/api/v1/tasks/digits/rollback?round=1", method="POST")
    assert (answer.status, answer.json) == (202, {"round": 1})
    note = "went back to the model of round 1"
    assert eventually(lambda: [row for row in service.get(versions).json if note in row["note"]])
    unknown = service.get("/api/v1/tasks/digits/rollback?round=4000", method="POST")
    assert (unknown.status, "no model of round 4000" in unknown.json["detail"]) == (409, True)
    assert service.get("/api/v1/tasks/digits/rollback?round=1", method="POST", token=None).status == 401
    assert service.get("/api/v1/tasks/digits/rollback?round=1").status == 405


@pytest.mark.slow
def test_where_no_token_is_asked_for_nobody_goes_back(serve, fleet):
    service = serve(TASK, "open = true")
    fleet("full")
    service.wait(lambda live: live["closed_rounds"] >= 1)
    refused = service.get("/api/v1/tasks/digits/rollback?round=1", method="POST", token=None)
    assert (refused.status, "needs a token" in refused.json["detail"]) == (403, True)


@pytest.mark.slow
def test_open_to_this_machine_means_this_machine_by_its_own_name(serve):
    service = serve(TASK, "open = true")
    assert service.get("/api/v1/tasks", token=None).status == 200
    assert service.get("/api/v1/tasks", token=None, Host="localhost:80").status == 200
    for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
        assert service.get("/api/v1/tasks", token=None, Host=name).status in (400, 403), name


def test_a_run_folder_that_is_made_for_its_token_is_open_to_its_owner_only(tmp_path):
    """The token is written before the run is opened."""
    from device_runtime.aggregator.configuration.config import HttpSection
    from device_runtime.aggregator.http.security import token_for

    token_for(HttpSection(), tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


@pytest.mark.slow
def test_without_a_token_file_one_is_made_that_only_its_owner_reads(serve):
    service = serve(TASK, "")
    path = service.folder / "run" / "http-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    assert len(token) == 64
    assert service.get("/api/v1/tasks", token=token).status == 200
    assert service.get("/api/v1/tasks", token=None).status == 401
    assert token not in service.log.read_text()


@pytest.mark.slow
def test_logs_are_lines_of_json(serve, fleet):
    service = serve(TASK)
    fleet("full")
    service.wait(lambda live: live["closed_rounds"] >= 1)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(600) == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
    closed = [line for line in lines if line["event"] == "round closed"]
    assert (closed[0]["task"], closed[0]["round"], closed[0]["eval_acc"]) == ("digits", 1, None)
