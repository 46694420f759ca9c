"""`join`, as far as the link: who the device is, and where."""

import argparse

import pytest
from nacl.signing import SigningKey

from broker.enrolment import Enrolment
from device_runtime.commands import join


class Joined(Exception):
    """With whom a link would be made."""


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Run `join` with these arguments; returns (URL, client id)."""
    monkeypatch.setattr("device_runtime.connecting._root", lambda: tmp_path / "state")
    (tmp_path / "samples.npz").write_bytes(b"")

    def made(url, client_id, *_):
        raise Joined(url, client_id)

    monkeypatch.setattr(join, "Link", made)

    def run(*arguments):
        parser = argparse.ArgumentParser()
        join.add_arguments(parser)
        with pytest.raises(Joined) as caught:
            join.run(parser.parse_args([*arguments, "--data", str(tmp_path / "samples.npz")]))
        return caught.value.args

    return run


KEY = bytes(SigningKey(bytes(32)).verify_key)


def enrolment(name):
    return Enrolment("mqtts://broker.example.org:8883", name, f"secret of {name}", b"der", KEY, 5)


def test_whoever_has_just_been_enrolled_joins_whoever_else_is_enrolled_here(joined):
    for name in ("pi-1", "pi-2"):
        url, client_id = joined("--enrol", enrolment(name).token)
        assert (url.user, client_id) == (name, enrolment(name).client_id)


def test_enrolled_by_another_address_it_is_still_the_one_that_was_enrolled(joined):
    url, client_id = joined("mqtts://192.0.2.7", "--enrol", enrolment("pi-1").token)
    assert (url.host, url.user, url.password) == ("192.0.2.7", "pi-1", "secret of pi-1")
    assert client_id == enrolment("pi-1").client_id


def test_joining_by_an_address_alone_past_an_enrolment_is_said(joined, caplog):
    joined("mqtts://192.0.2.7")
    assert caplog.text == ""
    joined("--enrol", enrolment("pi-1").token)
    url, _ = joined("mqtts://192.0.2.7")
    assert (url.user, url.password) == (None, None)
    assert "not enrolled: any aggregator's offers are taken" in caplog.text
    assert "enrolled here: pi-1; --name says which to join as" in caplog.text
    caplog.clear()
    joined("mqtts://192.0.2.7", "--name", "pi-1")
    assert caplog.text == ""
