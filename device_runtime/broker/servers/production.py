"""Sets up a broker for production: certificates, credentials, Mosquitto's configuration.

Its certificate authority is of its own (X.509, curve P-256).
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire.durable_files import private_folder, sync_folder

from .broker_folder import (
    ACCESS,
    AGGREGATOR_KEY,
    AGGREGATOR_PASSWORD,
    CA,
    CA_KEY,
    CONFIGURATION,
    DATA,
    DEVICES,
    PASSWORDS,
    PID,
    SERVER,
    SERVER_KEY,
    SITE,
    BrokerFolder,
    BrokerSetup,
    SetupError,
    write,
)
from .mosquitto import CONNECTIONS, LIMITS, access_list, hash_passwords
from .server import BrokerOptions

EARLY = timedelta(days=1)
"""Certificates are valid from this long before now, because clocks of devices may be slow."""
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


class AuthorityError(BrokerError):
    """A certificate that cannot be made: an invalid host name, or a damaged file of the authority."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM texts. `until`: when it expires."""

    certificate: str
    key: str
    until: datetime


def make_authority(name: str, now: datetime, days: int, hosts: Sequence[str] = ()) -> Pair:
    """Make an authority that signs brokers' certificates and nothing else. Newer Pythons need its key usage.

    With `hosts`, its certificates for other hosts are invalid (name constraints, RFC 5280, 4.2.1.10): an
    owner who installs it on a phone does not trust the holder of its key with every site. Raises
    AuthorityError for an invalid host name.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    unsigned = (
        _dated(now, days)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if hosts:
        permitted = [_constraint(host) for host in hosts]
        unsigned = unsigned.add_extension(x509.NameConstraints(permitted, None), critical=True)
    return _signed(unsigned, key, key)


def issue(authority: Pair | tuple[str, str], names: Sequence[str], now: datetime, days: int) -> Pair:
    """Issue a broker's certificate for these host names and IP addresses; the first is its subject.

    `authority` may be given as its two PEM texts. Raises AuthorityError.
    """
    texts = (authority.certificate, authority.key) if isinstance(authority, Pair) else authority
    return _issued(texts, ec.generate_private_key(ec.SECP256R1()), names, _dated(now, days))


def renewed_pair(
    authority: tuple[str, str], key: str, names: Sequence[str], valid: tuple[datetime, int]
) -> Pair:
    """Issue a new certificate for a broker's key (PEM). `valid`: the present time, and for how many days.

    Raises AuthorityError.
    """
    return _issued(authority, _key(key, "broker"), names, _dated(*valid))


def _issued(
    texts: tuple[str, str],
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    dated: x509.CertificateBuilder,
) -> Pair:
    try:
        ours = x509.load_pem_x509_certificate(texts[0].encode())
    except ValueError as error:
        raise AuthorityError(f"the authority's certificate cannot be read: {error}") from None
    signing = _key(texts[1], "authority")
    alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    unsigned = (
        dated.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _subject(names[0]))]))
        .issuer_name(ours.subject)
        .public_key(key.public_key())
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _signed(unsigned, key, signing)


def _key(text: str, whose: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"the {whose}'s key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthorityError(f"the {whose}'s key is not on an elliptic curve")
    return key


def _dated(now: datetime, days: int) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLY).not_valid_after(now + timedelta(days=days))


def _signed(
    unsigned: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey
) -> Pair:
    certificate = unsigned.sign(by, hashes.SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    until = certificate.not_valid_after_utc
    return Pair(certificate.public_bytes(Encoding.PEM).decode(), secret.decode(), until)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        raise AuthorityError(
            f"{name!r} cannot stand in a certificate: give host names in ASCII or IP addresses, "
            "without scheme and port"
        )
    return x509.DNSName(name)


def _subject(name: str) -> str:
    """The subject; an address is worded so that it does not look like a host name outside the constraints."""
    return f"broker at {name}" if isinstance(_name(name), x509.IPAddress) else name[:64]


def _constraint(host: str) -> x509.GeneralName:
    """A constraint to this address, or to this name and the names below it."""
    name = _name(host)
    if isinstance(name, x509.IPAddress):
        return x509.IPAddress(ipaddress.ip_network(name.value))
    return x509.DNSName(host.removeprefix("*."))


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


CA_DAYS = 3650
SERVER_DAYS = 825
"""Days that a broker's certificate is valid: the most that some platforms accept."""
AUTOSAVE_S = 60
"""Seconds between saves of retained messages; aggregators publish them again if they are lost."""
KEEPALIVE_S = 300
"""The longest keep-alive of a client, in seconds; this project's clients use 30.

The broker refuses a client with a longer one (MQTT 3.1.1), or gives it this one (MQTT 5).
"""
BEGUN = ".begun"
"""A file that exists while a folder is being made: until it is gone, the keys beside it are in no use."""
_PUBLIC = (CA, SERVER, SITE, CONFIGURATION, ACCESS)
_FOR_MOSQUITTO = (CA, SERVER, SERVER_KEY, CONFIGURATION, ACCESS, PASSWORDS, DATA)


