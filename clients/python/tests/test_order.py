"""What :meth:`Partner.order` does with each answer of a small HTTP server that plays the service."""

import asyncio
import datetime
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import parse_qs
from uuid import UUID

import pytest
from esim_partner import (
    ApiError,
    AsyncPartner,
    InDoubt,
    Item,
    OrderIdTaken,
    OrderRefused,
    OrderState,
    Partner,
    PlacedOrder,
    Unanswered,
    Unavailable,
    Waits,
)
from esim_partner.generated.models import Item as GeneratedItem

OPTION = UUID("424b7b26-96e7-5c95-8df9-6654a3998070")
OTHER = UUID("28703ec8-aebf-52e0-8465-f0c8e2ff2bef")
ITEMS = [Item(OPTION, 2)]
TOPUPS = ["20250129123456123456789012", "20250129123456123456789013"]
CREATED = {"products": [{"topup_id": one, "option_id": str(OPTION)} for one in TOPUPS]}

#: A status, the codes, and a body; ``None`` closes the connection without an answer. A code that begins with ``repeat=`` is
#: the value of the header about repeats.
Scripted = tuple[int, str, Any] | None
CLOSED: Scripted = None
DONE: Scripted = (201, "", CREATED)
TAKEN: Scripted = (422, "external_order_id_taken, option_not_found; item=0", {"errors": ["taken"]})
REFUSED: Scripted = (422, "provider_rejected", {"errors": ["eSIM Request failed - Status: 9005, Message: none"]})
ERROR: Scripted = (500, "internal_error", {"error": "Internal server error"})
PROXY: Scripted = (502, "", "<h1>Bad gateway</h1>")
BUSY: Scripted = (503, "order_undecided", {"error": "busy"})
DENIED: Scripted = (401, "signature_invalid", {"error": {"code": "unauthorized", "message": "Invalid signature."}})
LIMITED: Scripted = (429, "rate_limited", {"error": "slow down"})
#: The answers to a repeat.
ANSWERED: Scripted = (200, "repeat=answered", CREATED)
UNDECIDED: Scripted = (202, "repeat=undecided", {"message": "not answered yet"})
DIFFERS: Scripted = (409, "order_differs", {"error": "other units"})
#: What a proxy answers by itself, perhaps after it has passed the request on.
FOREIGN: list[Scripted] = [
    (status, "", body)
    for status in (301, 400, 401, 403, 404, 408, 410, 413, 422, 429, 503)
    for body in ("<h1>No</h1>", {"errors": ["has already been taken"]})
]


#: The look-up of an id that no order has.
UNKNOWN: Scripted = (200, "", {"orders": [], "next_cursor": None})
ARCHIVED: Scripted = (410, "order_archived", {"error": "archived"})


def stored(option: UUID = OPTION, state: str = "processing", external_order_id: str = "A-1") -> Scripted:
    """The look-up of an order."""
    topup = {
        "state": "processing", "error": None, "ready_at": None, "delivery": None, "delivered_at": None,
        "erased_at": None, "esim": None, "option_id": str(option), "external_order_id": external_order_id,
    }  # fmt: skip
    counts = {"total": 2, "processing": 2, "on_hold": 0, "ready": 0, "failed": 0, "returned": 0}
    order = {
        "external_order_id": external_order_id, "order_id": str(OPTION), "state": state, "cancelled_at": None,
        "created_at": "2026-11-22T04:00:00.1Z", "topup_counts": counts,
        "topups": [{**topup, "topup_id": one} for one in TOPUPS],
    }  # fmt: skip
    return 200, "", {"orders": [order], "next_cursor": None}


