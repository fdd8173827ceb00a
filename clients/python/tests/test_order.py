"""What :meth:`Partner.order` does with each answer of a small HTTP server that plays the service."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from esim_partner import (
    ApiError,
    InDoubt,
    Item,
    OrderIdTaken,
    OrderRefused,
    OrderState,
    Partner,
    PlacedOrder,
    Unavailable,
    Waits,
)

OPTION = UUID("424b7b26-96e7-5c95-8df9-6654a3998070")
OTHER = UUID("28703ec8-aebf-52e0-8465-f0c8e2ff2bef")
ITEMS = [Item(OPTION, 2)]
TOPUPS = ["20250129123456123456789012", "20250129123456123456789013"]
CREATED = {"products": [{"topup_id": one, "option_id": str(OPTION)} for one in TOPUPS]}

#: A status, the codes, and a body; ``None`` closes the connection without an answer.
Scripted = tuple[int, str, Any] | None
CLOSED: Scripted = None
DONE: Scripted = (201, "", CREATED)
TAKEN: Scripted = (422, "external_order_id_taken, option_not_found; item=0", {"errors": ["taken"]})
REFUSED: Scripted = (422, "provider_rejected", {"errors": ["eSIM Request failed - Status: 9005, Message: none"]})
ERROR: Scripted = (500, "internal_error", {"error": "Internal server error"})
PROXY: Scripted = (502, "", "<h1>Bad gateway</h1>")
BUSY: Scripted = (503, "order_undecided", {"error": "busy"})
LIMITED: Scripted = (429, "rate_limited", {"error": "slow down"})
UNKNOWN: Scripted = (404, "not_found", {"error": "Not found"})


def stored(option: UUID = OPTION, state: str = "processing") -> Scripted:
    topup = {
        "state": "processing", "error": None, "ready_at": None, "delivery": None, "delivered_at": None,
        "erased_at": None, "esim": None, "option_id": str(option), "external_order_id": "A-1",
    }  # fmt: skip
    counts = {"total": 2, "processing": 2, "on_hold": 0, "ready": 0, "failed": 0, "returned": 0}
    order = {
        "external_order_id": "A-1", "order_id": str(OPTION), "state": state, "cancelled_at": None,
        "created_at": "2026-11-22T04:00:00.1Z", "topup_counts": counts,
        "topups": [{**topup, "topup_id": one} for one in TOPUPS],
    }  # fmt: skip
    return 200, "", order


class Service:
    """Answers each request with the next entry of its script."""

    def __init__(self) -> None:
        self.script: list[Scripted] = []
        self.requests: list[tuple[str, str, Any]] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.requests.append((self.command, self.path, json.loads(body) if body else None))
                scripted = service.script.pop(0)
                if scripted is None:
                    self.close_connection = True
                    return
                status, codes, content = scripted
                text = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.send_header("X-Request-Id", "r-1")
                if codes:
                    self.send_header("X-Service-Error", codes)
                if status in (429, 503):
                    self.send_header("Retry-After", "7")
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class Shop:
    """A partner whose waits are noted and not waited for."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.slept: list[float] = []
        self.partner = Partner(service.url, "ak_example", "c2VjcmV0LWtleQ==", sleep=self.slept.append)

    def order(self, *script: Scripted, patience: float = 1e6) -> PlacedOrder:
        self.service.script = list(script)
        try:
            return self.partner.order("A-1", ITEMS, patience=patience)
        finally:
            assert self.service.script == [], "not every answer was asked for"


@pytest.fixture
def shop() -> Iterator[Shop]:
    service = Service()
    yield Shop(service)
    service.server.shutdown()
    service.server.server_close()


def test_an_order_that_is_accepted_is_sent_once(shop: Shop) -> None:
    placed = shop.order(DONE)
    assert [one.topup_id for one in placed.topups] == TOPUPS
    assert not placed.stored_before
    body = {"external_order_id": "A-1", "products": [{"option_id": str(OPTION), "qty": 2}]}
    assert shop.service.requests == [("POST", "/api/v1/api_partner/orders", body)]
    assert shop.slept == []


@pytest.mark.parametrize("lost", [CLOSED, ERROR, PROXY])
def test_a_lost_answer_is_settled_by_a_repeat_and_a_look_up(shop: Shop, lost: Scripted) -> None:
    placed = shop.order(lost, TAKEN, stored())
    assert placed.stored_before and [one.topup_id for one in placed.topups] == TOPUPS
    posts = [request for request in shop.service.requests if request[0] == "POST"]
    assert len(posts) == 2 and posts[0] == posts[1], "the repeat is the same order"
    assert shop.service.requests[-1][:2] == ("GET", "/api/v1/api_partner/orders/A-1")
    assert shop.slept == [1]
    assert not shop.order(lost, DONE).stored_before


def test_the_waits_are_those_of_the_guide(shop: Shop) -> None:
    shop.order(ERROR, CLOSED, PROXY, ERROR, ERROR, ERROR, LIMITED, BUSY, DONE)
    assert shop.slept == [1, 2, 4, 8, 60, 60, 7, 7]


