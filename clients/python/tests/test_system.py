"""A shop on a running system: it orders, loses answers and webhooks, and recovers them.

BASE_URL, ACCESS_KEY, SECRET_KEY and WEBHOOK_SECRET are those of a sandbox account, whose options produce the failures.
Webhooks are also verified with the library of Standard Webhooks.
"""

import asyncio
import http.server
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from esim_partner import (
    AsyncPartner,
    Esim,
    InvalidWebhook,
    Item,
    KeyExpiring,
    OrderIdTaken,
    OrderRefused,
    OrderState,
    Partner,
    Waits,
    Webhook,
    WebhookVerifier,
)
from esim_partner.generated.api.orders import cancel_order
from esim_partner.generated.api.sandbox import make_sandbox_event
from esim_partner.generated.api.topups import list_deliveries, redeliver
from esim_partner.generated.api.webhook import set_webhook
from esim_partner.generated.models import (
    ChangedEndpoint,
    Deliveries,
    Event,
    EventChoice,
    NewSandboxEvent,
    WebhookEndpointChange,
)
from standardwebhooks.webhooks import Webhook as StandardWebhook

pytestmark = pytest.mark.system
T = TypeVar("T")


def setting(name: str) -> str:
    return os.environ[name]


class Endpoint:
    """A webhook endpoint. It answers 410 to the first webhook, which ends its retries, and 200 to the others."""

    def __init__(self) -> None:
        self.webhooks: queue.Queue[Webhook] = queue.Queue()
        self.others: list[Webhook] = []
        endpoint = self
        verifier = WebhookVerifier(setting("WEBHOOK_SECRET"))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = dict(self.headers.items())
                try:
                    webhook = verifier.verify(body, headers)
                    StandardWebhook(setting("WEBHOOK_SECRET")).verify(
                        body, {name.lower(): value for name, value in headers.items()}
                    )
                    status = 200 if endpoint.lost else 410
                    endpoint.lost = True
                    endpoint.webhooks.put(webhook)
                except InvalidWebhook:
                    status = 401
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.lost = False
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/webhooks"

    def receive(self, webhook_id: str) -> Webhook:
        """The next webhook with this id. Webhooks come in any sequence, so others are kept for later."""
        for webhook in self.others:
            if webhook.id == webhook_id:
                self.others.remove(webhook)
                return webhook
        while True:
            webhook = self.webhooks.get(timeout=60)
            if webhook.id == webhook_id:
                return webhook
            self.others.append(webhook)


@pytest.fixture(scope="module")
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture(scope="module")
def partner(endpoint: Endpoint) -> Iterator[Partner]:
    partner = Partner(setting("BASE_URL"), setting("ACCESS_KEY"), setting("SECRET_KEY"), waits=Waits(first=(1, 1, 1)))
    wanted = WebhookEndpointChange(url=endpoint.url, events=[EventChoice.KEY_EXPIRING])
    assert isinstance(set_webhook.sync(client=partner.api, body=wanted), ChangedEndpoint)
    yield partner
    set_webhook.sync(client=partner.api, body=WebhookEndpointChange(url=None))


@pytest.fixture(scope="module")
def options(partner: Partner) -> dict[str, uuid.UUID]:
    return {option.name: option.option_id for option in partner.options()}


def fresh() -> str:
    return f"Python client/{uuid.uuid4()}"


def until(what: str, look: Callable[[], T | None]) -> T:
    """Looks every 100 ms, for at most 60 s."""
    for _ in range(600):
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    raise TimeoutError(what)


