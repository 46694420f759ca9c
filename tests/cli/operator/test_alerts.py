"""The ten alerts of a production site, provoked: each fires for what it is about, and none on a quiet day."""

import shutil
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt install prometheus"
)
RULES = Path(__file__).parents[3] / "deploy" / "site" / "alerts.yml"
TASK = '{task="digits"}'
QUIET = {
    'up{job="device-runtime"}': "1x320",
    f"device_runtime_broker_connected{TASK}": "1x320",
    f"device_runtime_loop_silence_seconds{TASK}": "1x320",
    f"device_runtime_rounds_extended_total{TASK}": "0+0.01x320",
    f"device_runtime_round_extensions{TASK}": "1x320",
    f"device_runtime_devices_online{TASK}": "3x320",
    f"device_runtime_finished{TASK}": "0x320",
    f"device_runtime_mask_helpers_awaited{TASK}": "0x320",
    'device_runtime_contributions_total{task="digits",kind="full",status="accepted"}': "0+9x320",
    'device_runtime_contributions_total{task="digits",kind="full",status="refused"}': "0+0.5x320",
    f"device_runtime_accuracy{TASK}": "0.95x320",
    f"device_runtime_disk_free_bytes{TASK}": "5000000000x320",
    "device_runtime_certificate_expires_timestamp_seconds": "70000000x320",
}
"""Series of a day and a half, a value each five minutes, of which no alert fires."""
PROVOKED = {
    "AggregatorDown": {'up{job="device-runtime"}': "0x320"},
    "BrokerLost": {f"device_runtime_broker_connected{TASK}": "0x320"},
    "LoopSilent": {f"device_runtime_loop_silence_seconds{TASK}": "0+60x320"},
    "RoundsExtended": {f"device_runtime_round_extensions{TASK}": "4x320"},
    "NoDevices": {f"device_runtime_devices_online{TASK}": "0x320"},
    "MaskHelpersAwaited": {f"device_runtime_mask_helpers_awaited{TASK}": "1x320"},
    "ManyRefused": {
        'device_runtime_contributions_total{task="digits",kind="full",status="refused"}': "0+2x320"
    },
    "AccuracyFell": {f"device_runtime_accuracy{TASK}": "0.95x260 0.8x60"},
    "DiskNearlyFull": {f"device_runtime_disk_free_bytes{TASK}": "900000000x320"},
    "CertificateExpires": {"device_runtime_certificate_expires_timestamp_seconds": "1000000x320"},
}
AT = "1500m"


def firing(tmp_path, series, expected):
    """What promtool finds wrong if exactly these alerts are expected of these series; "" for nothing."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    names = [rule["alert"] for rule in rules]
    plain = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": plain}]}))
    labels = {"AggregatorDown": {"job": "device-runtime"}, "CertificateExpires": {}}
    cases = [
        {
            "eval_time": AT,
            "alertname": name,
            "exp_alerts": [{"exp_labels": labels.get(name, {"task": "digits"})}] if name in expected else [],
        }
        for name in names
    ]
    test = {
        "interval": "5m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": cases,
    }
    written = {"rule_files": ["alerts.yml"], "evaluation_interval": "5m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(written))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_no_alert_fires_on_a_quiet_day(tmp_path):
    assert firing(tmp_path, QUIET, ()) == ""


@pytest.mark.parametrize("alert", PROVOKED)
def test_an_alert_fires_for_what_it_is_about_and_no_other_does(tmp_path, alert):
    assert firing(tmp_path, QUIET | PROVOKED[alert], (alert,)) == ""


@pytest.mark.parametrize("each", ("5", "20", "1440"))
def test_a_round_that_was_extended_four_times_fires_whatever_its_deadline(tmp_path, each):
    """A deadline passes every `each` minutes; the series have a value each five."""
    series = {
        f"device_runtime_rounds_extended_total{TASK}": f"0+{5 / int(each)}x320",
        f"device_runtime_round_extensions{TASK}": "4x320",
    }
    assert firing(tmp_path, QUIET | series, ("RoundsExtended",)) == ""


def test_four_rounds_of_an_hour_that_were_extended_once_each_fire_too(tmp_path):
    series = {f"device_runtime_rounds_extended_total{TASK}": "0+0.5x320"}
    assert firing(tmp_path, QUIET | series, ("RoundsExtended",)) == ""


def test_a_finished_task_needs_no_devices(tmp_path):
    """Until then their absence fires, in the last round too."""
    absent = {f"device_runtime_devices_online{TASK}": "0x320"}
    assert firing(tmp_path, QUIET | absent, ("NoDevices",)) == ""
    finished = {
        f"device_runtime_finished{TASK}": "1x320",
    }
    assert firing(tmp_path, QUIET | absent | finished, ()) == ""


def test_every_alert_is_provoked():
    assert list(PROVOKED) == [
        rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    ]
