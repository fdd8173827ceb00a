"""What the client does with each answer, without sending anything: :mod:`.partner` does that, sync or async.

Each function yields a :class:`Request` and gets its outcome, or yields a :class:`Pause`. Only what can be read as an
answer that the partner guide describes is believed. Anything else, for example the page of a proxy or an answer that is
cut, is treated like no answer: the request is repeated, and an order is looked up.
"""

from __future__ import annotations

import datetime
import email.utils
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

import httpx

from .errors import (
    Answer,
    ApiError,
    InDoubt,
    OrderIdTaken,
    OrderRefused,
    PartnerError,
    Unanswered,
    Unavailable,
    printable,
)
from .generated.models import Order, OrderState
from .http import codes

TAKEN = "external_order_id_taken"
#: Another order has the id, as the answer to a repeat says it.
DIFFERS = "order_differs"
#: The wait after a 503 without ``Retry-After``.
BUSY = 3.0
#: The states of an order that stands: it is bought, is being bought, or failed later. Its id is not free.
STANDING = (OrderState.PROCESSING, OrderState.READY, OrderState.PARTLY_FAILED, OrderState.FAILED)
#: Those of an order that is not bought and whose id is free.
GONE = (OrderState.REFUSED, OrderState.CANCELLED)

T = TypeVar("T")


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
class Item:
    """An option, and how many units of it are ordered. The id of the option may be text or a UUID."""

    option_id: UUID | str
    qty: int = 1
    #: What you want to find again with its topups: at most 10 texts by name.
    metadata: Mapping[str, str] | None = None


class AnyItem(Protocol):
    """An :class:`Item`, or the one of the generated code."""

    @property
    def option_id(self) -> UUID | str: ...

    @property
    def qty(self) -> int: ...


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
    #: As the answer or the look-up showed it. Units of an order that an earlier call stored may have failed since; then it
    #: is ``PARTLY_FAILED`` or ``FAILED``.
    state: OrderState = OrderState.PROCESSING


@dataclass(frozen=True)
class Request:
    """Send this, and stop waiting at ``until`` (of ``time.monotonic``)."""

    method: str
    path: str
    until: float
    parameters: Mapping[str, str] | None = None
    body: Any = None
    #: Whether the answer of an earlier request is asked for, if that one has stored the order.
    is_repeat: bool = False


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class NoAnswer:
    """There was no whole answer."""

    error: Exception

    @property
    def is_sent(self) -> bool:
        """Whether the request may have reached the service."""
        not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
        return not isinstance(self.error, not_sent)


Outcome = Answer | NoAnswer
Flow = Generator[Request | Pause, Outcome, T]


class Unreadable(PartnerError):
    """An answer that the partner guide does not describe."""


def order(
    external_order_id: str,
    items: Sequence[AnyItem],
    first_call: bool,
    waits: Waits,
    patience: float,
    metadata: Mapping[str, str] | None = None,
) -> Flow[PlacedOrder]:
    """:meth:`Partner.order`."""
    began = time.monotonic()
    until = began + patience
    products = _products(items)
    ordered = _count((item["option_id"], item["qty"]) for item in products)
    body: dict[str, Any] = {"external_order_id": _external_order_id(external_order_id), "products": products}
    if metadata:
        body["metadata"] = _metadata(metadata, "the order")
    # Whether a request of this call may have stored the order.
    is_in_doubt = False
    # When the last request was sent that got no answer. It may be stored even after a later one was refused. An earlier
    # call, perhaps of a process that crashed, may have sent one just before this call.
    unanswered: float | None = None if first_call else began
    is_repeat = False
    for pause in itertools.chain(waits.first, itertools.repeat(waits.then)):
        sent = time.monotonic()
        # The first request of a call does not ask for the answer of an earlier call, which may be long ago: the look-up
        # shows what has become of the order since.
        outcome = yield Request("POST", "/orders", until, body=body, is_repeat=is_repeat)
        is_repeat = True
        # Why this answer decides nothing, for the message at the end.
        problem: Exception = outcome.error if isinstance(outcome, NoAnswer) else ApiError(outcome)
        if isinstance(outcome, NoAnswer):
            if outcome.is_sent:
                is_in_doubt, unanswered = True, sent
        elif outcome.status == 201 and (topups := _created(outcome, ordered)):
            return PlacedOrder(external_order_id, topups, stored_before=False)
        elif outcome.status == 200 and outcome.repeat == "answered" and (topups := _created(outcome, ordered)):
            return PlacedOrder(external_order_id, topups, stored_before=True)
        elif (outcome.status == 422 and TAKEN in outcome.codes) or (outcome.status == 409 and DIFFERS in outcome.codes):
            found = yield from _taken(external_order_id, waits, until, outcome)
            if found and found.state in STANDING:
                if not _is_same(found, ordered):
                    raise OrderIdTaken(outcome, found)
                return _placed(found)
            if found and found.state == OrderState.CANCELLED and _is_same(found, ordered):
                cancelled = OrderRefused(outcome, "the order with this id was cancelled, so nothing is bought")
                if unanswered is None:
                    raise cancelled
                return (yield from _settle(external_order_id, ordered, waits, until, unanswered, cancelled))
            # An order that was refused has freed the id, so the repeat decides. If no order is found, or one in a state
            # that this version does not know, then nothing is certain.
            is_in_doubt |= found is None or found.state not in GONE
        elif outcome.status == 422 and outcome.messages:
            refused = OrderRefused(outcome)
            if unanswered is None:
                raise refused
            return (yield from _settle(external_order_id, ordered, waits, until, unanswered, refused))
        elif _is_wrong(outcome):
            if is_in_doubt:
                raise InDoubt(f"the order may be stored, but its repeat was refused: {outcome}") from problem
            raise problem
        elif not _stored_nothing(outcome):
            is_in_doubt = True
            # After an error of the service itself nothing is on its way any more. Any other answer is not as documented.
            if outcome.status < 500:
                unanswered = sent
        pause = _wait(outcome, pause)
        if time.monotonic() + pause >= until:
            if is_in_doubt:
                text = "there is no definite answer; repeat the order with the same id; the last attempt"
                raise InDoubt(f"{text}: {printable(str(problem))}") from problem
            if not first_call:
                text = "this call stored nothing, but an earlier one may have; repeat the order with the same id; the last attempt"
                raise InDoubt(f"{text}: {printable(str(problem))}") from problem
            text = "nothing was stored; place the order later; the last attempt"
            raise Unavailable(f"{text}: {printable(str(problem))}") from problem
        yield Pause(pause)
    raise AssertionError("the waits do not end")


