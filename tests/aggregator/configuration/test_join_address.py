"""Where browsers come in: what the settings and the broker make of it, and what no browser could reach."""

import os
import pwd
from datetime import datetime, timezone

import pytest

from device_runtime.aggregator.configuration import config, join_address
from device_runtime.aggregator.configuration.join_address import Reader
from device_runtime.aggregator.errors import ConfigError
from device_runtime.broker.servers import one_time_links as link_book
from device_runtime.broker.servers import one_time_links as links
from device_runtime.broker.servers import production
from device_runtime.broker.servers.broker_folder import BrokerSetup
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.operator.serve import add_arguments, server_config

NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
HERE = BrokerUrl("127.0.0.1", 1883)
SECURE = BrokerUrl("fl.example.org", 8883, secure=True)


@pytest.fixture
def enrolment(tmp_path):
    def make(websockets=8884, *names):
        user = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() == 0 else ""
        site = BrokerSetup(names=names or ("192.0.2.7",), websockets=websockets, run_as=user)
        return production.init_broker(tmp_path / f"enrolment-{websockets}-{len(names)}", site, NOW).folder

    return make


def settings(*words):
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return server_config(parser.parse_args(list(map(str, words))))


def opened(*words, reached=HERE):
    return join_address.browser_access(settings(*words), reached)


def test_nobody_comes_in_unless_it_is_asked_for():
    assert settings().http is None
    assert opened("--http", "8080") is None


def test_web_alone_is_for_browsers_of_this_machine():
    server = settings("--web")
    assert (server.http.host, server.http.port) == ("127.0.0.1", 8080)
    access = opened("--web")
    assert (access.reached, access.passes_on) == (HERE, True)
    assert access.page("http://127.0.0.1:8080") == "http://127.0.0.1:8080/join/"
    assert (access.site, access.writable) == (None, False)


def test_an_enrolment_brings_broker_certificate_and_the_right_to_make_links(enrolment):
    folder = enrolment()
    words = ("--web", "--enrolment", folder, "--http", "192.0.2.7:8443")
    http = settings(*words).http
    assert (http.cert, http.key) == (folder / "server.pem", folder / "server.key")
    access = opened(*words, reached=SECURE)
    assert (access.passes_on, access.writable) == (True, True)
    assert access.page("https://192.0.2.7:8443") == "https://192.0.2.7:8443/join/"
    assert settings("--enrolment", folder).http is None


def test_where_http_listens_everywhere_the_page_is_at_the_host_that_devices_know(enrolment):
    folder = enrolment(8884, "fl.example.org", "192.0.2.7")
    access = opened("--web", "--enrolment", folder, "--http", "0.0.0.0:8443", reached=SECURE)
    assert access.page("https://0.0.0.0:8443") == "https://fl.example.org:8443/join/"


def test_a_broker_of_one_s_own_and_an_address_in_front_are_named_in_the_file(tmp_path, enrolment):
    file = tmp_path / "server.toml"
    file.write_text(
        '[web]\naddress = "https://fl.example.org/"\n'
        'broker = "wss://fl.example.org/mqtt"\nlink_minutes = 60\n'
        f'[broker]\nenrolment = "{enrolment()}"'
    )
    server = config.load(file, {})
    access = join_address.browser_access(server, SECURE)
    assert (access.broker, access.passes_on) == ("wss://fl.example.org:443/mqtt", False)
    assert (access.page("http://127.0.0.1:8080"), access.link_s) == ("https://fl.example.org/join/", 3600)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[web]\nlink_minutes = 0", "web.link_minutes: expected `float` > 0"),
        ("[web]\npage = 1", "web.page: there is no such key; there are address, broker, link_minutes"),
        ('[web]\naddress = "fl.example.org"', "web.address = fl.example.org: expected https://host"),
        ('[web]\naddress = "https://x/#y"', "expected https://host, with a port or a path"),
        ("web = true", "web: expected a table"),
        ('[web]\n[http]\nhost = "192.0.2.7"', "would send the token over the network in the clear"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path, text, message):
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r".") as caught:
        config.load(file, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--insecure", "--http", "192.0.2.7:80"),
            "open to this machine alone: set one up by",
        ),
        (("--insecure", "--http", "0.0.0.0:80"), "web.address: expected how browsers reach us"),
    ],
)
def test_what_no_browser_could_reach_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        opened("--web", *words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("web", "message"),
    [
        ('broker = "mqtts://fl.example.org"', "expected ws:// or wss://"),
        ('broker = "ws://fl.example.org/mqtt"', "would send passwords and updates over the network"),
        ('address = "https://fl.example.org"', "but the broker is open to this machine alone"),
        (
            'address = "https://f.org"\nbroker = "ws://127.0.0.1:9001/m"',
            "is this machine only, and the page is offered at https://f.org",
        ),
        ('address = "http://f.org"\nbroker = "wss://f.org/m"', "a browser computes for pages over https://"),
    ],
)
def test_what_no_browser_would_speak_to_is_refused(tmp_path, web, message):
    file = tmp_path / "server.toml"
    file.write_text(f"[web]\n{web}\n")
    with pytest.raises(ConfigError) as caught:
        join_address.browser_access(config.load(file, {}), HERE)
    assert message in str(caught.value)


