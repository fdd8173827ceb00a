"""The account of a partner: it places orders so that none is bought twice, and reads lists page by page."""

from __future__ import annotations

import datetime
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx

from .errors import Answer, ApiError, InDoubt, OrderIdTaken, OrderRefused, Unavailable
from .generated.client import AuthenticatedClient
from .generated.models import (
    CreatedOrder,
    Event,
    Item,
    NewOrder,
    Offered,
    Order,
    OrderState,
    Summary,
)
from .signing import Keys, Signature

PREFIX = "/v1/api_partner"
TAKEN = "external_order_id_taken"
#: The size of the pages that lists are read in.
PAGE = 100
#: The wait after a 503 without ``Retry-After``.
BUSY = 3.0


@dataclass(frozen=True)
class Waits:
    """How long the client waits, in seconds. The defaults are those of the partner guide."""

    #: Before the first repeats of a request without a definite answer.
    first: tuple[float, ...] = (1, 2, 4, 8)
    #: Before each further repeat of an order.
    then: float = 60
    #: How long a request without an answer may still be on its way.
    on_its_way: float = 60


@dataclass(frozen=True)
class PlacedTopup:
    """One unit of an order."""

    topup_id: str
    option_id: UUID


@dataclass(frozen=True)
class PlacedOrder:
    """A stored order. It is bought once, and each eSIM comes to you in a webhook."""

    external_order_id: str
    topups: tuple[PlacedTopup, ...]
    #: Whether an earlier request had stored the order, for example one whose answer was lost.
    stored_before: bool


