"""Signs each request of Schemathesis as it is sent, and lets orders name an option that exists."""

import base64
import hashlib
import hmac
import os
import time
import uuid

import requests
import requests.auth
import schemathesis
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation

# Marks a request whose headers are wrong on purpose; it is not sent.
UNSIGNED = "Unsigned"
# One more header than documented is nothing wrong, though Schemathesis counts it among these.
UNKNOWN = "x-schemathesis-unknown-property"


class Signature(requests.auth.AuthBase):
    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if request.headers.pop(UNSIGNED, None):
            return request
        access_key, timestamp = os.environ["ACCESS_KEY"], str(int(time.time()))
        path, _, _ = request.path_url.partition("?")
        lines = [request.method or "", path, timestamp, access_key]
        if request.method == "POST" and path.endswith("/webhooks/redeliver"):
            # Only a signature that covers the body counts here.
            body = request.body or b""
            digest = hashlib.sha256(body.encode() if isinstance(body, str) else body).hexdigest()
            lines = [request.method, request.path_url, timestamp, access_key, digest]
            request.headers["X-Service-Content-SHA256"] = digest
        text = "\n".join(lines)
        key = base64.b64decode(os.environ["SECRET_KEY"])
        request.headers["X-Service-Access-Key"] = access_key
        request.headers["X-Service-Timestamp"] = timestamp
        request.headers["X-Service-Signature"] = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return request


schemathesis.auth.set_from_requests(Signature())


@schemathesis.hook
def before_call(context, case, kwargs):
    """The authentication headers are headers like others: a signature would mend what a case left out."""
    headers = case.meta and case.meta.components.get(ParameterLocation.HEADER)
    if headers and headers.mode is GenerationMode.NEGATIVE and UNKNOWN not in (case.headers or {}):
        case.headers = {**(case.headers or {}), UNSIGNED: "yes"}


@schemathesis.hook
def map_body(context, body):
    """Half of the made-up option ids become one that exists."""
    products = body.get("products") if isinstance(body, dict) else None
    for item in products if isinstance(products, list) else []:
        try:
            made_up = uuid.UUID(item["option_id"])
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if made_up.int % 2:
            item["option_id"] = os.environ["OPTION_ID"]
    return body
