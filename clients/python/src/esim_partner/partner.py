"""The account of a partner: it places orders so that none is bought twice, and reads lists page by page."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from . import flow, settings
from .flow import AnyItem, Flow, NoAnswer, Outcome, Pause, PlacedOrder, Request, Waits
from .generated.client import AuthenticatedClient
from .generated.models import Event, ListedTopup, Offered, Order, OrderState, Summary
from .http import HEADERS, LIMITS, BoundedAsyncClient, BoundedClient
from .signing import Keys, Signature

PREFIX = "/v1/api_partner"
#: The size of the pages that lists are read in.
PAGE = 100
#: In seconds.
TIMEOUT = 30.0
PATIENCE = 300.0

T = TypeVar("T")


class _Account:
    """What :class:`Partner` and :class:`AsyncPartner` share."""

    #: The generated client with all requests, signed by this account.
    api: AuthenticatedClient

    def __init__(
        self, base_url: str, access_key: str, secret_key: str, brand: str, timeout: float, waits: Waits | None
    ) -> None:
        root = settings.base_url(base_url)
        self._brand = brand
        self._timeout = settings.seconds("timeout", timeout)
        self._waits = waits or Waits()
        for one in self._waits.first:
            settings.seconds("waits.first", one, zero=True)
        settings.seconds("waits.then", self._waits.then)
        settings.seconds("waits.on_its_way", self._waits.on_its_way, zero=True)
        auth = Signature(Keys(access_key, secret_key, brand))
        url = root if root.endswith(PREFIX) else f"{root}/api{PREFIX}"
        limit = httpx.Timeout(self._timeout)
        self.api = AuthenticatedClient(
            base_url=url,
            token=access_key,
            prefix="",
            auth_header_name=f"X-{brand}-Access-Key",
            timeout=limit,
            httpx_args={"auth": auth},
        )
        shared: dict[str, Any] = {
            "brand": brand,
            "base_url": url,
            "auth": auth,
            "timeout": limit,
            "limits": LIMITS,
            "headers": HEADERS,
            "verify": httpx.create_ssl_context(),
        }
        self.api.set_httpx_client(BoundedClient(**shared))
        self.api.set_async_httpx_client(BoundedAsyncClient(**shared))

    def _arguments(self, request: Request) -> dict[str, Any]:
        rest = max(0.001, min(self._timeout, request.until - time.monotonic()))
        arguments: dict[str, Any] = {"timeout": httpx.Timeout(rest)}
        if request.parameters is not None:
            arguments["params"] = dict(request.parameters)
        if request.body is not None:
            arguments["json"] = request.body
        if request.is_repeat:
            arguments["headers"] = {f"X-{self._brand}-Repeat": "answer"}
        return arguments


def _order_filter(created_after: datetime.datetime | None, state: OrderState | None) -> dict[str, str]:
    parameters: dict[str, str] = {}
    if created_after is not None:
        parameters["created_after"] = created_after.astimezone(datetime.UTC).isoformat()
    if state is not None:
        parameters["state"] = state.value
    return parameters


def _walk_filter(since: datetime.datetime, until: datetime.datetime) -> dict[str, str]:
    named = {"updated_since": since, "updated_until": until}
    return {name: at.astimezone(datetime.UTC).isoformat() for name, at in named.items()}


def _option_filter(
    country: str | None,
    network: str | None,
    kind: str | None,
    min_data_mb: int | None,
    max_data_mb: int | None,
    unlimited: bool | None,
    min_days: int | None,
    max_days: int | None,
    updated_since: datetime.datetime | None,
) -> dict[str, str]:
    given = {
        "country": country,
        "network": network,
        "kind": kind,
        "min_data_mb": min_data_mb,
        "max_data_mb": max_data_mb,
        "unlimited": None if unlimited is None else str(unlimited).lower(),
        "min_days": min_days,
        "max_days": max_days,
        "updated_since": updated_since and updated_since.astimezone(datetime.UTC).isoformat(),
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _page_of(parameters: Mapping[str, str], cursor: str | None) -> dict[str, str]:
    return {**parameters, "limit": str(PAGE), **({"cursor": cursor} if cursor else {})}


class Partner(_Account):
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
        timeout: float = TIMEOUT,
        waits: Waits | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``base_url`` is that of the service, such as ``https://esim.example.com``. ``brand`` is the second part of
        the header names, if you were told another one than ``Service``. ``timeout`` is how many seconds one request may
        take; a shorter one than 30 s would only leave you in doubt about more of your orders.

        Raises ``ValueError``, which names the setting that is wrong."""
        super().__init__(base_url, access_key, secret_key, brand, timeout, waits)
        self._sleep = sleep

    def order(
        self,
        external_order_id: str,
        items: Sequence[AnyItem],
        *,
        first_call: bool = False,
        patience: float = PATIENCE,
        metadata: Mapping[str, str] | None = None,
    ) -> PlacedOrder:
        """Places an order, and repeats the request with the same id until the answer is definite.

        A repeat never buys twice. If an earlier request stored the same order, that order is returned; so calling this
        again after a crash of your program is safe, too. The call takes at most ``patience`` seconds, whatever the
        other side does.

        An earlier call with the same id, also one of a process that crashed, may have sent a request that is still on
        its way. So a refusal is believed only after a minute, in which such a request has arrived or is lost. Pass
        ``first_call=True`` if you know that nobody has called this with the id before, for example because you made
        the id just now: then a refusal is final at once.

        ``metadata`` is what you want to find again with the order: at most 10 texts by name. If an earlier call has
        stored the same units, its metadata stays.

        Raises :class:`OrderRefused` if nothing is stored, :class:`OrderIdTaken` if another order has the id,
        :class:`InDoubt` if the patience is over without a definite answer, :class:`Unavailable` if it is over and
        the first call stored nothing, and :class:`ApiError` if the request itself is wrong, for example its
        signature. A ``ValueError`` names what cannot be sent, for example an ``option_id`` that is not a UUID.
        """
        patience = settings.seconds("patience", patience)
        return self._run(flow.order(external_order_id, items, first_call, self._waits, patience, metadata))

    def find_order(self, external_order_id: str, *, patience: float = PATIENCE) -> Order | None:
        """The order with this id. ``None`` means that it is not stored now, although a request for it may still be on
        its way; so this does not replace a repeat of the order. An order that was archived is an :class:`ApiError` with
        the code ``order_archived``. Without an answer of the service it raises :class:`Unanswered`, as the lists do."""
        patience = settings.seconds("patience", patience)
        return self._run(flow.find(external_order_id, self._waits, patience))

    def orders(
        self,
        *,
        created_after: datetime.datetime | None = None,
        state: OrderState | None = None,
        patience: float = PATIENCE,
    ) -> Iterator[Summary]:
        """All orders without their topups, the newest first, read page by page as you go on. A page takes at most
        ``patience`` seconds."""
        return self._pages("/orders", "orders", _order_filter(created_after, state), Summary.from_dict, patience)

    def topup_changes(
        self,
        updated_since: datetime.datetime,
        updated_until: datetime.datetime,
        *,
        patience: float = PATIENCE,
    ) -> Iterator[ListedTopup]:
        """What became ready, failed, was extended or given back after ``updated_since``, the oldest first, for example
        for the books of a day: a topup that changed twice comes twice. A change appears after a minute, so pass an
        ``updated_until`` that is longer ago, and begin the next walk there."""
        parameters = _walk_filter(updated_since, updated_until)
        return self._pages("/topups", "topups", parameters, ListedTopup.from_dict, patience)

    def options(
        self,
        *,
        country: str | None = None,
        network: str | None = None,
        kind: str | None = None,
        min_data_mb: int | None = None,
        max_data_mb: int | None = None,
        unlimited: bool | None = None,
        min_days: int | None = None,
        max_days: int | None = None,
        updated_since: datetime.datetime | None = None,
        patience: float = PATIENCE,
    ) -> Iterator[Offered]:
        """The options that this account may order, and that match all filters.

        `country` is a code of ISO 3166-1 alpha-2 such as JP. Unlimited data is enough for every `min_data_mb` and too
        much for every `max_data_mb`. `kind` is data or data_voice_text.
        """
        parameters = _option_filter(
            country, network, kind, min_data_mb, max_data_mb, unlimited, min_days, max_days, updated_since
        )
        return self._pages("/options", "options", parameters, Offered.from_dict, patience)

    def events(self, *, patience: float = PATIENCE) -> Iterator[Event]:
        """The further events of the last 30 days, the newest first."""
        return self._pages("/webhook/events", "events", {}, Event.from_dict, patience)

    def _pages(
        self,
        path: str,
        name: str,
        parameters: Mapping[str, str],
        model: Callable[[dict[str, Any]], T],
        patience: float,
    ) -> Iterator[T]:
        patience = settings.seconds("patience", patience)
        cursor: str | None = None
        while True:
            page = flow.page(path, name, _page_of(parameters, cursor), self._waits, patience, model)
            entries, cursor = self._run(page)
            yield from entries
            # A page may be empty although others follow, so only the cursor ends the list.
            if cursor is None:
                return

    def _run(self, steps: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = next(steps) if outcome is None else steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                self._sleep(step.seconds)
                outcome = None
            else:
                outcome = self._send(step)

    def _send(self, request: Request) -> Outcome:
        client = self.api.get_httpx_client()
        try:
            response = client.request(request.method, request.path, **self._arguments(request))
        except Exception as error:  # whatever httpx and what lies below it raise: there is no answer
            return NoAnswer(error)
        return flow.answer(response, self._brand)


class AsyncPartner(_Account):
    """The same as :class:`Partner` for programs that use asyncio."""

    def __init__(
        self,
        base_url: str,
        access_key: str,
        secret_key: str,
        *,
        brand: str = "Service",
        timeout: float = TIMEOUT,
        waits: Waits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """The same as for :class:`Partner`."""
        super().__init__(base_url, access_key, secret_key, brand, timeout, waits)
        self._sleep = sleep

    async def order(
        self,
        external_order_id: str,
        items: Sequence[AnyItem],
        *,
        first_call: bool = False,
        patience: float = PATIENCE,
        metadata: Mapping[str, str] | None = None,
    ) -> PlacedOrder:
        """The same as :meth:`Partner.order`. If the task is cancelled, the order may be stored: call this again with the
        same id."""
        patience = settings.seconds("patience", patience)
        return await self._run(flow.order(external_order_id, items, first_call, self._waits, patience, metadata))

    async def find_order(self, external_order_id: str, *, patience: float = PATIENCE) -> Order | None:
        """The same as :meth:`Partner.find_order`."""
        patience = settings.seconds("patience", patience)
        return await self._run(flow.find(external_order_id, self._waits, patience))

    def orders(
        self,
        *,
        created_after: datetime.datetime | None = None,
        state: OrderState | None = None,
        patience: float = PATIENCE,
    ) -> AsyncIterator[Summary]:
        """The same as :meth:`Partner.orders`."""
        return self._pages("/orders", "orders", _order_filter(created_after, state), Summary.from_dict, patience)

    def topup_changes(
        self,
        updated_since: datetime.datetime,
        updated_until: datetime.datetime,
        *,
        patience: float = PATIENCE,
    ) -> AsyncIterator[ListedTopup]:
        """The same as :meth:`Partner.topup_changes`."""
        parameters = _walk_filter(updated_since, updated_until)
        return self._pages("/topups", "topups", parameters, ListedTopup.from_dict, patience)

    def options(
        self,
        *,
        country: str | None = None,
        network: str | None = None,
        kind: str | None = None,
        min_data_mb: int | None = None,
        max_data_mb: int | None = None,
        unlimited: bool | None = None,
        min_days: int | None = None,
        max_days: int | None = None,
        updated_since: datetime.datetime | None = None,
        patience: float = PATIENCE,
    ) -> AsyncIterator[Offered]:
        """The same as :meth:`Partner.options`."""
        parameters = _option_filter(
            country, network, kind, min_data_mb, max_data_mb, unlimited, min_days, max_days, updated_since
        )
        return self._pages("/options", "options", parameters, Offered.from_dict, patience)

    def events(self, *, patience: float = PATIENCE) -> AsyncIterator[Event]:
        """The same as :meth:`Partner.events`."""
        return self._pages("/webhook/events", "events", {}, Event.from_dict, patience)

    async def _pages(
        self,
        path: str,
        name: str,
        parameters: Mapping[str, str],
        model: Callable[[dict[str, Any]], T],
        patience: float,
    ) -> AsyncIterator[T]:
        patience = settings.seconds("patience", patience)
        cursor: str | None = None
        while True:
            page = flow.page(path, name, _page_of(parameters, cursor), self._waits, patience, model)
            entries, cursor = await self._run(page)
            for entry in entries:
                yield entry
            if cursor is None:
                return

    async def _run(self, steps: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = next(steps) if outcome is None else steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
                outcome = None
            else:
                outcome = await self._send(step)

    async def _send(self, request: Request) -> Outcome:
        client = self.api.get_async_httpx_client()
        try:
            response = await client.request(request.method, request.path, **self._arguments(request))
        except Exception as error:  # as in Partner
            return NoAnswer(error)
        return flow.answer(response, self._brand)
