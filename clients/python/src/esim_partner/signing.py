"""Signs requests, as the partner guide describes it under "Sign".

The signature covers the method, the path with its query, the time, the access key and the body, so nobody who records
a request can send another one with its headers.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import httpx

from . import settings


def digest(body: bytes) -> str:
    """The value of the header ``Content-SHA256``."""
    return hashlib.sha256(body).hexdigest()


@dataclass(frozen=True)
class Keys:
    """The keys of an account. The secret key is Base64 text, as you got it."""

    access_key: str
    secret_key: str = field(repr=False)
    #: The second part of the header names: ``X-Service-…`` unless you were told another one.
    brand: str = "Service"

    def __post_init__(self) -> None:
        settings.visible("access_key", self.access_key)
        settings.decoded("secret_key", self.secret_key)
        settings.brand(self.brand)

    def sign(self, method: str, target: str, timestamp: str, content_sha256: str) -> str:
        """The signature of a request. ``target`` is its path with ``?`` and the query, exactly as it is sent."""
        text = "\n".join([method, target, timestamp, self.access_key, content_sha256])
        key = base64.b64decode(self.secret_key)
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def headers(self, method: str, target: str, body: bytes, timestamp: int) -> dict[str, str]:
        """The headers that authenticate a request."""
        content_sha256 = digest(body)
        return {
            f"X-{self.brand}-Access-Key": self.access_key,
            f"X-{self.brand}-Timestamp": str(timestamp),
            f"X-{self.brand}-Content-SHA256": content_sha256,
            f"X-{self.brand}-Signature": self.sign(method, target, str(timestamp), content_sha256),
        }


class Signature(httpx.Auth):
    """Signs each request of an httpx client, sync or async, just before it is sent.

    A repeated request is thus signed anew, because the service refuses an old timestamp.
    """

    requires_request_body = True

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self.keys = keys
        self.clock = clock

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        target = request.url.raw_path.decode("ascii")
        request.headers.update(self.keys.headers(request.method, target, request.content, int(self.clock())))
        yield request