class Service:
    """Answers each request with the next entry of its script."""

    def __init__(self) -> None:
        self.script: list[Scripted] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.repeats: list[str | None] = []
        self.retry_after = "7"
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.requests.append((self.command, self.path, json.loads(body) if body else None))
                service.repeats.append(self.headers.get("X-Service-Repeat"))
                scripted = service.script.pop(0)
                if scripted is None:
                    self.close_connection = True
                    return
                status, codes, content = scripted
                text = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.send_header("X-Request-Id", "r-1")
                if codes.startswith("repeat="):
                    self.send_header("X-Service-Repeat", codes.removeprefix("repeat="))
                elif codes:
                    self.send_header("X-Service-Error", codes)
                if status in (202, 429, 503):
                    self.send_header("Retry-After", service.retry_after)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class Shop:
    """A partner whose waits are noted and not waited for."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.slept: list[float] = []
        self.partner = Partner(service.url, "ak_example", "c2VjcmV0LWtleQ==", sleep=self.slept.append)

    def place(self, items: list[Item], first_call: bool, patience: float) -> PlacedOrder:
        return self.partner.order("A-1", items, first_call=first_call, patience=patience)

    def order(
        self, *script: Scripted, items: list[Item] = ITEMS, first_call: bool = True, patience: float = 1e6
    ) -> PlacedOrder:
        self.service.script = list(script)
        try:
            return self.place(items, first_call, patience)
        finally:
            assert self.service.script == [], "not every answer was asked for"


class AsyncShop(Shop):
    """The same with the client for asyncio."""

    def place(self, items: list[Item], first_call: bool, patience: float) -> PlacedOrder:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        partner = AsyncPartner(self.service.url, "ak_example", "c2VjcmV0LWtleQ==", sleep=sleep)
        return asyncio.run(partner.order("A-1", items, first_call=first_call, patience=patience))


@pytest.fixture(params=[Shop, AsyncShop])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    service = Service()
    yield request.param(service)
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
    assert shop.service.requests[-1][:2] == ("GET", "/api/v1/api_partner/orders?external_order_id=A-1")
    assert shop.slept == [1]
    assert not shop.order(lost, DONE).stored_before


@pytest.mark.parametrize("lost", [CLOSED, ERROR, PROXY])
def test_a_repeat_asks_for_the_lost_answer(shop: Shop, lost: Scripted) -> None:
    placed = shop.order(lost, UNDECIDED, ANSWERED)
    assert placed.stored_before and [one.topup_id for one in placed.topups] == TOPUPS
    assert shop.service.repeats == [None, "answer", "answer"], "a first request may be long after another call"
    assert shop.slept == [1, 7]
    with pytest.raises(OrderIdTaken):
        shop.order(lost, DIFFERS, stored(OTHER))
    # An order that is not decided is stored or not. What else has this status says nothing.
    with pytest.raises(InDoubt):
        shop.order(lost, UNDECIDED, patience=6)
    with pytest.raises(Unavailable):
        shop.order(UNDECIDED, patience=6)
    others: list[Scripted] = [(202, "", "OK"), (200, "", CREATED), (200, "repeat=answered", {"products": []})]
    for other in others:
        with pytest.raises(InDoubt):
            shop.order(other, patience=0.9)


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
    for answer in (UNKNOWN, stored(state="refused"), stored(state="cancelled"), stored(OTHER)):
        with pytest.raises(OrderRefused):
            shop.order(lost, REFUSED, answer)
    # Without a look-up, or with one that says nothing, the earlier request may be stored.
    for answer in (stored(state="enchanted"), ARCHIVED):
        with pytest.raises(InDoubt):
            shop.order(lost, REFUSED, answer)
    with pytest.raises(InDoubt):
        shop.order(lost, REFUSED, patience=30)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_an_error_without_a_code_of_the_service_is_no_answer(shop: Shop, foreign: Scripted) -> None:
    """Row 3: a proxy's own 403 after the order went through was said to have stored nothing."""
    assert shop.order(foreign, TAKEN, stored()).stored_before
    with pytest.raises(InDoubt):
        shop.order(foreign, patience=0.9)
    # The request may have passed the proxy and still be on its way.
    assert shop.order(foreign, REFUSED, stored()).stored_before
    # The same holds for look-ups, after a taken id and alone.
    assert shop.order(TAKEN, foreign, stored()).stored_before
    shop.service.script = [foreign, stored()]
    assert shop.partner.find_order("A-1")
    shop.service.script = [foreign] * 5
    with pytest.raises(Unanswered):
        shop.partner.find_order("A-1")
    shop.service.script = [foreign] * 5
    with pytest.raises(Unanswered):
        list(shop.partner.orders())


