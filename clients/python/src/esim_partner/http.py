"""The HTTP clients of this package: no call is longer than its timeout, no answer is larger than ``MAX_ANSWER``, and each
is of the service.

An error without a code in ``X-Service-Error`` comes from something in between, such as a proxy. It may have passed the
request on before, so it says nothing about it, and counts as no answer: the call raises :class:`ForeignAnswer`.

httpx counts a timeout anew for each piece that it receives, so an answer that comes a byte at a time would last without
end. Here the timeout is that of the whole call, from the look-up of the address to the last byte of the answer.
"""

import asyncio
import contextlib
import contextvars
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx

#: In bytes. The largest answers are orders: one with 1,000 units, which is the default limit, has less than 2 MB.
MAX_ANSWER = 32 * 1024 * 1024

#: Each call has a connection of its own. So a call never meets a connection that the service is just closing, which would
#: leave an order in doubt, and a call that takes too long can be ended by closing its connection.
LIMITS = httpx.Limits(max_keepalive_connections=0)
#: A compressed answer could be a thousand times larger than what was received.
HEADERS = {"Accept-Encoding": "identity"}


class ForeignAnswer(httpx.HTTPError):
    """An error that does not come from the service. The request may have reached the service, or still reach it."""


def codes(headers: httpx.Headers, brand: str) -> tuple[str, ...]:
    """The codes that an answer names. They are words, so anything else does not come from the service."""
    named = [code.partition(";")[0].strip() for code in headers.get(f"X-{brand}-Error", "").split(",")]
    return tuple(code for code in named if re.fullmatch("[a-z0-9_]{1,64}", code))


class Call:
    """What is known of a call while another thread sends it."""

    def __init__(self) -> None:
        self.is_over = False
        #: Whether the request may have reached the service.
        self.is_sent = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpx calls it before and after each step of the call."""
        with self._lock:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                self._socket = info["return_value"].get_extra_info("socket")
            # A request that begins after the caller has given up could be stored after the caller has looked for it.
            if self.is_over and event.endswith(".started"):
                raise httpx.ConnectTimeout("the call was given up before its request was sent")
            self.is_sent |= event.endswith("send_request_headers.started")

    async def trace_async(self, event: str, info: dict[str, Any]) -> None:
        self.trace(event, info)

    def give_up(self) -> None:
        """Ends the call: nothing more is sent, and a thread that waits for the other side ends."""
        with self._lock:
            self.is_over = True
            connected = self._socket
        if connected is not None:
            # The method of a TLS socket would change what the other thread is using.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def too_long(self, request: httpx.Request, seconds: float | None) -> httpx.TimeoutException:
        kind = httpx.ReadTimeout if self.is_sent else httpx.ConnectTimeout
        return kind(f"there was no whole answer within {seconds} s", request=request)


class Collected:
    """The body of an answer as it arrives."""

    def __init__(self, response: httpx.Response, brand: str) -> None:
        if not (response.is_success or response.status_code == 304 or codes(response.headers, brand)):
            raise ForeignAnswer(
                f"the status {response.status_code} without X-{brand}-Error is not of the service but of something in "
                "between, or base_url or brand is wrong"
            )
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise httpx.DecodingError("the answer is compressed, although that was not asked for")
        self._response = response
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_ANSWER:
            raise httpx.ReadError(f"the answer has more than {MAX_ANSWER} bytes")
        self._chunks.append(chunk)

    def whole(self) -> httpx.Response:
        """The response with its body."""
        given = self._response
        whole = httpx.Response(
            given.status_code,
            headers=given.headers,
            content=b"".join(self._chunks),
            request=given.request,
            extensions=given.extensions,
            history=given.history,
        )
        whole.elapsed = given.elapsed
        return whole


def _timeout(request: httpx.Request) -> float | None:
    timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
    return timeouts.get("read")


class BoundedClient(httpx.Client):
    """An ``httpx.Client`` whose calls end in time, with an answer of the service."""

    def __init__(self, brand: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._brand = brand

    def send(self, request: httpx.Request, *, stream: bool = False, **arguments: Any) -> httpx.Response:
        if stream:
            return super().send(request, stream=True, **arguments)
        call = Call()
        request.extensions = {**request.extensions, "trace": call.trace}
        send = super().send

        def exchange() -> httpx.Response:
            response = send(request, stream=True, **arguments)
            try:
                collected = Collected(response, self._brand)
                for chunk in response.iter_raw():
                    collected.add(chunk)
            finally:
                response.close()
            return collected.whole()

        seconds = _timeout(request)
        try:
            return _in_time(exchange, seconds)
        except TimeoutError:
            raise call.too_long(request, seconds) from None
        finally:
            call.give_up()


def _in_time(work: Callable[[], httpx.Response], seconds: float | None) -> httpx.Response:
    """Runs the work in a thread, and raises ``TimeoutError`` if it is not done in time."""
    results: list[httpx.Response] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it is raised in the caller's thread
            errors.append(error)
        finally:
            done.set()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="esim-partner call", daemon=True).start()
    if not done.wait(seconds):
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


class BoundedAsyncClient(httpx.AsyncClient):
    """An ``httpx.AsyncClient`` whose calls end in time, with an answer of the service."""

    def __init__(self, brand: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._brand = brand

    async def send(self, request: httpx.Request, *, stream: bool = False, **arguments: Any) -> httpx.Response:
        if stream:
            return await super().send(request, stream=True, **arguments)
        call = Call()
        request.extensions = {**request.extensions, "trace": call.trace_async}
        seconds = _timeout(request)
        try:
            async with asyncio.timeout(seconds):
                response = await super().send(request, stream=True, **arguments)
                try:
                    collected = Collected(response, self._brand)
                    async for chunk in response.aiter_raw():
                        collected.add(chunk)
                finally:
                    await response.aclose()
                return collected.whole()
        except TimeoutError:
            raise call.too_long(request, seconds) from None