def test_a_lost_webhook_is_recovered(partner: Partner, endpoint: Endpoint, options: dict[str, uuid.UUID]) -> None:
    external_order_id = fresh()
    placed = partner.order(external_order_id, [Item(options["ready"], 1)])
    assert not placed.stored_before
    topup_id = placed.topups[0].topup_id
    lost = endpoint.receive(topup_id)
    assert isinstance(lost.content, Esim)

    def exhausted() -> Deliveries | None:
        deliveries = list_deliveries.sync(topup_id, client=partner.api)
        assert isinstance(deliveries, Deliveries), deliveries
        return deliveries if deliveries.state == "exhausted" else None

    attempts = until("the end of the retries", exhausted).attempts
    assert [attempt.status for attempt in attempts] == [410], attempts
    until("a redelivery", lambda: redeliver.sync_detailed(topup_id, client=partner.api).status_code == 202 or None)
    assert endpoint.receive(topup_id).content == lost.content

    shown = partner.find_order(external_order_id)
    assert shown and shown.topups[0].esim == lost.content
    assert external_order_id in [order.external_order_id for order in partner.orders(state=OrderState.READY)]


@pytest.mark.parametrize("option", ["stored-then-500", "answer-lost", "limited-first"])
def test_what_the_guide_warns_of_is_settled(
    partner: Partner, endpoint: Endpoint, options: dict[str, uuid.UUID], option: str
) -> None:
    external_order_id = fresh()
    placed = partner.order(external_order_id, [Item(options[option], 2)])
    assert placed.stored_before == (option != "limited-first")
    assert len({topup.topup_id for topup in placed.topups}) == 2
    for topup in placed.topups:
        assert isinstance(endpoint.receive(topup.topup_id).content, Esim)
    # After a crash of the shop, the same call finds the same order, and another one does not.
    again = partner.order(external_order_id, [Item(options[option], 2)])
    assert again.stored_before and again.topups == placed.topups
    with pytest.raises(OrderIdTaken):
        partner.order(external_order_id, [Item(options["ready"], 2)])


@pytest.mark.parametrize("external_order_id", [".", "..", f"a/../b ?&=%2E+ü {uuid.uuid4()}"])
def test_every_id_that_can_be_ordered_can_be_looked_up(
    partner: Partner, options: dict[str, uuid.UUID], external_order_id: str
) -> None:
    asynchronous = AsyncPartner(
        setting("BASE_URL"), setting("ACCESS_KEY"), setting("SECRET_KEY"), waits=Waits(first=(1, 1, 1))
    )
    item = Item(str(options["stored-then-500"]).upper())
    placed = asyncio.run(asynchronous.order(external_order_id, [item]))
    assert placed.stored_before
    found = partner.find_order(external_order_id)
    assert found and [topup.topup_id for topup in found.topups] == [topup.topup_id for topup in placed.topups]


def test_a_refused_order_says_why(partner: Partner, options: dict[str, uuid.UUID]) -> None:
    def refused() -> OrderRefused | None:
        # An order is accepted until the first heartbeat of a provisioner has arrived.
        try:
            partner.order(fresh(), [Item(options["out-of-stock"], 1)], first_call=True)
        except OrderRefused as error:
            return error
        return None

    assert until("a refusal", refused).codes == ("provider_rejected",)
    with pytest.raises(OrderRefused) as error:
        partner.order("", [Item(uuid.uuid4(), 0)], first_call=True)
    assert set(error.value.codes) >= {"external_order_id_blank", "option_not_found", "qty_invalid"}
    assert partner.find_order(fresh()) is None


def test_an_order_that_waits_is_cancelled(partner: Partner, options: dict[str, uuid.UUID]) -> None:
    external_order_id = fresh()
    partner.order(external_order_id, [Item(options["cancellable"], 1)])
    cancelled = lambda: cancel_order.sync_detailed(external_order_id, client=partner.api).status_code == 200 or None  # noqa: E731
    until("the cancellation", cancelled)
    order = partner.find_order(external_order_id)
    assert order and order.state == OrderState.CANCELLED


def test_an_event_arrives(partner: Partner, endpoint: Endpoint) -> None:
    made = make_sandbox_event.sync(client=partner.api, body=NewSandboxEvent("key.expiring"))
    assert isinstance(made, Event), made
    received = endpoint.receive(made.event_id).content
    assert isinstance(received, KeyExpiring) and received.data.credential == "keys"
    assert made.event_id in [event.event_id for event in partner.events()]