def find(external_order_id: str, waits: Waits, patience: float) -> Flow[Order | None]:
    """:meth:`Partner.find_order`."""
    until = time.monotonic() + patience
    return (yield from _find(_external_order_id(external_order_id), waits, until))


def read(
    path: str, parameters: Mapping[str, str], waits: Waits, until: float, readable: Callable[[Any], T]
) -> Flow[T]:
    """A GET, which is repeated until its answer is readable, because it changes nothing."""
    for pause in (*waits.first, None):
        outcome = yield Request("GET", path, until, parameters)
        problem: Exception
        if isinstance(outcome, NoAnswer):
            problem = outcome.error
        elif _is_wrong(outcome) or outcome.status == 422:
            raise ApiError(outcome)
        elif outcome.status == 200:
            try:
                return readable(outcome.json)
            except Exception as error:  # whatever the generated code makes of values that it does not expect
                problem = Unreadable(f"the answer to GET {path} is not as documented")
                problem.__cause__ = error
        else:
            problem = ApiError(outcome)
        wait = None if pause is None else _wait(outcome, pause)
        if wait is None or time.monotonic() + wait >= until:
            text = f"GET {path} got no answer of the service; the last attempt"
            raise Unanswered(f"{text}: {printable(str(problem))}") from problem
        yield Pause(wait)
    raise AssertionError("the last turn returns or raises")


def page(
    path: str,
    name: str,
    parameters: Mapping[str, str],
    waits: Waits,
    patience: float,
    model: Callable[[dict[str, Any]], T],
) -> Flow[tuple[list[T], str | None]]:
    """One page of a list, and the cursor of the next one."""

    def readable(body: Any) -> tuple[list[T], str | None]:
        cursor = body["next_cursor"]
        if not (cursor is None or (isinstance(cursor, str) and cursor)):
            raise TypeError("the cursor is no text")
        return [model(one) for one in _list(body[name])], cursor

    return (yield from read(path, parameters, waits, time.monotonic() + patience, readable))


