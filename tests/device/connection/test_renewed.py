"""A device connects with the credentials that are in its folder at that moment."""

import ssl
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from device_runtime.broker.errors import UrlError
from device_runtime.broker.security.enrolment import FILE, Enrolment, EnrolmentError
from device_runtime.broker.servers.production import make_authority
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.connection.connecting import Connection


def authority() -> bytes:
    """A new authority's certificate (DER)."""
    return ssl.PEM_cert_to_DER_cert(make_authority("a", datetime.now(timezone.utc), 9).certificate)


@pytest.fixture
def enrolled(tmp_path: Path) -> Connection:
    enrolment = Enrolment("mqtts://broker:8883", "pi", "one", authority(), bytes(32), 1)
    enrolment.save(tmp_path)
    return Connection(enrolment.address, "pi", tmp_path, enrolment.client_id, enrolment.key, enrolment)


def again(connection: Connection, **changes: object) -> Enrolment:
    assert connection.enrolment is not None
    fields = {name: getattr(connection.enrolment, name) for name in connection.enrolment.__struct_fields__}
    renewed = Enrolment(**{**fields, **changes})
    renewed.save(connection.folder)
    return renewed


def test_password_authority_and_address_are_those_of_the_folder_now(enrolled: Connection) -> None:
    assert enrolled.renewed() == enrolled.url
    renewed = again(enrolled, password="two", authority=authority(), url="mqtts://other:1234")
    assert enrolled.renewed() == renewed.address
    assert (enrolled.renewed().password, enrolled.renewed().host) == ("two", "other")


def test_an_address_of_the_command_line_stays(enrolled: Connection) -> None:
    assert enrolled.enrolment is not None
    here = replace(enrolled, url=enrolled.enrolment.at(BrokerUrl.parse("mqtts://127.0.0.1:7777")))
    renewed = again(enrolled, password="two", authority=authority())
    assert here.renewed() == renewed.at(BrokerUrl.parse("mqtts://127.0.0.1:7777"))
    assert here.renewed().tls.authority != here.url.tls.authority


@pytest.mark.parametrize(("text", "message"), [(None, "is missing"), ('["mqtts:', "cannot be used")])
def test_a_file_that_is_missing_or_half_written_is_said(
    enrolled: Connection, text: str | None, message: str
) -> None:
    path = enrolled.folder / FILE
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(EnrolmentError, match=message):
        enrolled.renewed()


def test_credentials_that_came_with_the_url_stay(enrolled: Connection) -> None:
    own = BrokerUrl.parse("mqtts://me:mine@broker")
    again(enrolled, password="two")
    assert replace(enrolled, url=own).renewed() == own
    open_one = BrokerUrl.parse("mqtt://127.0.0.1")
    assert replace(enrolled, url=open_one, enrolment=None).renewed() == open_one
    with pytest.raises(UrlError):
        BrokerUrl.parse("mqtt://broker")