def init_broker(folder: Path, site: BrokerSetup, now: datetime, days: int = SERVER_DAYS) -> BrokerFolder:
    """Make everything that a broker needs. `days`: how long the broker's certificate is valid.

    After a failure half-way it may be called again. Raises SetupError when files of a broker exist already,
    AuthorityError for an invalid host name.
    """
    folder = folder.resolve()
    _check(folder, site)
    ours = make_authority("device-runtime", now, CA_DAYS, site.names)
    server = issue(ours, site.names, now, days)
    password = secrets.token_urlsafe(24)
    options = BrokerOptions(users={site.aggregator: password}, aggregator=site.aggregator)
    texts = {
        CA: ours.certificate,
        CA_KEY: ours.key,
        SERVER: server.certificate,
        SERVER_KEY: server.key,
        AGGREGATOR_PASSWORD: password + "\n",
        PASSWORDS: hash_passwords(options),
        ACCESS: access_list(options),
        CONFIGURATION: configure(site, folder),
        DEVICES: "[]\n",
        SITE: msgspec.json.format(msgspec.json.encode(site)).decode() + "\n",
    }
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write(folder / BEGUN, "")
        private_folder(folder / DATA)
    except OSError as error:
        raise SetupError(f"cannot make {folder}: {error.strerror or error}") from None
    for name, text in texts.items():
        write(folder / name, text, 0o644 if name in _PUBLIC else 0o600)
    opened = BrokerFolder(folder)
    _ = opened.signer
    _hand_over(folder, site.run_as)
    _end(folder)
    return opened


def renew(opened: BrokerFolder, now: datetime, days: int = SERVER_DAYS) -> datetime:
    """Renew the broker's certificate, with the same key and authority. Returns when it expires.

    Devices notice nothing. Only one file changes, so that certificate and key always fit each other. Raises
    SetupError, AuthorityError.
    """
    signing, key = (opened.read(CA), opened.read(CA_KEY)), opened.read(SERVER_KEY)
    pair = renewed_pair(signing, key, opened.site.names, (now, days))
    write(opened.folder / SERVER, pair.certificate, 0o644)
    return pair.until


def upgrade(opened: BrokerFolder) -> tuple[str, ...]:
    """Update the configuration and the access list of a folder that an older version made.

    They become as `init_broker` writes them now; the old files are kept as NAME.old. Returns the names of
    the files that changed. Raises SetupError.
    """
    options = BrokerOptions(users={opened.site.aggregator: "x"}, aggregator=opened.site.aggregator)
    texts = {CONFIGURATION: configure(opened.site, opened.folder), ACCESS: access_list(options)}
    changed = tuple(name for name, text in texts.items() if opened.read(name) != text)
    for name in changed:
        write(opened.folder / f"{name}.old", opened.read(name), 0o644)
        write(opened.folder / name, texts[name], 0o644)
    return changed


def configure(site: BrokerSetup, folder: Path) -> str:
    """The text of mosquitto.conf for a production broker."""
    lines = [
        "# Written by `device-runtime broker init`. Mosquitto reads it at its start; passwords, the access",
        "# list and certificates also at SIGHUP.",
        "per_listener_settings false",
        *_listener(site.port, site, folder),
    ]
    if site.websockets:
        lines += [*_listener(site.websockets, site, folder), "protocol websockets"]
    lines += [
        "",
        "allow_anonymous false",
        f"password_file {folder / PASSWORDS}",
        f"acl_file {folder / ACCESS}",
        "",
        *LIMITS,
        f"max_keepalive {KEEPALIVE_S}",
        "",
        "persistence true",
        f"persistence_location {folder / DATA}/",
        f"autosave_interval {AUTOSAVE_S}",
        f"pid_file {folder / DATA / PID}",
        "log_dest stderr",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
    ]
    if site.run_as:
        lines.append(f"user {site.run_as}")
    return "\n".join(lines) + "\n"


def _listener(port: int, site: BrokerSetup, folder: Path) -> Iterator[str]:
    yield ""
    yield f"listener {port} {site.listen}".rstrip()
    yield f"max_connections {CONNECTIONS}"
    yield f"certfile {folder / SERVER}"
    yield f"keyfile {folder / SERVER_KEY}"
    yield "tls_version tlsv1.2"


def _check(folder: Path, site: BrokerSetup) -> None:
    """Raise SetupError when the folder is taken, or a setting is invalid."""
    ours = (*_FOR_MOSQUITTO, CA_KEY, SITE, DEVICES, AGGREGATOR_KEY, AGGREGATOR_PASSWORD)
    names = [name for name in ours if (folder / name).exists()]
    if names and not (folder / BEGUN).exists():
        raise SetupError(
            f"{folder} has {', '.join(names)} already, which is never written over: give another"
        )
    if any(letter in str(folder) for letter in "\n\r#"):
        raise SetupError(f"{folder}: a path with '#' or line ends cannot stand in Mosquitto's configuration")
    if any(letter.isspace() or letter == "#" for letter in site.listen + site.run_as):
        raise SetupError(
            f"{site.listen!r}, {site.run_as!r}: an address or a user's name has no spaces and no '#'"
        )
    for port in (site.port, site.websockets):
        if not 0 <= port < 65536 or (port == site.websockets == site.port):
            raise SetupError(f"ports {site.port} and {site.websockets}: give two different ones up to 65535")
    if site.run_as and os.geteuid() == 0:
        try:
            pwd.getpwnam(site.run_as)
        except KeyError:
            raise SetupError(f"no user of this machine is called {site.run_as!r}") from None


def _end(folder: Path) -> None:
    """Mark the folder as complete: from here on nothing in it is overwritten."""
    try:
        (folder / BEGUN).unlink()
        sync_folder(folder)
    except OSError as error:
        raise SetupError(f"cannot write {folder}: {error.strerror or error}") from None


def _hand_over(folder: Path, user: str) -> None:
    """As root, make Mosquitto's user the owner of the files that Mosquitto reads."""
    if not user or os.geteuid() != 0:
        return
    owner = pwd.getpwnam(user)
    try:
        for name in _FOR_MOSQUITTO:
            os.chown(folder / name, owner.pw_uid, owner.pw_gid)
    except OSError as error:
        raise SetupError(f"cannot give {folder} to {user!r}: {error.strerror or error}") from None
