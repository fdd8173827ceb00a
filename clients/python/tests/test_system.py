"""A shop with the generated Python client: it orders, loses a webhook, and recovers it.

The client is generated from docs/openapi.json; webhooks are verified with the Standard Webhooks library.
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Generator
from typing import TypeVar

import httpx
from partner_client import AuthenticatedClient
from partner_client.api.orders import create_order, show_order
from partner_client.api.topups import list_deliveries, redeliver
from partner_client.api.webhook import set_webhook
from partner_client.models import ChangedEndpoint, CreatedOrder, Deliveries, Item, NewEndpoint, NewOrder, Order
from standardwebhooks.webhooks import Webhook

T = TypeVar("T")
Webhooks = queue.Queue[tuple[str, dict[str, str]]]


class Signed(httpx.Auth):
    """Adds timestamp and signature; the client sends the access key."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        timestamp = str(int(time.time()))
        path = request.url.raw_path.decode().partition("?")[0]
        text = "\n".join([request.method, path, timestamp, os.environ["ACCESS_KEY"]])
        key = base64.b64decode(os.environ["SECRET_KEY"])
        request.headers["X-Service-Timestamp"] = timestamp
        request.headers["X-Service-Signature"] = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        yield request


def receiver(webhooks: Webhooks) -> str:
    """Starts a webhook endpoint that answers 410 to the first webhook, and 200 to the others; returns its URL."""

    class Receiver(http.server.BaseHTTPRequestHandler):
        seen = 0

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            esim = Webhook(os.environ["WEBHOOK_SECRET"]).verify(body, headers)
            webhooks.put((headers["webhook-id"], esim))
            self.send_response(200 if Receiver.seen else 410)
            Receiver.seen += 1
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/webhooks"


def until(what: str, look: Callable[[], T | None]) -> T:
    """Looks every 100 ms, for at most 60 s."""
    for _ in range(600):
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    raise TimeoutError(what)


def shop(client: AuthenticatedClient) -> None:
    webhooks: Webhooks = queue.Queue()
    endpoint = set_webhook.sync(client=client, body=NewEndpoint(url=receiver(webhooks)))
    assert isinstance(endpoint, ChangedEndpoint), endpoint

    external_order_id = f"Python client/{uuid.uuid4()}"
    order = NewOrder(external_order_id, [Item(option_id=uuid.UUID(os.environ["OPTION_ID"]), qty=1)])
    created = create_order.sync(client=client, body=order)
    assert isinstance(created, CreatedOrder), created
    topup_id = created.products[0].topup_id

    lost = webhooks.get(timeout=60)
    assert lost[0] == topup_id, lost[0]

    def exhausted() -> Deliveries | None:
        deliveries = list_deliveries.sync(topup_id, client=client)
        assert isinstance(deliveries, Deliveries), deliveries
        return deliveries if deliveries.state == "exhausted" else None

    attempts = until("the end of the retries", exhausted).attempts
    assert [attempt.status for attempt in attempts] == [410], attempts
    until("a redelivery", lambda: redeliver.sync_detailed(topup_id, client=client).status_code == 202 or None)
    assert webhooks.get(timeout=60) == lost

    shown = show_order.sync(external_order_id, client=client)
    assert isinstance(shown, Order), shown
    esim = shown.topups[0].esim
    assert esim and json.loads(json.dumps(esim.to_dict())) == lost[1]
    print("the generated Python client ordered, verified and recovered a webhook")


shop(
    AuthenticatedClient(
        base_url=os.environ["BASE_URL"] + "/api/v1/api_partner",
        token=os.environ["ACCESS_KEY"],
        prefix="",
        auth_header_name="X-Service-Access-Key",
        raise_on_unexpected_status=True,
        timeout=httpx.Timeout(30),
        httpx_args={"auth": Signed()},
    )
)