def test_a_page_over_https_speaks_to_no_broker_in_the_clear(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('[web]\naddress = "https://f.org"\nbroker = "ws://f.org/m"\n[broker]\ninsecure = true\n')
    with pytest.raises(ConfigError, match="may speak to wss:// only"):
        join_address.browser_access(config.load(file, {}), HERE)


def test_where_we_reach_the_broker_over_web_sockets_so_do_pages():
    access = opened("--web", reached=BrokerUrl("127.0.0.1", 9001, path="/mqtt"))
    assert (access.broker, access.passes_on) == ("ws://127.0.0.1:9001/mqtt", False)


def test_an_enrolment_needs_no_web_sockets_of_the_broker(enrolment):
    access = opened("--web", "--enrolment", enrolment(0), "--http", "192.0.2.7:8443", reached=SECURE)
    join_address.join_text(access, "https://192.0.2.7:8443", None)
    _, secret = links.make(access.site, NOW.timestamp(), 900)
    phone = links.use(access.site, links.LinkRequest(secret, "c" * 43), NOW.timestamp())
    assert phone.url == "mqtts://192.0.2.7:8883"


def test_at_the_start_a_terminal_is_told_a_link_and_a_log_is_not(enrolment):
    folder = enrolment()
    access = opened("--web", "--enrolment", folder, "--http", "192.0.2.7:8443", reached=SECURE)
    listens = "https://192.0.2.7:8443"
    logged = join_address.join_text(access, listens, None)
    by = "by one-time links of the dashboard or of `device-runtime device link`"
    assert logged == f"browsers join at {listens}/join/, {by}"
    assert link_book.read_links(access.site).links == ()
    assert link_book.read_links(access.site).page == f"{listens}/join/"
    lines = join_address.join_text(access, listens, Reader(NOW.timestamp(), terminal=True)).splitlines()
    address = lines[1].rpartition(" ")[2]
    assert address.startswith(f"{listens}/join/#link=")
    assert lines[1].startswith("  one of them, in the next 15 minutes, by")
    assert len(lines) > 15  # the QR code
    [link] = link_book.read_links(access.site).links
    assert link.ends - link.made == 900
    plain = join_address.join_text(access, listens, Reader(NOW.timestamp(), terminal=False))
    assert len(plain.splitlines()) == 2


def test_an_open_broker_needs_no_link_and_without_the_folder_s_files_none_is_made(enrolment):
    assert join_address.join_text(opened("--web"), "http://127.0.0.1:1", Reader(0, True)) == (
        "browsers join at http://127.0.0.1:1/join/"
    )
    folder = enrolment()
    (folder / "passwords").unlink()
    access = opened("--web", "--enrolment", folder, "--http", "192.0.2.7:8443", reached=SECURE)
    text = join_address.join_text(access, "https://192.0.2.7:8443", Reader(0, True))
    assert "device add NAME`, as https://192.0.2.7:8443/join/#TOKEN" in text


def test_plain_http_over_a_network_is_refused_and_with_insecure_said_aloud(enrolment):
    folder = enrolment()
    with pytest.raises(ConfigError, match="in the clear"):
        settings("--web", "--http", "192.0.2.7:8443")
    words = ("--web", "--enrolment", folder, "--http", "192.0.2.7:8080", "--insecure")
    assert settings(*words).http.cert is None
    text = join_address.join_text(opened(*words, reached=SECURE), "http://192.0.2.7:8080", None)
    assert "insecure: links and tokens go over the network in the clear" in text
