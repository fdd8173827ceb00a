"""Verifies webhooks, which are signed as Standard Webhooks describes it."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import settings
from .errors import InvalidWebhook
from .generated.events import EVENTS, Event
from .generated.models import Esim

#: The nine fields of the webhook of an eSIM.
FIELDS = (
    "topup_id", "option_id", "iccid", "smdp", "activate_code", "download_link", "qrcode_img_url", "expired_date",
    "external_order_id",
)  # fmt: skip

Content = Esim | Event | dict[str, Any]


@dataclass(frozen=True)
class Webhook:
    """A webhook whose signature is valid."""

    #: The same in every attempt, so remember it to recognise a repeat. For an eSIM it is the ``topup_id``.
    id: str
    #: The Unix time of this attempt.
    timestamp: int
    #: An eSIM, a further event, or the plain body of an event of a type that this version does not know. It is not
    #: part of ``repr``, because the fields of an eSIM let anyone install it and must not be logged.
    content: Content = field(repr=False)


class WebhookVerifier:
    """Verifies webhooks against one or several secrets (``whsec_…``), or public keys of the service (``whpk_…``).

    Give it the new and the old secret while you change your programs. A webhook is valid if one of all matches. Public
    keys need the package ``cryptography`` (``esim-partner[ed25519]``). ``tolerance`` is how many seconds the timestamp
    may be before or after our time; without this check a recorded webhook could be sent to you again. A secret that is
    none is a ``ValueError`` here, and not a webhook that looks forged later.
    """

    def __init__(self, *secrets: str, tolerance: float = 300) -> None:
        if not secrets:
            raise ValueError("the webhook secret is missing: at least one is needed")
        public = [secret for secret in secrets if isinstance(secret, str) and secret.startswith("whpk_")]
        self._keys = [settings.webhook_key(secret) for secret in secrets if secret not in public]
        self._public_keys = [settings.public_key(key) for key in public]
        self._tolerance = settings.seconds("tolerance", tolerance, zero=True)

    def verify(self, body: bytes | str, headers: Mapping[str, str], *, now: float | None = None) -> Webhook:
        """Returns the webhook, or raises :class:`InvalidWebhook`; answer with a 401 then. It raises nothing else,
        whatever was sent to you.

        ``body`` has to be the bytes as they arrived. Verify a webhook when it arrives, because its timestamp is too
        old later.
        """
        try:
            return self._verified(body, headers, time.time() if now is None else now)
        except InvalidWebhook:
            raise
        except Exception as error:  # nobody may cause a 500 by what he sends
            raise InvalidWebhook(f"it cannot be read as a webhook: {type(error).__name__}") from None

    def _verified(self, body: bytes | str, headers: Mapping[str, str], now: float) -> Webhook:
        raw = _bytes(body)
        given = {name.lower(): value for name, value in headers.items()}
        webhook_id, timestamp, signatures = (
            given.get(name, "") for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
        )
        if not (webhook_id and timestamp and signatures):
            raise InvalidWebhook("a header is missing: webhook-id, webhook-timestamp or webhook-signature")
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            raise InvalidWebhook("webhook-timestamp is not a Unix time")
        if not self._matches(_bytes(f"{webhook_id}.{timestamp}.") + raw, signatures):
            raise InvalidWebhook("no signature matches: it is signed with another secret, or it was changed")
        if abs(now - int(timestamp)) > self._tolerance:
            raise InvalidWebhook("webhook-timestamp is too far from the current time: it may be a repeated recording")
        return Webhook(webhook_id, int(timestamp), _content(raw))

    def _matches(self, signed: bytes, signatures: str) -> bool:
        expected = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in self._keys]
        matches = False
        # All pairs are compared, each in constant time, so that the time tells nothing about a signature.
        for signature in signatures.split(" "):
            version, _, value = signature.partition(",")
            for one in expected:
                matches |= hmac.compare_digest(_bytes(value), one) and version == "v1"
            if version == "v1a":
                matches |= any(matches_key(_base64(value), signed) for matches_key in self._public_keys)
        return matches


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _bytes(text: bytes | str) -> bytes:
    """Web servers that hand bytes on as text may put half of a surrogate pair for each of them."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _content(body: bytes) -> Content:
    try:
        parsed = json.loads(body)
        if not isinstance(parsed, dict):
            raise InvalidWebhook("the body is not a JSON object")
        # The signature covers the body and not the header webhook-type, so the body decides.
        if "type" not in parsed or "data" not in parsed:
            if not all(isinstance(parsed[name], str) for name in FIELDS):
                raise TypeError
            return Esim.from_dict(parsed)
        event = EVENTS.get(parsed["type"])
        return event.from_dict(parsed) if event else parsed
    except InvalidWebhook:
        raise
    except Exception:  # whatever the generated code makes of values that it does not expect
        # An error of the parser would quote the body, which may hold an activation code.
        raise InvalidWebhook("the body does not have the form of a webhook") from None
