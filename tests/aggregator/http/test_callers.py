"""Of whom is counted what is asked."""

import pytest
from starlette.requests import HTTPConnection

from device_runtime.aggregator.http.security import caller_address


def asked_by(address):
    return HTTPConnection({"type": "http", "headers": [], "client": (address, 1) if address else None})


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),  # IPv4, as a proxy may say it
        ("nobody", ""),
        ("", ""),
    ],
)
def test_an_address_of_version_6_is_counted_by_its_network_and_others_whole(address, counted):
    assert caller_address(asked_by(address)) == counted
