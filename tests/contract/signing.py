"""Signs each request of Schemathesis as it is sent, and lets orders name an option that exists."""

import os
import time
import uuid

import requests
import requests.auth
import schemathesis
from esim_partner import Keys
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
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        keys = Keys(os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"])
        request.headers.update(keys.headers(request.method or "", request.path_url, body, int(time.time())))
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
