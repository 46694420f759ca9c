"""The service connects with the credentials that are in its files at that moment."""

from pathlib import Path

import pytest

from device_runtime.aggregator.configuration.config import BrokerSection, renewal
from device_runtime.aggregator.errors import ConfigError


def test_the_password_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    section = BrokerSection(url="mqtts://broker", user="aggregator", password_file=file)
    address = renewal(section)
    assert address is not None
    for password in ("one", "two"):
        file.write_text(f"{password}\n")
        assert (address().user, address().password) == ("aggregator", password)
    file.unlink()
    with pytest.raises(ConfigError, match=f"cannot read {file}"):
        address()


def test_a_broker_of_our_own_has_no_credentials_to_renew() -> None:
    assert renewal(BrokerSection()) is None