def answer(response: httpx.Response, brand: str) -> Answer:
    """What is read of a response."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    errors = body.get("errors", body.get("error")) if isinstance(body, dict) else None
    if isinstance(errors, dict):
        errors = errors.get("message")
    messages = errors if isinstance(errors, list) else [errors] if isinstance(errors, str) else []
    if response.status_code == 422 and not isinstance(errors, list):
        # The errors of a 422 are a list. In another form they are not those of the service, and refuse nothing.
        messages = []
    return Answer(
        status=response.status_code,
        codes=codes(response.headers, brand),
        messages=tuple(message for message in messages if isinstance(message, str)),
        repeat=response.headers.get(f"X-{brand}-Repeat"),
        request_id=response.headers.get("X-Request-Id"),
        retry_after=_seconds(response.headers.get("Retry-After", "")),
        json=body,
    )


def _taken(external_order_id: str, waits: Waits, until: float, taken: Answer) -> Flow[Order | None]:
    """The order that has the id."""
    try:
        return (yield from _find(external_order_id, waits, until))
    except ApiError as error:
        if "order_archived" in error.codes:
            raise OrderIdTaken(taken, None) from error
        raise InDoubt(f"the id is taken, but the look-up of the order was refused: {error}") from error
    except Unanswered as error:
        raise InDoubt("the id is taken, but the order could not be looked up; repeat it with the same id") from error


def _settle(
    external_order_id: str,
    ordered: Counter[UUID],
    waits: Waits,
    until: float,
    unanswered: float,
    refused: OrderRefused,
) -> Flow[PlacedOrder]:
    """Whether a request without an answer has stored the order after all, although a later one was refused."""
    rest = unanswered + waits.on_its_way - time.monotonic()
    doubt = "the order was refused, but an earlier request may be stored; repeat the order with the same id"
    if rest > 0:
        if time.monotonic() + rest >= until:
            raise InDoubt(doubt) from refused
        yield Pause(rest)
    try:
        found = yield from _find(external_order_id, waits, until)
    except PartnerError as error:
        raise InDoubt(doubt) from error
    if found is None or found.state in GONE:
        raise refused
    if found.state not in STANDING:
        raise InDoubt(f"the state {found.state} of the order is unknown to this version") from refused
    if not _is_same(found, ordered):
        raise refused
    return _placed(found)


def _find(external_order_id: str, waits: Waits, until: float) -> Flow[Order | None]:
    """The look-up by the query finds every id, also ``.``, ``..`` and those with ``/``, which a path cannot name."""

    def readable(body: Any) -> Order | None:
        orders = _list(body["orders"])
        if not orders:
            return None
        if len(orders) > 1 or orders[0]["external_order_id"] != external_order_id:
            raise ValueError("these are other orders than the one that was asked for")
        _topups(orders[0]["topups"])
        return Order.from_dict(orders[0])

    return (yield from read("/orders", {"external_order_id": external_order_id}, waits, until, readable))


def _external_order_id(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError("external_order_id is not a text")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise ValueError("external_order_id has a character that cannot be sent") from error
    return given


def _products(items: Sequence[AnyItem]) -> list[dict[str, Any]]:
    products = []
    for index, item in enumerate(items):
        try:
            option_id = item.option_id if isinstance(item.option_id, UUID) else UUID(item.option_id)
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"option_id of item {index} is not a UUID") from None
        if isinstance(item.qty, bool) or not isinstance(item.qty, int):
            raise ValueError(f"qty of item {index} is not a whole number")
        product: dict[str, Any] = {"option_id": str(option_id), "qty": item.qty}
        # The generated item has an object of its own for it, or says that it is not set.
        metadata = getattr(item, "metadata", None)
        if metadata:
            pairs = getattr(metadata, "additional_properties", metadata)
            product["metadata"] = _metadata(pairs, f"item {index}")
        products.append(product)
    return products


def _metadata(given: object, owner: str) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise ValueError(f"metadata of {owner} is not a mapping of texts")
    return dict(given)


def _count(ordered: Any) -> Counter[UUID]:
    counted: Counter[UUID] = Counter()
    for option_id, qty in ordered:
        counted[UUID(option_id)] += qty
    return counted


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("there is no list")
    return value


def _topups(entries: Any) -> tuple[PlacedTopup, ...]:
    topups = []
    for entry in _list(entries):
        if not re.fullmatch("[0-9]{26}", entry["topup_id"]):
            raise ValueError("a topup_id has 26 digits")
        topups.append(PlacedTopup(entry["topup_id"], UUID(entry["option_id"])))
    if not topups:
        raise ValueError("an order has topups")
    return tuple(topups)


def _created(answer: Answer, ordered: Counter[UUID]) -> tuple[PlacedTopup, ...] | None:
    """The topups of a 201 or of its repeat, if it is as documented: one for each unit that was ordered."""
    try:
        topups = _topups(answer.json["products"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return topups if Counter(topup.option_id for topup in topups) == ordered else None


def _is_same(found: Order, ordered: Counter[UUID]) -> bool:
    return Counter(topup.option_id for topup in found.topups) == ordered


def _placed(found: Order) -> PlacedOrder:
    topups = tuple(PlacedTopup(topup.topup_id, topup.option_id) for topup in found.topups)
    return PlacedOrder(found.external_order_id, topups, stored_before=True, state=found.state)


def _is_wrong(answer: Answer) -> bool:
    """The service says that the request itself is wrong. It stored nothing, and a repeat would get the same answer."""
    return 400 <= answer.status < 500 and answer.status not in (408, 422, 429)


def _stored_nothing(answer: Answer) -> bool:
    """The service says that this request stored nothing, and a repeat can succeed."""
    return answer.status in (408, 429, 503) or (answer.status == 202 and answer.repeat == "undecided")


def _wait(outcome: Outcome, otherwise: float) -> float:
    if isinstance(outcome, Answer) and outcome.retry_after is not None:
        return max(1.0, outcome.retry_after)
    if isinstance(outcome, Answer) and outcome.status == 503:
        return BUSY
    return otherwise


def _seconds(retry_after: str) -> int | None:
    """``Retry-After`` in seconds, in the forms of RFC 9110: a number, or one of three forms of a date."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        # A number with more digits is as far away, but could be too large to count with.
        return int(text.lstrip("0")[:12] or "0")
    try:
        date = email.utils.parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=datetime.UTC)
        return max(0, int((date - datetime.datetime.now(datetime.UTC)).total_seconds()) + 1)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
