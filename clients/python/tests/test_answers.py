"""Whatever the other side answers, :meth:`Partner.order` ends with a result or an error that its documentation names, and
believes only what is an answer of the service. And it ends in time."""

import asyncio
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from esim_partner import (
    ApiError,
    AsyncPartner,
    InDoubt,
    Item,
    OrderIdTaken,
    OrderRefused,
    Partner,
    PartnerError,
    PlacedOrder,
    Unanswered,
    Unavailable,
    Waits,
)
from esim_partner import http as bounded
from esim_partner.generated.api.webhook import show_webhook
from hostile import Write, server
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_order import CREATED, ITEMS, stored

KEYS = ("ak_example", "c2VjcmV0LWtleQ==")
#: A call has at most four requests with an order, each with look-ups, and no wait.
WAITS = Waits(first=(0, 0, 0), then=1000, on_its_way=0)
PATIENCE = 100.0
#: How many scripts of answers are made up. Each call prepares TLS anew, which costs far more than the answers.
EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
REFUSAL = {"errors": ["eSIM Request failed"]}
LOOKED_UP: Any = (stored() or (0, "", None))[2]
CANCELLED: Any = (stored(state="cancelled") or (0, "", None))[2]
GOOD = {name: json.dumps(body).encode() for name, body in [
    ("created", CREATED), ("refusal", REFUSAL), ("found", LOOKED_UP), ("cancelled", CANCELLED),
]}  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """An answer, and what its body is if nothing has damaged it."""

    status: bytes
    body: bytes
    text: bytes


def damaged(text: bytes) -> st.SearchStrategy[bytes]:
    parsed = json.loads(text)
    odd: st.SearchStrategy[Any] = st.sampled_from([None, True, 5, -1e400, "", "x", [], {}, [[]], "2" * 26, "9" * 5000, "\ud800"])

    def replaced(path: list[int], value: Any) -> bytes:
        """One value somewhere in the JSON is another one."""
        changed = json.loads(text)
        at = changed
        for step in path:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = keys[step % len(keys)]
            if not isinstance(at[key], (dict, list)) or step == path[-1]:
                at[key] = value
                break
            at = at[key]
        return json.dumps(changed).encode()

    def without(step: int) -> bytes:
        left = dict(parsed)
        del left[list(left)[step % len(left)]]
        return json.dumps(left).encode()

    return st.one_of(
        st.integers(0, len(text) - 1).map(lambda end: text[:end]),
        st.binary(max_size=40),
        st.integers(0, 5).map(without),
        st.builds(replaced, st.lists(st.integers(0, 30), min_size=1, max_size=5), odd),
        st.sampled_from([
            b"", b"null", b"[]", b"{}", b"5", b'"x"', b"<h1>Bad gateway</h1>", b"[" * 100_000, b'{"a":' * 100_000,
            b"[" * 100_000 + b"]" * 100_000, b"\xff\xfe", b"1" * 5000, zlib.compress(text), text + b"}", b"\xef\xbb\xbf",
        ]),
    )  # fmt: skip


HEADERS = [
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Encoding: \xff", b"Content-Type: text/html; charset=\xff",
    b"Content-Length: 5", b"Content-Length: 100000", b"Content-Length: -1", b"Content-Length: x", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: x", b"Retry-After: 86400", b"Retry-After: " + b"9" * 5000, b"Retry-After: -5", b"Retry-After: \xb2",
    b"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", b"X-Service-Error: \xff", b"X-Service-Error: ,;,", b"X-Request-Id: \x1b[31m",
    b"Set-Cookie: \xff=\xff; Domain=[", b"Location: http://[", b"no colon", b"\x00: \x00", b" folded", b"Connection: keep-alive",
    b"X-Service-Error: provider_rejected", b"X-Service-Error: external_order_id_taken", b"X-Service-Error: internal_error",
    b"X-Service-Error: " + b"a" * 70_000,
]  # fmt: skip
STATUSES = st.one_of(
    st.sampled_from([b"200", b"201", b"422", b"500", b"502", b"503", b"429", b"400", b"404", b"410", b"301", b"204", b"304"]),
    st.integers(0, 1200).map(lambda status: str(status).encode()),
    st.sampled_from([b"", b"-1", b"abc", b"2e2", b"99999", b"\xff"]),
)
LINES = st.sampled_from([b"HTTP/1.1 %s OK", b"HTTP/1.0 %s OK", b"HTTP/1.1 %s", b"HTTP/9.9 %s OK", b"ICY %s OK", b"%s", b"HTTP/1.1 %s \xff"])


