"""`device-runtime edge` where it cannot run."""

import pytest

from device_runtime.cli import main
from device_runtime.cli.operator import edge


def test_without_its_extra_it_says_what_to_install_and_starts_no_broker(monkeypatch, capsys, tmp_path):
    def absent(name):
        raise ModuleNotFoundError("No module named 'rpds'", name="rpds")

    monkeypatch.setattr(edge, "import_module", absent)
    monkeypatch.setattr(edge, "broker_for", lambda *_: pytest.fail("a broker was started"))
    assert main(["edge", "mqtt://127.0.0.1:1", "--state", str(tmp_path / "edge")]) != 0
    assert (
        "edge needs the extra aggregator: pip install 'device-runtime[aggregator]'" in capsys.readouterr().err
    )
    assert not (tmp_path / "edge").exists()
