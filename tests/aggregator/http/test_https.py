"""HTTPS as an operator sets it up: a real client that verifies, a real Chromium, a renewed certificate."""

import socket
import ssl
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import pytest

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.http import server
from device_runtime.aggregator.http.server import HttpServer
from device_runtime.broker.servers.production import Pair, issue, make_authority

from .conftest import PATIENCE_MS, TOKEN
from .test_watch import hosted

NOW = datetime.now(timezone.utc)


@pytest.fixture
def authority() -> Pair:
    return make_authority("test", NOW, 3)


def keep(folder: Path, pair: Pair) -> tuple[Path, Path]:
    """Certificate and key, as files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_text(pair.certificate)
    key.write_text(pair.key)
    return cert, key


def answer_of(url, trust, token="", **headers):
    """(status, body) of an answer to a client that verifies by `trust`."""
    authorization = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers={**authorization, **headers})  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, context=trust, timeout=120) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def service(serve, tmp_path, authority):
    cert, key = keep(tmp_path, issue(authority, ["127.0.0.1"], NOW, 2))
    return serve("rounds = 3", f'token_file = "token"\ncert = "{cert}"\nkey = "{key}"')


@pytest.mark.slow
def test_a_client_that_verifies_gets_in_with_the_token_and_others_do_not(service, authority):
    assert service.url.startswith("https://")
    trust = ssl.create_default_context(cadata=authority.certificate)
    assert answer_of(f"{service.url}/", trust)[0] == 200
    assert answer_of(f"{service.url}/healthz", trust)[0] == 200
    for token, status in (("", 401), (TOKEN + "x", 401), (TOKEN, 200)):
        for path in ("/api/v1/tasks", "/metrics"):
            assert answer_of(service.url + path, trust, token)[0] == status
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        answer_of(f"{service.url}/", ssl.create_default_context())
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        answer_of(f"{service.url.replace('127.0.0.1', 'localhost')}/", trust)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_neither_plain_http_nor_an_old_tls_is_answered(service, authority):
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        answer_of(service.url.replace("https://", "http://"), None)
    old = ssl.create_default_context(cadata=authority.certificate)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.raises(urllib.error.URLError):
        answer_of(f"{service.url}/", old)


def test_the_dashboard_is_entered_over_https(service, browser):
    context = browser.new_context(ignore_https_errors=True)  # an authority of Chromium's it is not
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        assert page.goto(f"{service.url}/").security_details()["protocol"] in ("TLS 1.2", "TLS 1.3")
        page.fill("#token", TOKEN)
        page.click("#enter button")
        page.wait_for_selector("#connection:has-text('live')")
        assert page.evaluate("isSecureContext")
    finally:
        context.close()


@pytest.fixture
def site(tmp_path, clock, authority, monkeypatch):
    """In this process, with looks at the files that are seconds apart at most."""
    monkeypatch.setattr(server, "LOOK_S", 0)
    cert, key = keep(tmp_path, issue(authority, ["127.0.0.1"], NOW, 1))
    settings = HttpSection(port=0, cert=cert, key=key, min_free_mb=0)
    site = HttpServer(settings, [hosted(tmp_path, clock)])
    site.start()
    yield site
    site.stop()


def served(site, authority):
    """The certificate of a new connection, verified."""
    trust = ssl.create_default_context(cadata=authority.certificate)
    address = ("127.0.0.1", int(site.url.rpartition(":")[2]))
    plain = socket.create_connection(address, timeout=120)
    with trust.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True))


def test_a_renewed_certificate_is_served_without_a_new_start(site, tmp_path, authority, eventually):
    before = served(site, authority)
    other = issue(authority, ["127.0.0.1"], NOW, 2)
    (tmp_path / "cert.pem").write_text(other.certificate)  # of which the key is yet to come
    assert served(site, authority) == before
    (tmp_path / "key.pem").write_text(other.key)
    assert eventually(lambda: served(site, authority) == other.certificate)


@pytest.mark.parametrize("broken", ["", "no certificate"])
def test_a_certificate_that_cannot_be_used_leaves_the_one_before(
    site, tmp_path, authority, eventually, caplog, broken
):
    before = served(site, authority)
    (tmp_path / "cert.pem").write_text(broken)
    assert eventually(lambda: "cannot be used, the ones before stay" in caplog.text)
    assert served(site, authority) == before
    (tmp_path / "cert.pem").unlink()
    assert eventually(lambda: caplog.text.count("cannot be used, the ones before stay") == 2)
    assert served(site, authority) == before