def test_a_further_call_says_nothing_of_the_calls_before_it(shop: Shop) -> None:
    """Row 2: a shop that called again during an outage was told that nothing is stored of an order that is bought."""
    with pytest.raises(InDoubt, match="this call stored nothing, but an earlier one may have"):
        shop.order(LIMITED, first_call=False, patience=5)
    # What an earlier call has sent may arrive within a minute, so a refusal is believed only then.
    assert shop.order(REFUSED, stored(), first_call=False).stored_before
    assert 55 < shop.slept[-1] <= 60
    assert shop.order(TAKEN, stored(state="cancelled"), stored(), first_call=False).stored_before
    for answer in (UNKNOWN, stored(state="refused"), stored(OTHER)):
        with pytest.raises(OrderRefused):
            shop.order(REFUSED, answer, first_call=False)
    with pytest.raises(InDoubt):
        shop.order(REFUSED, ARCHIVED, first_call=False)
    with pytest.raises(InDoubt):
        shop.order(REFUSED, first_call=False, patience=30)
    # It is the request that is wrong, and not the order that is refused.
    with pytest.raises(ApiError) as error:
        shop.order(DENIED, first_call=False)
    assert not isinstance(error.value, OrderRefused)
    shop.service.server.shutdown()
    shop.service.server.server_close()
    with pytest.raises(InDoubt):
        shop.order(first_call=False, patience=0.5)


@pytest.mark.parametrize("state", [OrderState.PROCESSING, OrderState.READY, OrderState.PARTLY_FAILED, OrderState.FAILED])
def test_an_order_that_stands_is_placed_with_its_state(shop: Shop, state: OrderState) -> None:
    for script in ([TAKEN, stored(state=state)], [CLOSED, TAKEN, stored(state=state)], [CLOSED, REFUSED, stored(state=state)]):
        placed = shop.order(*script)
        assert placed.stored_before and placed.state == state
    with pytest.raises(OrderIdTaken) as error:
        shop.order(TAKEN, stored(OTHER, state))
    assert error.value.order and error.value.order.state == state


def test_a_taken_id_of_a_refused_order_is_free_again(shop: Shop) -> None:
    """Equal orders at once: another one had the id for a moment and was refused."""
    assert not shop.order(TAKEN, stored(state="refused"), DONE).stored_before
    assert not shop.order(TAKEN, stored(OTHER, "cancelled"), DONE).stored_before
    with pytest.raises(OrderRefused) as error:
        shop.order(TAKEN, stored(state="refused"), REFUSED)
    assert error.value.codes == ("provider_rejected",)
    with pytest.raises(Unavailable):
        shop.order(TAKEN, stored(state="refused"), patience=0.9)
    with pytest.raises(InDoubt):
        shop.order(CLOSED, TAKEN, stored(state="refused"), patience=2.9)


def test_a_cancelled_order_is_not_placed_again(shop: Shop) -> None:
    with pytest.raises(OrderRefused, match="cancelled"):
        shop.order(TAKEN, stored(state="cancelled"))
    with pytest.raises(OrderRefused, match="cancelled"):
        shop.order(ERROR, TAKEN, stored(state="cancelled"))
    # A request without an answer may arrive after the cancellation, so a minute later it is looked up once more.
    with pytest.raises(OrderRefused, match="cancelled"):
        shop.order(CLOSED, TAKEN, stored(state="cancelled"), stored(state="cancelled"))
    assert 55 < shop.slept[-1] <= 60
    assert shop.order(CLOSED, TAKEN, stored(state="cancelled"), stored()).stored_before


