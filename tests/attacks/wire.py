"""Signed requests and floods of requests, over sockets of our own: an attacker keeps no rule of an HTTP library."""

import asyncio
import base64
import collections
import hashlib
import hmac
import json
import socket
import time

ORDERS = "/api/v1/api_partner/orders"
PATIENCE = 10.0
# What a connection may hold back until it is read.
LIMIT = 1 << 20


class Partner:
    """The keys of a partner, as `esimctl partner create` prints them."""

    def __init__(self, keys):
        self.access_key = keys["access_key"]
        self.secret_key = base64.b64decode(keys["secret_key"])

    def head(self, method, path, body=b"", length=None):
        """The head of a signed request of five lines. `length` is the announced length, if it is not the body's."""
        timestamp, digest = str(int(time.time())), hashlib.sha256(body).hexdigest()
        text = "\n".join([method, path, timestamp, self.access_key, digest])
        signature = hmac.new(self.secret_key, text.encode(), hashlib.sha256).hexdigest()
        return (
            f"{method} {path} HTTP/1.1\r\nHost: ingress\r\nContent-Type: application/json\r\n"
            f"X-Service-Access-Key: {self.access_key}\r\nX-Service-Timestamp: {timestamp}\r\n"
            f"X-Service-Content-SHA256: {digest}\r\nX-Service-Signature: {signature}\r\n"
            + ("" if length == "chunked" else f"Content-Length: {len(body) if length is None else length}\r\n")
        )

    def request(self, method, path, body=b""):
        return f"{self.head(method, path, body)}\r\n".encode() + body

    def order(self, external_id, option, units=1):
        body = {"external_order_id": external_id, "products": [{"option_id": option, "qty": units}]}
        return self.request("POST", ORDERS, json.dumps(body).encode())


async def connect(port, source="127.0.0.1"):
    """`source` is the address that the server sees: all of 127.0.0.0/8 is this machine."""
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=LIMIT), PATIENCE
    )
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return reader, writer


async def answer(reader):
    """The status and the body of the next answer, and whether the connection ends after it."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).lower()
    length = 0
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body = await asyncio.wait_for(reader.readexactly(length), PATIENCE) if length else b""
    return int(head.split(b" ", 2)[1]), body, b"\r\nconnection: close" in head


class Flood:
    """Requests at `rate` per second over some connections; `seen` counts statuses and errors."""

    def __init__(self, port, rate, source="127.0.0.66"):
        self.port, self.rate, self.source = port, rate, source
        self.seen = collections.Counter()
        self.began, self.sent = time.monotonic(), 0

    async def turn(self, requests):
        """Waits until so many requests more are within the rate."""
        self.sent += requests
        wait = self.began + self.sent / self.rate - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        elif wait < -1:
            # What the machine could not send in time is not sent later in a burst.
            self.began += -wait

    async def run(self, make, connections, at_once):
        """`make(number)` is the bytes of a request."""
        await asyncio.gather(*[self.connection(make, at_once) for _ in range(connections)])

    async def connection(self, make, at_once):
        while True:
            writer = None
            try:
                reader, writer = await connect(self.port, self.source)
                closes = False
                while not closes:
                    await self.turn(at_once)
                    writer.write(b"".join(make(self.sent + number) for number in range(at_once)))
                    await writer.drain()
                    for _ in range(at_once):
                        status, _, closes = await answer(reader)
                        self.seen[status] += 1
                        if closes:
                            break
            except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
                self.seen[type(error).__name__] += 1
                await asyncio.sleep(0.02)
            finally:
                if writer:
                    writer.close()