BASES = [
    (b"201", b"", GOOD["created"]),
    (b"200", b"", GOOD["found"]),
    (b"200", b"", GOOD["cancelled"]),
    (b"422", b"X-Service-Error: external_order_id_taken", GOOD["refusal"]),
    (b"422", b"X-Service-Error: provider_rejected", GOOD["refusal"]),
]


@st.composite
def answers(draw: st.DrawFn) -> Raw:
    """A documented answer, often with some damage."""
    status, codes, body = draw(st.sampled_from(BASES))
    damage = draw(st.sampled_from(["none", "none", "status", "line", "headers", "body", "all", "bytes"]))
    line = b"HTTP/1.1 %s OK"
    headers = [codes] if codes else []
    if damage in ("status", "all"):
        status = draw(STATUSES)
    if damage in ("body", "all"):
        body = draw(damaged(body))
    if damage in ("line", "all"):
        line = draw(LINES)
    if damage in ("headers", "all"):
        headers = [*draw(st.sampled_from([headers, []])), *draw(st.lists(st.sampled_from(HEADERS), max_size=3))]
    if draw(st.integers(0, 3)):
        headers.append(b"Content-Length: %d" % len(body))
    if damage == "bytes":
        return Raw(status, body, draw(st.binary(max_size=60)))
    return Raw(status, body, b"\r\n".join([line % status, *headers, b"", body]))


