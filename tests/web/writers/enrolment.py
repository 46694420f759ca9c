"""Tokens as Python writes them, and what it refuses."""

import base64
import hashlib
from typing import Any

import msgspec

from device_runtime.broker.security.enrolment import PREFIX, TOKEN_LIMIT, Enrolment, EnrolmentError

KEY = bytes(range(32))
AUTHORITY = bytes(range(200))
OWN = bytes(range(100, 132))
WHOLE = Enrolment(
    "wss://broker.example:8884/mqtt", "phone-7", "a/b#c?d@é:", AUTHORITY, KEY, 1_800_000_000, OWN
)
TOKENS = {
    "over WebSockets": WHOLE,
    "without a key of its own": Enrolment("mqtts://10.0.0.7", "pi", "secret", b"\x30\x82", KEY, 0),
}


def token_of(fields: Any) -> str:
    data = msgspec.msgpack.encode(fields)
    return PREFIX + base64.urlsafe_b64encode(data + hashlib.sha256(data).digest()[:4]).decode().rstrip("=")


FIELDS = [WHOLE.url, WHOLE.name, WHOLE.password, AUTHORITY, KEY, 5]


def changed(at: int, value: Any) -> str:
    return token_of([*FIELDS[:at], value, *FIELDS[at + 1 :]])


REFUSED = {
    "of another form": "fl2." + WHOLE.token[4:],
    "nothing": "",
    "the beginning alone": PREFIX,
    "too long": PREFIX + "A" * TOKEN_LIMIT,
    "cut": WHOLE.token[:-1],
    "mistyped": WHOLE.token.replace("A", "B", 1),
    "not encrypted": changed(0, "ws://broker.example/mqtt"),
    "no broker": changed(0, "https://broker.example"),
    "another name": changed(1, "phone 7"),
    "a short key": changed(4, KEY[:31]),
    "a short key of its own": token_of([*FIELDS, OWN[:31]]),
    "a number too few": token_of(FIELDS[:5]),
    "no array": token_of({"url": WHOLE.url}),
    "a number for a name": changed(1, 7),
}


def refused(token: str) -> str:
    try:
        Enrolment.of_token(token)
    except EnrolmentError as error:
        return str(error)
    raise AssertionError(f"{token} is read")


def vectors() -> dict[str, Any]:
    earlier = token_of(FIELDS)  # as an earlier version wrote it
    assert not Enrolment.of_token(earlier).secret
    return {
        "earlier": earlier,
        "tokens": [
            {
                "of": of,
                "token": enrolment.token,
                "name": enrolment.name,
                "client_id": enrolment.client_id,
                "url": str(enrolment.address),
                "password": enrolment.address.password,
                "authority": enrolment.address.tls.authority,
                "key": enrolment.key,
                "issued": enrolment.issued,
                "secret": enrolment.secret,
            }
            for of, enrolment in TOKENS.items()
        ],
        "refused": [{"of": of, "token": token, "python": refused(token)} for of, token in REFUSED.items()],
        "secret": WHOLE.password,
    }
