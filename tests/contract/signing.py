"""Signs each request of Schemathesis as it is sent."""

import base64
import hashlib
import hmac
import os
import time

import requests
import requests.auth
import schemathesis


class Signature(requests.auth.AuthBase):
    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        access_key, timestamp = os.environ["ACCESS_KEY"], str(int(time.time()))
        path = request.path_url.partition("?")[0]
        text = "\n".join([request.method or "", path, timestamp, access_key])
        key = base64.b64decode(os.environ["SECRET_KEY"])
        request.headers["X-Service-Access-Key"] = access_key
        request.headers["X-Service-Timestamp"] = timestamp
        request.headers["X-Service-Signature"] = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return request


schemathesis.auth.set_from_requests(Signature())