def is_refusal(one: Raw) -> bool:
    try:
        errors = json.loads(one.body)["errors"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
    return one.status == b"422" and isinstance(errors, list) and any(isinstance(error, str) for error in errors)


def shows(one: Raw, status: bytes, name: str, states: list[str] | None = None) -> bool:
    """Whether an answer shows what was ordered, under this name, and as an order in one of the states."""
    try:
        order = json.loads(one.body)
        if states is not None:
            order = order["orders"][0]
            if order["external_order_id"] != "A-1" or order["state"] not in states:
                return False
        options = [topup["option_id"] for topup in order[name]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
    return one.status == status and options == [str(ITEMS[0].option_id)] * 2


def placed(url: str, kind: type) -> PlacedOrder:
    if kind is Partner:
        return Partner(url, *KEYS, waits=WAITS, sleep=lambda _: None).order(
            "A-1", ITEMS, first_call=True, patience=PATIENCE
        )

    async def nothing(seconds: float) -> None:
        pass

    partner = AsyncPartner(url, *KEYS, waits=WAITS, sleep=nothing)
    return asyncio.run(partner.order("A-1", ITEMS, first_call=True, patience=PATIENCE))


NO_LIST = b'{"error":""}'


@pytest.mark.parametrize("kind", [Partner, AsyncPartner])
@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(script=st.lists(answers(), min_size=1, max_size=8))
# A 422 with a code whose errors are no list is not the service's, and refuses nothing.
@example(script=[Raw(b"422", NO_LIST, b"HTTP/1.1 422 OK\r\nX-Service-Error: provider_rejected\r\n\r\n" + NO_LIST)])
def test_only_documented_errors_and_only_what_is_an_answer_is_believed(kind: type, script: list[Raw]) -> None:
    left, sent = list(script), []

    def next_answer(head: bytes, write: Write) -> None:
        # When the script is over, the connection is closed without an answer.
        if left:
            sent.append(left.pop(0))
            write(sent[-1].text)

    with server(next_answer) as url:
        try:
            result: PlacedOrder | PartnerError = placed(url, kind)
        except (OrderRefused, OrderIdTaken, InDoubt, Unavailable, ApiError) as error:
            result = error
    # The errors are logged and shown in terminals.
    assert isinstance(result, PlacedOrder) or str(result).isprintable()
    if isinstance(result, PlacedOrder):
        assert len(result.topups) == 2
        standing = ["processing", "ready", "partly_failed", "failed"]
        arguments: Any = (b"200", "topups", standing) if result.stored_before else (b"201", "products")
        assert any(shows(one, *arguments) for one in sent)
    elif isinstance(result, OrderRefused):
        assert any(is_refusal(one) or shows(one, b"200", "topups", ["cancelled"]) for one in sent)
    elif isinstance(result, Unavailable):
        # Nothing is stored: no answer was one after which an order may be stored.
        assert all(one.status in (b"429", b"408", b"503", b"422") and b"X-Service-Error:" in one.text for one in sent), sent
    elif type(result) is ApiError:
        assert any(one.text.startswith(b"HTTP/1.") and b"X-Service-Error:" in one.text for one in sent), sent


@settings(max_examples=EXAMPLES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(script=st.lists(answers(), min_size=1, max_size=4))
def test_look_ups_and_lists_raise_only_documented_errors(script: list[Raw]) -> None:
    for read in (
        lambda partner: partner.find_order("A-1", patience=PATIENCE),
        lambda partner: list(partner.orders(patience=PATIENCE)),
        lambda partner: list(partner.options(patience=PATIENCE)),
        lambda partner: list(partner.events(patience=PATIENCE)),
    ):
        left = list(script)

        def next_answer(head: bytes, write: Write, left: list[Raw] = left) -> None:
            if left:
                write(left.pop(0).text)

        with server(next_answer) as url:
            try:
                read(Partner(url, *KEYS, waits=WAITS, sleep=lambda _: None))
            except (Unanswered, ApiError) as error:
                assert str(error).isprintable()


def drip(text: bytes) -> Callable[[bytes, Write], None]:
    def write_slowly(head: bytes, write: Write) -> None:
        for index in range(len(text)):
            write(text[index : index + 1])
            time.sleep(0.05)

    return write_slowly


def forever(start: bytes, piece: bytes) -> Callable[[bytes, Write], None]:
    def write_on(head: bytes, write: Write) -> None:
        write(start)
        while True:
            write(piece)

    return write_on


def silent(head: bytes, write: Write) -> None:
    time.sleep(30)


SLOW = {
    "silent": silent,
    "a head a byte at a time": drip(b"HTTP/1.1 201 Created\r\nX-A: " + b"a" * 1000),
    "a body a byte at a time": drip(b"HTTP/1.1 201 Created\r\nContent-Length: 5000\r\n\r\n" + b" " * 5000),
    "endless body": forever(b"HTTP/1.1 201 Created\r\n\r\n", b"x" * 65536),
    "endless chunks": forever(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
    "endless head": forever(b"HTTP/1.1 201 Created\r\n", b"X-A: " + b"a" * 1000 + b"\r\n"),
    "endless interim answers": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


#: How many seconds late a busy machine may be; a call without a bound would last 30 s or for ever.
SLACK = 6


def calls_in_flight() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "esim-partner call"]


@pytest.mark.parametrize("kind", [Partner, AsyncPartner])
@pytest.mark.parametrize("slow", list(SLOW))
def test_no_call_is_longer_than_allowed(kind: type, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_ANSWER", 1_000_000)
    with server(SLOW[slow]) as url:
        partner = kind(url, *KEYS, timeout=0.4, waits=Waits(first=(0.1,), then=0.1))
        began = time.monotonic()
        with pytest.raises(InDoubt):
            outcome = partner.order("A-1", ITEMS, patience=1.2)
            if kind is AsyncPartner:
                asyncio.run(outcome)
        assert time.monotonic() - began < 1.2 + SLACK
        if kind is Partner:
            # The requests of the generated code are bounded in the same way.
            began = time.monotonic()
            with pytest.raises(httpx.HTTPError):
                show_webhook.sync(client=partner.api)
            assert time.monotonic() - began < 0.4 + SLACK
            with pytest.raises(Unanswered):
                partner.find_order("A-1", patience=0.5)
    # Nothing goes on behind the caller's back.
    until = time.monotonic() + 10
    while calls_in_flight() and time.monotonic() < until:
        time.sleep(0.01)
    assert calls_in_flight() == []


def test_the_limit_of_an_answer_is_counted_in_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    body = GOOD["created"]
    head = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body)

    def whole(_: bytes, write: Write) -> None:
        write(head + body)

    with server(whole) as url:
        monkeypatch.setattr(bounded, "MAX_ANSWER", len(body))
        assert placed(url, Partner).topups
        monkeypatch.setattr(bounded, "MAX_ANSWER", len(body) - 1)
        with pytest.raises(InDoubt, match="more than"):
            placed(url, Partner)


def test_a_request_that_was_given_up_is_not_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the order could be stored after the look-up that found none."""
    seen: list[bytes] = []
    resolved = threading.Event()
    real = httpx.HTTPTransport.handle_request

    def late(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        resolved.wait(30)
        return real(self, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", late)

    def note(head: bytes, _: Write) -> None:
        seen.append(head)

    with server(note) as url:
        with pytest.raises(Unavailable):
            Partner(url, *KEYS, timeout=0.2).order("A-1", [Item(ITEMS[0].option_id)], first_call=True, patience=0.3)
        resolved.set()
        until = time.monotonic() + 10
        while calls_in_flight() and time.monotonic() < until:
            time.sleep(0.01)
    assert calls_in_flight() == [] and seen == []
