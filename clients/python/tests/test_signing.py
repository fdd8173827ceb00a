"""Signatures of requests: the guide's test vector, and what the signature covers."""

import httpx
import pytest
from esim_partner import Keys, Signature
from esim_partner.signing import digest
from vectors import vector


def test_the_guides_vector() -> None:
    given = vector("request")
    keys = Keys(given["access key"], given["secret key"])
    content = digest(given["body"].encode())
    assert content == given["content sha256"]
    signature = keys.sign(given["method"], given["path"], given["timestamp"], content)
    assert signature == given["signature"]


def test_what_is_sent_is_signed() -> None:
    keys = Keys("ak_example", "c2VjcmV0LWtleQ==", brand="Acme")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    client = httpx.Client(
        auth=Signature(keys, clock=lambda: 1700000000.9), transport=httpx.MockTransport(answer), base_url="http://x/api"
    )
    client.get("/orders/a%2Fb%20c", params={"state": "ready", "cursor": "a=b"})
    client.post("/orders", json={"external_order_id": "A-1"})
    for request, target in zip(seen, ["/api/orders/a%2Fb%20c?state=ready&cursor=a%3Db", "/api/orders"], strict=True):
        assert request.headers["x-acme-access-key"] == "ak_example"
        assert request.headers["x-acme-timestamp"] == "1700000000"
        assert request.headers["x-acme-content-sha256"] == digest(request.content)
        expected = keys.sign(request.method, target, "1700000000", digest(request.content))
        assert request.headers["x-acme-signature"] == expected
    assert seen[0].headers["x-acme-signature"] != seen[1].headers["x-acme-signature"]


def test_a_secret_key_that_is_none_is_refused_and_not_shown() -> None:
    for bad in ["", "not Base64!", "whsec_"]:
        with pytest.raises(ValueError) as error:
            Keys("ak_example", bad)
        assert not bad or bad not in str(error.value)
    assert "c2VjcmV0" not in repr(Keys("ak_example", "c2VjcmV0LWtleQ=="))