@pytest.mark.parametrize("answer", [UNKNOWN, stored(state="enchanted")])
def test_a_taken_id_without_an_order_that_shows_what_it_is_decides_nothing(shop: Shop, answer: Scripted) -> None:
    assert shop.order(TAKEN, answer, TAKEN, stored()).stored_before
    with pytest.raises(InDoubt):
        shop.order(TAKEN, answer, patience=0.9)


def test_an_id_of_another_order_is_not_mistaken_for_this_one(shop: Shop) -> None:
    with pytest.raises(OrderIdTaken) as error:
        shop.order(TAKEN, stored(OTHER))
    assert error.value.order and error.value.order.topups[0].option_id == OTHER
    with pytest.raises(OrderIdTaken) as error:
        shop.order(TAKEN, ARCHIVED)
    assert error.value.order is None


def test_a_look_up_is_repeated_and_at_the_end_in_doubt(shop: Shop) -> None:
    assert shop.order(TAKEN, ERROR, CLOSED, stored()).stored_before
    with pytest.raises(InDoubt):
        shop.order(TAKEN, ERROR, ERROR, ERROR, ERROR, ERROR)
    with pytest.raises(InDoubt):
        shop.order(TAKEN, DENIED)
    # An order of another id is an answer to another question.
    assert shop.order(TAKEN, stored(external_order_id="A-2"), stored()).stored_before


@pytest.mark.parametrize("write", [str, lambda one: str(one).upper(), lambda one: one])
def test_ids_of_options_are_values(shop: Shop, write: Any) -> None:
    """Row 3: a shop that wrote the id as text was told that nothing is ordered, and would have ordered again."""
    items = [Item(write(OPTION), 1), Item(write(OPTION), 1)]
    assert shop.order(CLOSED, TAKEN, stored(), items=items).stored_before
    sent = shop.service.requests[0][2]["products"]
    assert sent == [{"option_id": str(OPTION), "qty": 1}] * 2
    assert not shop.order(DONE, items=items).stored_before
    generated = [GeneratedItem(write(OPTION), 2)]
    assert shop.partner.api and shop.order(TAKEN, stored(), items=cast(list[Item], generated)).stored_before


def test_metadata_is_sent_as_it_is_given(shop: Shop) -> None:
    kept = {"ticket": "T-1 \u00e9"}
    generated = GeneratedItem.from_dict({"option_id": str(OPTION), "qty": 1, "metadata": kept})
    shop.service.script = [DONE]
    shop.partner.order("A-1", [Item(OPTION, 1, kept), generated], first_call=True, metadata=kept)
    body = shop.service.requests[0][2]
    assert body["metadata"] == kept
    assert [product["metadata"] for product in body["products"]] == [kept, kept]
    with pytest.raises(ValueError, match="of the order"):
        shop.partner.order("A-1", ITEMS, metadata=cast(dict[str, str], {"a": 1}))


def test_what_cannot_be_ordered_is_not_sent(shop: Shop) -> None:
    wrong = Item(OPTION, 1, cast(dict[str, str], {"a": 1}))
    for item in (wrong, Item("option"), Item(cast(str, 5)), Item(OPTION, cast(int, "2")), Item(OPTION, True)):
        with pytest.raises(ValueError, match="of item 0"):
            shop.order(items=[item])
    for bad in ("\ud800", cast(str, 5)):
        with pytest.raises(ValueError, match="external_order_id"):
            shop.partner.order(bad, ITEMS)
        with pytest.raises(ValueError, match="external_order_id"):
            shop.partner.find_order(bad)
    for patience in (0, -1, float("nan"), float("inf"), cast(float, "5")):
        with pytest.raises(ValueError, match="patience"):
            shop.partner.order("A-1", ITEMS, patience=patience)
    assert shop.service.requests == []


