"""Verifies webhooks, which are signed as Standard Webhooks describes it."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidWebhook
from .generated.models import Esim, KeyExpiring, TopupFailed, WebhookTest

EVENTS: dict[str, type[KeyExpiring] | type[TopupFailed] | type[WebhookTest]] = {
    "key.expiring": KeyExpiring,
    "topup.failed": TopupFailed,
    "webhook.test": WebhookTest,
}

Content = Esim | KeyExpiring | TopupFailed | WebhookTest | dict[str, Any]


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
    """Verifies webhooks against one or several secrets (``whsec_…``).

    Give it the new and the old secret while you change your programs. ``tolerance`` is how many seconds the timestamp
    may be before or after our time; without this check a recorded webhook could be sent to you again.
    """

    def __init__(self, *secrets: str, tolerance: int = 300) -> None:
        if not secrets:
            raise ValueError("at least one webhook secret is needed")
        self._keys = [_key(secret) for secret in secrets]
        self._tolerance = tolerance

    def verify(self, body: bytes, headers: Mapping[str, str], *, now: float | None = None) -> Webhook:
        """Returns the webhook, or raises :class:`InvalidWebhook`; answer with a 401 then.

        ``body`` has to be the bytes as they arrived. Verify a webhook when it arrives, because its timestamp is too
        old later.
        """
        given = {name.lower(): value for name, value in headers.items()}
        webhook_id, timestamp, signatures = (
            given.get(name, "") for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
        )
        if not (webhook_id and timestamp and signatures):
            raise InvalidWebhook("a header is missing: webhook-id, webhook-timestamp or webhook-signature")
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            raise InvalidWebhook("webhook-timestamp is not a Unix time")
        if not self._matches(f"{webhook_id}.{timestamp}.".encode() + body, signatures):
            raise InvalidWebhook("no signature matches: it is signed with another secret, or it was changed")
        if abs((time.time() if now is None else now) - int(timestamp)) > self._tolerance:
            raise InvalidWebhook("webhook-timestamp is too far from the current time: it may be a repeated recording")
        return Webhook(webhook_id, int(timestamp), _content(body))

    def _matches(self, signed: bytes, signatures: str) -> bool:
        expected = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in self._keys]
        matches = False
        # All pairs are compared, each in constant time, so that the time tells nothing about a signature.
        for signature in signatures.split(" "):
            version, _, value = signature.partition(",")
            for one in expected:
                matches |= hmac.compare_digest(value.encode(), one) and version == "v1"
        return matches


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise ValueError("a webhook secret is whsec_ and Base64 text: use it exactly as you got it")
    return key


def _content(body: bytes) -> Content:
    try:
        parsed = json.loads(body)
        if not isinstance(parsed, dict):
            raise InvalidWebhook("the body is not a JSON object")
        # The signature covers the body and not the header webhook-type, so the body decides.
        if "type" not in parsed or "data" not in parsed:
            return Esim.from_dict(parsed)
        event = EVENTS.get(parsed["type"])
        return event.from_dict(parsed) if event else parsed
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidWebhook("the body does not have the form of a webhook") from error
