"""What stays when a task is done, and what does not."""

import signal

import psutil
import pytest

STAY = 'token_file = "token"\nstay = true'
TASK = "rounds = 1\nmin_devices = 1\nkinds = [{ name = 'full' }]"


def done(live):
    return live["phase"] == "finished"


@pytest.mark.slow
def test_http_answers_when_all_is_done_until_it_is_stopped(serve, fleet, eventually):
    service = serve(TASK, STAY, "--workers", "1")
    process = psutil.Process(service.process.pid)
    assert eventually(process.children)
    fleet("full")
    service.wait(done)
    assert eventually(lambda: "http answers until it is stopped" in service.log.read_text())
    assert process.children() == []  # its worker has left
    assert service.get("/healthz").json["ok"]
    assert [row["round"] for row in service.get("/api/v1/tasks/digits/rounds").json["rounds"]] == [1]
    metrics = service.get("/metrics").body.decode()
    for name in ("broker_connected", "loop_silence_seconds"):  # nobody is to be alarmed
        assert f'device_runtime_{name}{{task="digits"}} NaN' in metrics
    refused = service.get("/api/v1/tasks/digits/rollback?round=1", method="POST")
    assert (refused.status, "the task is done: device-runtime models" in refused.json["detail"]) == (
        409,
        True,
    )
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(600) == 0


@pytest.mark.slow
def test_a_done_task_that_is_served_again_stays_too(serve, fleet, eventually):
    service = serve(TASK, 'token_file = "token"')
    fleet("full")
    assert service.process.wait(150) == 0
    run = service.folder / "run"
    again = serve(TASK, STAY, "--run-dir", str(run))
    again.wait(done)
    assert eventually(lambda: "http answers until it is stopped" in again.log.read_text())
    assert again.get("/api/v1/tasks/digits/versions").status == 200
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(600) == 0
