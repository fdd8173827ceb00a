"""Checks of what a client is made with.

A wrong setting is an error when the client is made, and the error names it. Otherwise the first request would fail, and
an order would be repeated for minutes although it can never arrive. No error quotes a value, because it may be a secret.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable

import httpx

#: ``threading`` and ``asyncio`` can wait longer, but some platforms count the milliseconds in 32 bits.
LONGEST = 2_000_000.0


def visible(name: str, value: object) -> str:
    """Text that can stand in a header: visible ASCII."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is missing: it has to be a text that is not empty")
    for position, character in enumerate(value):
        if not "!" <= character <= "~":
            raise ValueError(
                f"{name} has a character other than visible ASCII at position {position} of {len(value)}, such as a "
                "space, a line break or a letter with an accent: use it exactly as you got it"
            )
    return value


def decoded(name: str, value: object) -> bytes:
    """The bytes of Base64 text."""
    text = visible(name, value)
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    # Python also decodes text with too much padding, which the service does not give out.
    if not key or base64.b64encode(key).decode() != text:
        raise ValueError(f"{name} is not Base64 text: use it exactly as you got it")
    return key


def webhook_key(value: object) -> bytes:
    """The key of a webhook secret. Without ``whsec_`` it would be another key of the account, with which every webhook
    would look forged."""
    text = visible("the webhook secret", value)
    if not text.startswith("whsec_"):
        raise ValueError("the webhook secret does not begin with whsec_: use it exactly as you got it")
    return decoded("the webhook secret", text.removeprefix("whsec_"))


def public_key(value: object) -> Callable[[bytes, bytes], bool]:
    """What says whether a signature of a text is that of a public key (``whpk_…``)."""
    bytes_ = decoded("the public key", visible("the public key", value).removeprefix("whpk_"))
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ValueError("a public key (whpk_…) needs the package cryptography: install esim-partner[ed25519]") from error
    if len(bytes_) != 32:
        raise ValueError("the public key has not 32 bytes: use it exactly as you got it")
    key = Ed25519PublicKey.from_public_bytes(bytes_)

    def matches(signature: bytes, signed: bytes) -> bool:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return matches


def brand(value: object) -> str:
    """A part of a header's name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", value):
        raise ValueError("brand is not a part of a header's name: it has letters, digits and single hyphens, such as Acme")
    return value


def base_url(value: object) -> str:
    """The URL of the service, without a slash at its end."""
    hint = "use it as you got it, such as https://esim.example.com"
    text = visible("base_url", value)
    if not text.startswith(("https://", "http://")):
        raise ValueError(f"base_url does not begin with https:// or http://: {hint}")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"base_url is not a URL: {hint}") from error
    if not url.host or not 0 < (url.port or 443) < 65536 or url.userinfo or url.query or url.fragment or "?" in text or "#" in text:
        raise ValueError(f"base_url may have a host, a port and a path, but no user name, query or fragment: {hint}")
    return text.rstrip("/")


def seconds(name: str, value: object, *, zero: bool = False) -> float:
    """A time that one can wait for."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not a number of seconds")
    if not math.isfinite(value) or value > LONGEST or value < 0 or (value == 0 and not zero):
        smallest = "at least 0" if zero else "more than 0"
        raise ValueError(f"{name} has to be {smallest} and at most {LONGEST:.0f} seconds")
    return float(value)