class Partner:
    """An account of the service.

    ``api`` is the generated client with all requests, signed by this account::

        from esim_partner.generated.api.webhook import show_webhook
        endpoint = show_webhook.sync(client=partner.api)
    """

    def __init__(
        self,
        base_url: str,
        access_key: str,
        secret_key: str,
        *,
        brand: str = "Service",
        timeout: float = 30,
        waits: Waits | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``base_url`` is that of the service, such as ``https://esim.example.com``. ``brand`` is the second part of
        the header names, if you were told another one than ``Service``. A shorter ``timeout`` than 30 s would only
        leave you in doubt about more of your orders."""
        self._brand = brand
        self._waits = waits or Waits()
        self._sleep = sleep
        root = base_url.rstrip("/")
        self.api = AuthenticatedClient(
            base_url=root if root.endswith(PREFIX) else f"{root}/api{PREFIX}",
            token=access_key,
            prefix="",
            auth_header_name=f"X-{brand}-Access-Key",
            timeout=httpx.Timeout(timeout),
            httpx_args={"auth": Signature(Keys(access_key, secret_key, brand))},
        )

    def order(self, external_order_id: str, items: Sequence[Item], *, patience: float = 300) -> PlacedOrder:
        """Places an order, and repeats the request with the same id until the answer is definite.

        A repeat never buys twice. If an earlier request stored the same order, that order is returned; so calling this
        again after a crash of your program is safe, too. It waits between repeats for at most ``patience`` seconds.

        Raises :class:`OrderRefused` if nothing is stored, :class:`OrderIdTaken` if another order has the id,
        :class:`InDoubt` if the patience is over without a definite answer, :class:`Unavailable` if it is over and
        nothing was stored, and :class:`ApiError` if the request itself is wrong, for example its signature.
        """
        body = NewOrder(external_order_id, list(items)).to_dict()
        waits = itertools.chain(self._waits.first, itertools.repeat(self._waits.then))
        end = time.monotonic() + patience
        in_doubt = False
        # When the last request was sent that got no answer. It may be stored even after a later one was refused.
        unanswered: float | None = None
        while True:
            sent = time.monotonic()
            outcome = self._send("POST", "/orders", json=body)
            if isinstance(outcome, Answer):
                if outcome.status == 201:
                    created = CreatedOrder.from_dict(outcome.json)
                    topups = tuple(PlacedTopup(one.topup_id, one.option_id) for one in created.products)
                    return PlacedOrder(external_order_id, topups, stored_before=False)
                if TAKEN in outcome.codes:
                    return self._taken(external_order_id, items, outcome)
                if outcome.status == 422:
                    if unanswered is not None and (found := self._arrived(external_order_id, items, unanswered)):
                        return found
                    raise OrderRefused(outcome)
                if not _is_temporary(outcome):
                    if in_doubt:
                        raise InDoubt(
                            f"the order may be stored, but its repeat was refused: {outcome}"
                        ) from ApiError(outcome)
                    raise ApiError(outcome)
                stored_nothing = outcome.status in (408, 429) or (outcome.status == 503 and bool(outcome.codes))
                if not stored_nothing:
                    in_doubt = True
                    # Without a code it is not the service that answers, so the request may still be on its way to it.
                    unanswered = unanswered if outcome.codes else sent
            elif not isinstance(outcome, httpx.ConnectError):
                in_doubt = True
                unanswered = sent
            wait = _wait(outcome, next(waits))
            if time.monotonic() + wait > end:
                cause = outcome if isinstance(outcome, Exception) else ApiError(outcome)
                if in_doubt:
                    raise InDoubt("there is no definite answer; repeat the order with the same id") from cause
                raise Unavailable("nothing was stored; place the order later") from cause
            self._sleep(wait)

    def find_order(self, external_order_id: str) -> Order | None:
        """The order with this id. ``None`` means that it is not stored now, although a request for it may still be on
        its way; so this does not replace a repeat of the order."""
        answer = self._read(f"/orders/{quote(external_order_id, safe='')}")
        if answer.status == 404:
            return None
        return Order.from_dict(_success(answer))

    def orders(
        self, *, created_after: datetime.datetime | None = None, state: OrderState | None = None
    ) -> Iterator[Summary]:
        """All orders without their topups, the newest first, read page by page as you go on."""
        parameters: dict[str, str] = {}
        if created_after is not None:
            parameters["created_after"] = created_after.astimezone(datetime.UTC).isoformat()
        if state is not None:
            parameters["state"] = state.value
        return (Summary.from_dict(one) for one in self._pages("/orders", "orders", parameters))

    def options(
        self,
        *,
        country: str | None = None,
        min_data_mb: int | None = None,
        unlimited: bool | None = None,
        min_days: int | None = None,
        max_days: int | None = None,
    ) -> Iterator[Offered]:
        """The options that this account may order, and that match all filters.

        `country` is a code of ISO 3166-1 alpha-2 such as JP. Unlimited data is enough for every `min_data_mb`.
        """
        given = {
            "country": country,
            "min_data_mb": min_data_mb,
            "unlimited": None if unlimited is None else str(unlimited).lower(),
            "min_days": min_days,
            "max_days": max_days,
        }
        parameters = {name: str(value) for name, value in given.items() if value is not None}
        return (Offered.from_dict(one) for one in self._pages("/options", "options", parameters))

    def events(self) -> Iterator[Event]:
        """The further events of the last 30 days, the newest first."""
        return (Event.from_dict(one) for one in self._pages("/webhook/events", "events", {}))

    def _pages(self, path: str, name: str, parameters: dict[str, str]) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            given = {**parameters, "limit": str(PAGE), **({"cursor": cursor} if cursor else {})}
            page = _success(self._read(path, given))
            yield from page[name]
            # A page may be empty although others follow, so only the cursor ends the list.
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _taken(self, external_order_id: str, items: Sequence[Item], answer: Answer) -> PlacedOrder:
        """What the order is that has the id: the same one, which an earlier request stored, or another one."""
        shown = self._read(f"/orders/{quote(external_order_id, safe='')}")
        if shown.status in (404, 410):
            raise OrderIdTaken(answer, None)
        order = Order.from_dict(_success(shown))
        if not _is_same(order, items):
            raise OrderIdTaken(answer, order)
        return _placed(order)

    def _arrived(self, external_order_id: str, items: Sequence[Item], unanswered: float) -> PlacedOrder | None:
        """Whether a request without an answer has stored the order after all, although a later one was refused."""
        self._sleep(max(0.0, unanswered + self._waits.on_its_way - time.monotonic()))
        order = self.find_order(external_order_id)
        if order is None or order.state in (OrderState.REFUSED, OrderState.CANCELLED) or not _is_same(order, items):
            return None
        return _placed(order)

    def _read(self, path: str, parameters: dict[str, str] | None = None) -> Answer:
        """A GET, which is repeated after a temporary failure, because it changes nothing."""
        for wait in (*self._waits.first, None):
            outcome = self._send("GET", path, params=parameters or {})
            if isinstance(outcome, Answer) and not _is_temporary(outcome):
                return outcome
            if wait is None:
                cause = outcome if isinstance(outcome, Exception) else ApiError(outcome)
                raise Unavailable(f"GET {path} was repeated and got no answer") from cause
            self._sleep(_wait(outcome, wait))
        raise AssertionError("the loop ends with a return or an error")

    def _send(self, method: str, path: str, **arguments: Any) -> Answer | httpx.TransportError:
        try:
            response = self.api.get_httpx_client().request(method, path, **arguments)
        except httpx.TransportError as error:
            return error
        return _answer(response, self._brand)


def _answer(response: httpx.Response, brand: str) -> Answer:
    try:
        body = response.json()
    except ValueError:
        body = None
    errors = body.get("errors", body.get("error")) if isinstance(body, dict) else None
    if isinstance(errors, dict):
        errors = errors.get("message")
    messages = errors if isinstance(errors, list) else [errors] if isinstance(errors, str) else []
    named = response.headers.get(f"X-{brand}-Error", "")
    codes = [code.partition(";")[0].strip() for code in named.split(",")]
    retry_after = response.headers.get("Retry-After", "")
    return Answer(
        status=response.status_code,
        codes=tuple(code for code in codes if code),
        messages=tuple(str(message) for message in messages),
        request_id=response.headers.get("X-Request-Id"),
        retry_after=int(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
        json=body,
    )


def _is_temporary(answer: Answer) -> bool:
    return answer.status >= 500 or answer.status in (408, 429)


def _wait(outcome: Answer | httpx.TransportError, otherwise: float) -> float:
    if isinstance(outcome, Answer) and outcome.retry_after is not None:
        return max(1.0, outcome.retry_after)
    if isinstance(outcome, Answer) and outcome.status == 503 and outcome.codes:
        return BUSY
    return otherwise


def _success(answer: Answer) -> Any:
    if answer.status != 200:
        raise ApiError(answer)
    return answer.json


def _is_same(order: Order, items: Sequence[Item]) -> bool:
    ordered: Counter[UUID] = Counter()
    for item in items:
        ordered[item.option_id] += item.qty
    return Counter(topup.option_id for topup in order.topups) == ordered


def _placed(order: Order) -> PlacedOrder:
    topups = tuple(PlacedTopup(topup.topup_id, topup.option_id) for topup in order.topups)
    return PlacedOrder(order.external_order_id, topups, stored_before=True)
