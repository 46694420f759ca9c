"""Makes a certificate authority for brokers, and signs their certificates (X.509, curve P-256)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

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


def renew(authority: tuple[str, str], key: str, names: Sequence[str], valid: tuple[datetime, int]) -> Pair:
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