def test_a_wrong_request_is_not_repeated(shop: Shop) -> None:
    with pytest.raises(ApiError) as error:
        shop.order(DENIED)
    assert error.value.codes == ("signature_invalid",) and "Invalid signature." in str(error.value)
    # But it says nothing about an earlier request.
    with pytest.raises(InDoubt):
        shop.order(CLOSED, DENIED)


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
    since = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
    filtered = shop.partner.options(
        country="JP",
        network="NTT Docomo",
        kind="data",
        min_data_mb=1024,
        max_data_mb=2048,
        unlimited=False,
        min_days=7,
        max_days=30,
        updated_since=since,
    )
    assert [option.name for option in filtered] == ["a"]
    query = shop.service.requests[-1][1].partition("?")[2]
    assert parse_qs(query, strict_parsing=True) == {
        "country": ["JP"],
        "network": ["NTT Docomo"],
        "kind": ["data"],
        "min_data_mb": ["1024"],
        "max_data_mb": ["2048"],
        "unlimited": ["false"],
        "min_days": ["7"],
        "max_days": ["30"],
        "updated_since": ["2026-11-22T00:00:00+00:00"],
        "limit": ["100"],
    }


def test_a_state_that_this_version_does_not_know_is_kept(shop: Shop) -> None:
    shop.service.script = [stored(state="enchanted")]
    order = shop.partner.find_order("A-1")
    assert order and order.state == "enchanted" and order.state not in list(OrderState)
    assert order.to_dict()["state"] == "enchanted"


@pytest.mark.parametrize("external_order_id", ["A/1 ü?&=%+", ".", "..", "a/../b", "%2E"])
def test_every_id_can_be_looked_up(shop: Shop, external_order_id: str) -> None:
    shop.service.script = [UNKNOWN, stored(external_order_id=external_order_id)]
    assert shop.partner.find_order(external_order_id) is None
    order = shop.partner.find_order(external_order_id)
    assert order and order.state == "processing"
    path, _, query = shop.service.requests[0][1].partition("?")
    assert path == "/api/v1/api_partner/orders"
    assert parse_qs(query, strict_parsing=True) == {"external_order_id": [external_order_id]}


def test_no_wait_is_longer_than_the_caller_allowed(shop: Shop) -> None:
    """Row 5: ``Retry-After: 86400`` made a call with ``patience=1`` sleep a day."""
    for seconds in ("86400", "9" * 400, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "Friday, 31-Dec-49 23:59:59 GMT"):
        shop.service.retry_after = seconds
        with pytest.raises(Unavailable):
            shop.order(LIMITED, patience=5)
        with pytest.raises(Unanswered):
            shop.service.script = [LIMITED]
            shop.partner.find_order("A-1", patience=5)
        with pytest.raises(Unanswered):
            shop.service.script = [LIMITED]
            list(shop.partner.options(patience=5))
    assert shop.slept == []
    for seconds in ("-1", "1.5", "soon", "", "Sun, 06 Nov 1994 08:49:37 GMT", "000000000000000000001"):
        shop.service.retry_after = seconds
        shop.order(LIMITED, DONE)
    assert shop.slept == [1] * 6


def test_the_waits_can_be_changed(shop: Shop) -> None:
    waits = Waits(first=(0.5,), then=3)
    partner = Partner(
        f"{shop.service.url}/v1/api_partner/", "ak", "c2VjcmV0LWtleQ==", waits=waits, sleep=shop.slept.append
    )
    shop.service.script = [ERROR, ERROR, ERROR, DONE]
    partner.order("A-1", ITEMS)
    assert shop.slept == [0.5, 3, 3]
    assert shop.service.requests[0][1] == "/v1/api_partner/orders"