def test_a_refused_order_is_not_repeated(shop: Shop) -> None:
    with pytest.raises(OrderRefused) as error:
        shop.order(REFUSED)
    assert error.value.codes == ("provider_rejected",)
    assert "9005" in str(error.value) and "r-1" in str(error.value)
    # After a 500 of the service itself nothing is on its way any more.
    with pytest.raises(OrderRefused):
        shop.order(ERROR, REFUSED)
    assert shop.slept == [1]


@pytest.mark.parametrize("lost", [CLOSED, PROXY])
def test_a_refusal_after_a_lost_answer_is_believed_only_after_a_minute(shop: Shop, lost: Scripted) -> None:
    assert shop.order(lost, REFUSED, stored()).stored_before
    assert shop.slept[0] == 1 and 55 < shop.slept[1] <= 60
    for answer in (UNKNOWN, stored(state="refused"), stored(OTHER)):
        with pytest.raises(OrderRefused):
            shop.order(lost, REFUSED, answer)


def test_an_id_of_another_order_is_not_mistaken_for_this_one(shop: Shop) -> None:
    with pytest.raises(OrderIdTaken) as error:
        shop.order(TAKEN, stored(OTHER))
    assert error.value.order and error.value.order.topups[0].option_id == OTHER
    archived: Scripted = (410, "order_archived", {"error": "archived"})
    with pytest.raises(OrderIdTaken) as error:
        shop.order(TAKEN, archived)
    assert error.value.order is None
    # The look-up is repeated; the order itself is not.
    assert shop.order(TAKEN, ERROR, CLOSED, stored()).stored_before
    with pytest.raises(Unavailable):
        shop.order(TAKEN, ERROR, ERROR, ERROR, ERROR, ERROR)


def test_a_wrong_request_is_not_repeated(shop: Shop) -> None:
    denied: Scripted = (401, "signature_invalid", {"error": {"code": "unauthorized", "message": "Invalid signature."}})
    with pytest.raises(ApiError) as error:
        shop.order(denied)
    assert error.value.codes == ("signature_invalid",) and "Invalid signature." in str(error.value)
    # But it says nothing about an earlier request.
    with pytest.raises(InDoubt):
        shop.order(CLOSED, denied)


def test_the_end_of_the_patience_says_whether_the_order_may_be_stored(shop: Shop) -> None:
    with pytest.raises(InDoubt):
        shop.order(ERROR, patience=0.5)
    with pytest.raises(InDoubt):
        shop.order(CLOSED, patience=0.5)
    with pytest.raises(Unavailable):
        shop.order(LIMITED, patience=5)
    with pytest.raises(Unavailable):
        shop.order(BUSY, patience=5)
    shop.service.server.shutdown()
    shop.service.server.server_close()
    with pytest.raises(Unavailable):
        shop.order(patience=0.5)


def test_lists_are_read_to_their_end(shop: Shop) -> None:
    def page(names: list[str], cursor: str | None) -> Scripted:
        options = [{"option_id": str(OPTION), "name": name, "details": {}} for name in names]
        return 200, "", {"options": options, "next_cursor": cursor}

    shop.service.script = [page(["a", "b"], "x/="), LIMITED, page([], "y"), page(["c"], None)]
    assert [option.name for option in shop.partner.options()] == ["a", "b", "c"]
    asked = [path.partition("?")[2] for _, path, _ in shop.service.requests]
    second = "limit=100&cursor=x%2F%3D"
    assert asked == ["limit=100", second, second, "limit=100&cursor=y"]
    assert shop.slept == [7]

    shop.service.script = [page(["a"], None)]
    filtered = shop.partner.options(country="JP", min_data_mb=1024, unlimited=False, min_days=7, max_days=30)
    assert [option.name for option in filtered] == ["a"]
    query = shop.service.requests[-1][1].partition("?")[2]
    assert query == "country=JP&min_data_mb=1024&unlimited=false&min_days=7&max_days=30&limit=100"


def test_a_state_that_this_version_does_not_know_is_kept(shop: Shop) -> None:
    shop.service.script = [stored(state="enchanted")]
    order = shop.partner.find_order("A-1")
    assert order and order.state == "enchanted" and order.state not in list(OrderState)
    assert order.to_dict()["state"] == "enchanted"


def test_ids_are_encoded_in_paths(shop: Shop) -> None:
    shop.service.script = [UNKNOWN, stored()]
    assert shop.partner.find_order("A/1 ü?") is None
    order = shop.partner.find_order("A-1")
    assert order and order.state == "processing"
    assert shop.service.requests[0][1] == "/api/v1/api_partner/orders/A%2F1%20%C3%BC%3F"


def test_the_waits_can_be_changed(shop: Shop) -> None:
    waits = Waits(first=(0.5,), then=3)
    partner = Partner(
        f"{shop.service.url}/v1/api_partner/", "ak", "c2VjcmV0LWtleQ==", waits=waits, sleep=shop.slept.append
    )
    shop.service.script = [ERROR, ERROR, ERROR, DONE]
    partner.order("A-1", ITEMS)
    assert shop.slept == [0.5, 3, 3]
    assert shop.service.requests[0][1] == "/v1/api_partner/orders"
