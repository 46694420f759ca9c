"""The audit log: nothing is lost to kill -9, a cut line or a full disk, and no secret is in it."""

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest

from device_runtime.broker.security import audit
from device_runtime.broker.security.audit import AUDIT, AuditError, Operator, entries, note, recorded
from device_runtime.cli import main

OPERATOR = Operator("token http-token", "192.0.2.7")
KILLED = """
import os, pathlib, signal, sys
from device_runtime.broker.security.audit import Operator, recorded
with recorded(pathlib.Path(sys.argv[1]), Operator("root"), "revoke", "pi-1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def results(folder):
    return [(entry.action, entry.subject, entry.result) for entry in entries([folder])]


def test_an_action_has_who_when_from_where_what_and_its_result(tmp_path):
    with recorded(tmp_path, OPERATOR, "rollback", "round 3"):
        assert results(tmp_path) == [("rollback", "round 3", audit.UNKNOWN)]
    with pytest.raises(ValueError, match="is not kept"), recorded(tmp_path, OPERATOR, "rollback", "round 1"):
        raise ValueError("the model of round 1 is not kept")
    assert results(tmp_path) == [
        ("rollback", "round 1", "failed: the model of round 1 is not kept"),
        ("rollback", "round 3", "done"),
    ]
    [entry, _] = entries([tmp_path])
    assert (entry.user, entry.address) == ("token http-token", "192.0.2.7")
    assert entry.at.endswith("+00:00")
    assert (tmp_path / AUDIT).stat().st_mode & 0o777 == 0o600


def test_an_action_in_which_the_process_was_killed_is_there(tmp_path):
    note(tmp_path, OPERATOR, "start", "before")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path])
    assert done.returncode == -signal.SIGKILL
    note(tmp_path, OPERATOR, "start", "after")
    assert results(tmp_path) == [
        ("start", "after", "done"),
        ("revoke", "pi-1", audit.UNKNOWN),
        ("start", "before", "done"),
    ]


@pytest.mark.parametrize("left", range(0, 60, 7))
def test_a_line_that_was_cut_costs_no_other(tmp_path, left, caplog):
    note(tmp_path, OPERATOR, "start", "1")
    whole = (tmp_path / AUDIT).read_bytes()
    (tmp_path / AUDIT).write_bytes(whole + whole[:left])
    note(tmp_path, OPERATOR, "start", "2")
    assert [subject for _, subject, _ in results(tmp_path)] == ["2", "1"]
    assert ("1 damaged lines are left out" in caplog.text) == (left > 0)


def test_what_is_there_is_never_changed(tmp_path):
    texts = [b""]
    for number in range(5):
        with recorded(tmp_path, OPERATOR, "rollback", f"round {number}"):
            pass
        texts.append((tmp_path / AUDIT).read_bytes())
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))


def test_an_action_that_cannot_be_recorded_is_not_done_and_a_note_warns(tmp_path, caplog):
    done = []
    refused = pytest.raises(AuditError, match="cannot write .*so that `revoke` is not recorded")
    with refused, recorded(tmp_path / "absent", OPERATOR, "revoke", "pi-1"):
        done.append("revoked")
    assert done == []
    note(tmp_path / "absent", OPERATOR, "start", "")
    assert "so that `start` is not recorded" in caplog.text


def test_a_secret_that_was_pasted_where_a_name_was_expected_is_left_out(tmp_path):
    pasted = "https://fl.example/join/#link=s3cret", "fl1.s3cret"
    for text in pasted:
        with pytest.raises(ValueError, match="s3cret"), recorded(tmp_path, OPERATOR, "revoke", text):
            raise ValueError(f"{text} is not enrolled")
    assert "s3cret" not in (tmp_path / AUDIT).read_text()
    assert results(tmp_path)[0] == ("revoke", "..", "failed: .. is not enrolled")


def test_the_enrolment_s_actions_are_recorded_and_shown_together_with_those_of_a_run(tmp_path, capsys):
    folder, run = tmp_path / "enrolment", tmp_path / "run"
    run.mkdir()
    root = ["--run-as", "root"] if os.geteuid() == 0 else []
    assert main(["broker", "init", str(folder), "--name", "localhost", *root]) == 0
    assert main(["device", "add", "pi-1", "--dir", str(folder), "--no-qr"]) == 0
    token = next(word for word in capsys.readouterr().out.split() if word.startswith("fl1."))
    assert main(["device", "add", "pi-1", "--dir", str(folder), "--no-qr"]) == 2  # it is enrolled
    link = ["device", "link", "phone", "--dir", str(folder), "--page", "https://fl.example/join/", "--no-qr"]
    assert main(link) == 0
    secret = capsys.readouterr().out.rpartition("#link=")[2].strip()
    assert main(["device", "revoke", "pi-1", "--dir", str(folder)]) == 2  # no Mosquitto to tell
    assert main(["broker", "rotate-key", str(folder)]) == 0
    note(run, OPERATOR, "start", "device-runtime 0.1.0")
    capsys.readouterr()
    assert main(["audit", str(run), str(folder), "--format", "json"]) == 0
    actions = [
        (entry["action"], entry["subject"], entry["result"][:6])
        for entry in json.loads(capsys.readouterr().out)
    ]
    assert [action[0] for action in actions] == [
        "start",
        "rotate-key",
        "revoke",
        "make a link",
        "enrol",
        "enrol",
    ]
    assert actions[2:] == [
        ("revoke", "pi-1", "failed"),
        ("make a link", "phone", "done"),
        ("enrol", "pi-1", "failed"),
        ("enrol", "pi-1", "done"),
    ]
    text = (folder / AUDIT).read_text()
    assert token not in text
    assert secret not in text
    assert main(["audit", str(run)]) == 0
    assert "token http-token  192.0.2.7  start  device-runtime 0.1.0  done" in capsys.readouterr().out
    assert main(["audit", str(tmp_path)]) == 0  # as a site has them
    text = capsys.readouterr().out
    assert "start" in text and "rotate-key" in text
    for folder in (tmp_path / "absent", tmp_path / "run" / "empty"):
        assert main(["audit", str(folder)]) == 2
        assert f"{folder} has no audit.jsonl: expected a run folder" in capsys.readouterr().err
