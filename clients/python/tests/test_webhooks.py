"""Webhooks: the guide's test vector, and each way in which a webhook can be wrong."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any, cast

import pytest
from esim_partner import Esim, InvalidWebhook, KeyExpiring, TopupFailed, WebhookTest, WebhookVerifier
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook as StandardWebhook
from vectors import vector

NEW, OLD, OTHER = (f"whsec_{base64.b64encode(bytes([one]) * 24).decode()}" for one in (1, 2, 3))
ESIM = {
    "topup_id": "20250129123456123456789012",
    "option_id": "424b7b26-96e7-5c95-8df9-6654a3998070",
    "iccid": "8982123456789012345",
    "smdp": "smdp.example.com",
    "activate_code": "A1B2C3D4E5F60718",
    "download_link": "LPA:1$smdp.example.com$A1B2C3D4E5F60718",
    "qrcode_img_url": "https://esim.example.com/qr/x/300",
    "expired_date": "2026-12-20",
    "external_order_id": "A-1042 ü",
}
EVENT = {
    "type": "key.expiring",
    "timestamp": "2026-11-22T04:00:00Z",
    "data": {"credential": "keys", "ends_at": "2026-11-22T10:00:00Z"},
}


def signature(secret: str, webhook_id: str, timestamp: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def webhook(content: object, *secrets: str, timestamp: int | None = None) -> tuple[bytes, dict[str, str]]:
    body = json.dumps(content, ensure_ascii=False).encode()
    now = int(time.time()) if timestamp is None else timestamp
    signatures = " ".join(signature(secret, "evt_1", now, body) for secret in secrets)
    return body, {"Webhook-Id": "evt_1", "Webhook-Timestamp": str(now), "WEBHOOK-SIGNATURE": signatures}


def test_the_guides_vector() -> None:
    given = vector("webhook")
    headers = {name: given[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
    verifier = WebhookVerifier(given["webhook secret"])
    # Its body has only one of the nine fields, so the signature is accepted and the content is not.
    with pytest.raises(InvalidWebhook, match="form of a webhook"):
        verifier.verify(given["body"].encode(), headers, now=1700000000)
    with pytest.raises(InvalidWebhook, match="no signature matches"):
        verifier.verify(given["body"].encode() + b" ", headers, now=1700000000)


def test_a_public_key_verifies_without_a_secret() -> None:
    given = vector("public key")
    headers = {name: given[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
    body = given["body"].encode()
    for keys in ([given["public key"]], [OTHER, given["public key"]], [f"whpk_{base64.b64encode(bytes([7]) * 32).decode()}", given["public key"]]):
        # Its body has only one of the nine fields, so the signature is accepted and the content is not.
        with pytest.raises(InvalidWebhook, match="form of a webhook"):
            WebhookVerifier(*keys).verify(body, headers, now=1700000000)
    verifier = WebhookVerifier(given["public key"])
    by_key = headers["webhook-signature"].split(" ")[1]
    for changed, signatures in (
        (body + b" ", headers["webhook-signature"]),
        (body, headers["webhook-signature"].split(" ")[0]),
        (body, by_key.replace("v1a,", "v1,")),
        (body, "v1a,"),
        (body, "v1a,\xe4"),
        (body, by_key[:-8]),
    ):
        with pytest.raises(InvalidWebhook, match="no signature matches"):
            verifier.verify(changed, {**headers, "webhook-signature": signatures}, now=1700000000)
    for wrong in ("whpk_", "whpk_AAAA", "whpk_!"):
        with pytest.raises(ValueError, match="public key"):
            WebhookVerifier(wrong)
    # A library that does not know public keys leaves their signatures aside.
    body, headers = webhook(ESIM, NEW)
    beside = {name.lower(): value for name, value in headers.items()}
    beside["webhook-signature"] = f"{by_key} {beside['webhook-signature']}"
    assert StandardWebhook(NEW).verify(body, beside)


def test_an_esim_is_read_and_its_code_not_shown() -> None:
    body, headers = webhook({**ESIM, "added_later": 1}, NEW)
    received = WebhookVerifier(NEW).verify(body, headers)
    assert isinstance(received.content, Esim)
    assert received.content.external_order_id == "A-1042 ü"
    assert (received.id, received.timestamp) == ("evt_1", int(headers["Webhook-Timestamp"]))
    assert "A1B2C3D4E5F60718" not in repr(received)
    # The library of the standard agrees.
    assert StandardWebhook(NEW).verify(body, {name.lower(): value for name, value in headers.items()})


def test_events_are_read_also_unknown_ones() -> None:
    verifier = WebhookVerifier(NEW)
    known = verifier.verify(*webhook(EVENT, NEW)).content
    assert isinstance(known, KeyExpiring) and known.data.credential == "keys"
    unknown = {"type": "order.sung", "data": {"verse": 1}}
    assert verifier.verify(*webhook(unknown, NEW)).content == unknown


@pytest.mark.parametrize(
    ("secrets", "signed_with"), [([NEW, OLD], [NEW]), ([NEW, OLD], [OLD]), ([OLD], [NEW, OLD]), ([NEW], [NEW, OLD])]
)
def test_one_matching_secret_is_enough(secrets: list[str], signed_with: list[str]) -> None:
    assert WebhookVerifier(*secrets).verify(*webhook(ESIM, *signed_with))


def test_the_tolerance_is_counted_in_both_directions() -> None:
    body, headers = webhook(ESIM, NEW, timestamp=1700000000)
    for off in (-300, 0, 300):
        assert WebhookVerifier(NEW).verify(body, headers, now=1700000000 + off)
    for off in (-301, 301):
        with pytest.raises(InvalidWebhook, match="too far"):
            WebhookVerifier(NEW).verify(body, headers, now=1700000000 + off)
    assert WebhookVerifier(NEW, tolerance=3600).verify(body, headers, now=1700000301)


def test_what_is_not_from_the_service_is_refused() -> None:
    verifier = WebhookVerifier(NEW, OLD)
    body, headers = webhook(ESIM, OTHER)
    with pytest.raises(InvalidWebhook, match="no signature"):
        verifier.verify(body, headers)
    body, headers = webhook(ESIM, NEW)
    good = headers["WEBHOOK-SIGNATURE"]
    for bad in ["v1", "v1,", good[3:], good.replace("v1,", "v2,"), good.replace("v1,", "v1a,"), good + "x", "ä"]:
        with pytest.raises(InvalidWebhook, match="no signature"):
            verifier.verify(body, {**headers, "WEBHOOK-SIGNATURE": bad})
    with pytest.raises(InvalidWebhook, match="no signature"):
        verifier.verify(body, {**headers, "Webhook-Id": "evt_2"})
    for name in headers:
        with pytest.raises(InvalidWebhook, match="header is missing"):
            verifier.verify(body, {other: value for other, value in headers.items() if other != name})
    for bad in ["soon", "-1", "1.5", "²", "1" * 13]:
        with pytest.raises(InvalidWebhook, match="not a Unix time"):
            verifier.verify(body, {**headers, "Webhook-Timestamp": bad})
    oddities: list[object] = [[], "text", None, {"type": []}]
    for odd in oddities:
        with pytest.raises(InvalidWebhook):
            verifier.verify(*webhook(odd, NEW))


ODD_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "data", "topup_id", "x"]), inner),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, database=None)
@given(
    body=st.binary(max_size=80) | ODD_TEXT,
    values=st.fixed_dictionaries({}, optional={name: ODD_TEXT for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}),
)
def test_whatever_is_sent_raises_nothing_but_invalid_webhook(body: bytes | str, values: dict[str, str]) -> None:
    """Row 16: a signature with half of a surrogate pair raised UnicodeEncodeError, so anybody could cause a 500."""
    with pytest.raises(InvalidWebhook) as error:
        WebhookVerifier(NEW).verify(body, values)
    assert str(error.value).isprintable()


@settings(max_examples=300, deadline=None, database=None)
@given(JSON | st.sampled_from([{**ESIM, name: 5} for name in ESIM]) | st.sampled_from([{**EVENT, "data": 5}, {**EVENT, "type": []}]))
def test_whatever_is_signed_is_a_webhook_or_invalid(content: object) -> None:
    try:
        received = WebhookVerifier(NEW).verify(*webhook(content, NEW)).content
    except InvalidWebhook:
        return
    assert isinstance(received, Esim | KeyExpiring | TopupFailed | WebhookTest | dict)


def test_what_breaks_parsers_and_headers_is_invalid() -> None:
    verifier = WebhookVerifier(NEW)
    for body in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff", b"", json.dumps({**ESIM, "iccid": None}).encode()):
        headers = {"webhook-id": "evt_1", "webhook-timestamp": str(int(time.time()))}
        headers["webhook-signature"] = signature(NEW, "evt_1", int(headers["webhook-timestamp"]), body)
        with pytest.raises(InvalidWebhook):
            verifier.verify(body, headers)
    body, headers = webhook(ESIM, NEW)
    wrong: list[tuple[Any, Any]] = [
        (None, headers), (5, headers), (body, {}), (body, {**headers, "Webhook-Id": None}), (body, {**headers, "Webhook-Id": ["x"]}),
        (body, {5: "x"}), (body, {**headers, "WEBHOOK-SIGNATURE": "\udce4"}), (body, {**headers, "Webhook-Id": "\ud800"}),
    ]  # fmt: skip
    for odd_body, odd_headers in wrong:
        with pytest.raises(InvalidWebhook):
            verifier.verify(odd_body, odd_headers)


def test_a_secret_that_is_none_is_refused_and_not_shown() -> None:
    bare = NEW.removeprefix("whsec_")
    for bad in ["whsec_!", "secret text", bare, f" {NEW}", f"{NEW}\n", f"{NEW}=", "whsec_ä", "whsec_AAA", cast(str, None), cast(str, 5)]:
        with pytest.raises(ValueError, match="webhook secret") as error:
            WebhookVerifier(bad)
        assert str(bad) not in str(error.value) and bare not in str(error.value)
        with pytest.raises(ValueError, match="webhook secret"):
            WebhookVerifier(NEW, bad)
    for none in [(), ("whsec_",), ("",)]:
        with pytest.raises(ValueError, match="webhook secret"):
            WebhookVerifier(*none)
    with pytest.raises(ValueError, match="tolerance"):
        WebhookVerifier(NEW, tolerance=float("nan"))
