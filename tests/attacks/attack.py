"""attack.py NAME: one attack, a process of its own. Standard input is one line of JSON with the system and the keys. It
attacks until its standard input ends and prints a JSON object of what it has seen."""

import asyncio
import collections
import functools
import json
import os
import pathlib
import sys
import time
import urllib.parse
import uuid

import hostile
from nats import Nats, subjects
from wire import ORDERS, Flood, Partner, answer, connect

# Where hostile endpoints and the hostile provider listen, and where floods come from: not the good partner's address.
ADDRESS = "127.0.0.66"
AUTOGROUP = pathlib.Path("/proc/self/autogroup")


class Attack:
    def __init__(self, settings):
        self.settings = settings
        self.port = settings["ingress_port"]
        self.attacker = Partner(settings["attacker"])
        self.flood = None
        self.seen = collections.Counter()

    def requests(self, rate, make, connections=16, at_once=4, port=None):
        self.flood = Flood(port or self.port, rate, ADDRESS)
        self.seen = self.flood.seen
        return self.flood.run(make, connections, at_once)

    # --- without keys ---

    async def bad_signatures(self):
        known, invented = self.settings["good"]["access_key"], "0" * 32
        body = b'{"external_order_id":"x","products":[]}'

        def make(number):
            return (
                f"POST {ORDERS} HTTP/1.1\r\nHost: i\r\nContent-Type: application/json\r\n"
                f"X-Service-Access-Key: {invented if number % 4 == 0 else known}\r\n"
                f"X-Service-Timestamp: {int(time.time())}\r\nX-Service-Signature: {number:064x}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode() + body

        await self.requests(1500, make)

    async def tampered_requests(self):
        """A captured request of five lines, with another body, path, method, query or time."""
        option = self.settings["option"]
        good = self.attacker.order("captured", option)
        changes = [
            (b'"qty": 1', b'"qty": 9'),
            (b"/api/v1/", b"/v1/"),
            (b"POST", b"PUT"),
            (b"/orders", b"/orders?x=1"),
            (b"X-Service-Timestamp: 1", b"X-Service-Timestamp: 2"),
            (b"X-Service-Content-SHA256", b"X-Service-Content-SHA25x"),
        ]
        tampered = [good.replace(old, new, 1) for old, new in changes]
        assert good not in tampered
        await self.requests(1500, lambda number: tampered[number % len(tampered)])

    async def repeated_orders(self):
        """One order again and again: a captured request that is sent once more."""
        order = self.attacker.order("again", self.settings["option"])
        await self.requests(500, lambda _: order)

    async def slow_heads(self):
        await self.hold(1000, b"GET / HTTP/1.1\r\nHost: i\r\nX-Slow: ", drip=b"x")

    async def slow_bodies(self):
        """Signed heads, all of the body but its last kilobyte, then a byte a second."""
        head = self.attacker.head("POST", ORDERS, length=60_000).encode() + b"\r\n"
        await self.hold(1000, head + b" " * 59_000, drip=b" ")

    async def idle_connections(self):
        await self.hold(1000, b"", drip=b"")

    async def hold(self, connections, first, drip, answers=0):
        """Opens 250 connections per second: more would measure this machine's network. Each is kept until the server closes
        it, or answers more than `answers` times."""
        pace = Flood(self.port, 250)

        async def one():
            while True:
                writer = None
                try:
                    await pace.turn(1)
                    reader, writer = await connect(self.port, ADDRESS)
                    self.seen["opened"] += 1
                    writer.write(first)
                    for _ in range(answers):
                        self.seen[(await answer(reader))[0]] += 1
                    reading = asyncio.ensure_future(reader.read(256))
                    while not reading.done():
                        await asyncio.wait([reading], timeout=1)
                        writer.write(drip)
                    text = reading.result()
                    self.seen[int(text.split(b" ", 2)[1]) if text else "closed"] += 1
                except (OSError, asyncio.TimeoutError) as error:
                    self.seen[type(error).__name__] += 1
                finally:
                    if writer:
                        writer.close()
                await asyncio.sleep(1)

        await asyncio.gather(*[one() for _ in range(connections)])

    async def huge_heads(self):
        """Heads right below the largest head, which are read, and above."""
        heads = [f"GET {ORDERS} HTTP/1.1\r\nHost: i\r\nX-Huge: {'x' * size}\r\n\r\n".encode() for size in (15_000, 60_000)]
        await self.requests(300, lambda number: heads[number % 2], at_once=1)

    async def large_bodies(self):
        """Signed, with ten megabytes announced, and as chunks without an end."""
        announced = self.attacker.head("POST", ORDERS, length=10_000_000) + "\r\n"
        chunked = self.attacker.head("POST", ORDERS, length="chunked") + "Transfer-Encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n" % 70_000 + b" " * 70_000 + b"\r\n"
        both = [announced.encode() + b" " * 70_000, chunked.encode() + chunk]
        await self.requests(300, lambda number: both[number % 2], at_once=1)

    async def costly_bodies(self):
        """Signed bodies of the largest size in the shapes that would cost most if each value were compared with the others."""
        def order(note):
            return (f'{{"external_order_id":"n1","products":[{{"option_id":"{self.settings["option"]}","qty":1}}],"note":{note}}}').encode()

        lists = order("[" + ",".join(["{}"] * 21_700) + "]")
        deep = order("[" * 120 + ",".join(["{}"] * 21_600) + "]" * 120)
        keys = order("{" + ",".join(f'"k{number}":1' for number in range(6_000)) + ',"k0":1}')
        made = [self.attacker.request("POST", ORDERS, body) for body in (lists, deep, keys)]
        fields = b"{" + b",".join(b'"k%d":1' % number for number in range(6_000)) + b"}"
        made.append(self.attacker.request("POST", ORDERS.removesuffix("/orders") + "/endpoints", fields))
        query = "&".join(f"p{number}" for number in range(1_900))
        made.append(self.attacker.request("GET", f"{ORDERS}?{query}"))
        await self.requests(200, lambda number: made[number % len(made)], at_once=1)

    async def pictures(self):
        """Codes that were never sent, in the largest size; drawn, because QR_BARE_UNTIL has not passed."""
        await self.requests(
            1000, lambda n: f"GET /qr/LPA%3A1%24smdp.example%24AB{n}/1024 HTTP/1.1\r\nHost: i\r\n\r\n".encode()
        )

    async def pictures_with_mac(self):
        """Guessed MACs, and one that was sent."""
        sent = urllib.parse.urlsplit(self.settings["picture"])

        def make(number):
            path = f"{sent.path}?{sent.query}" if number % 4 == 0 else f"{sent.path}?mac={number:032x}"
            return f"GET {path} HTTP/1.1\r\nHost: i\r\n\r\n".encode()

        await self.requests(1000, make)

    async def pages(self):
        paths = ["/openapi.json", "/reference", "/errors", "/partner-guide.md", "/nowhere"]
        await self.requests(300, lambda n: f"GET {paths[n % len(paths)]} HTTP/1.1\r\nHost: i\r\n\r\n".encode())

    async def callbacks(self):
        """At the provisioner: guessed tokens, and made-up units with the right one."""
        def make(number):
            token = self.settings["callback_token"] if number % 2 else f"{number:032x}"
            body = f'{{"topupId":"{number}"}}'.encode()
            head = f"POST /callbacks/sandbox/{token} HTTP/1.1\r\nHost: p\r\nContent-Type: application/json\r\n"
            return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

        await self.requests(600, make, port=self.settings["provisioner_port"])

    # --- with a partner's keys ---

    async def look_ups(self):
        prefix = ORDERS.removesuffix("/orders")
        paths = [f"{prefix}{path}" for path in ("/orders", "/orders/again", "/account", "/options", "/webhook/events")]
        made = [self.attacker.request("GET", path) for path in paths]
        await self.requests(400, lambda number: made[number % len(made)], at_once=1)

    async def held_connections(self):
        """Signs once on as many connections as there may be, and keeps them; and as many with a body that does not come."""
        look = self.attacker.request("GET", ORDERS.removesuffix("/orders") + "/account")
        head = self.attacker.head("POST", ORDERS, length=60_000).encode() + b"\r\n"
        await asyncio.gather(self.hold(1500, look, drip=b"", answers=1), self.hold(500, head + b" " * 59_000, drip=b" "))

    async def listeners(self):
        path = ORDERS.removesuffix("/orders") + "/webhook/listen"
        listen = self.attacker.request("GET", path)
        await self.requests(400, lambda _: listen, connections=200, at_once=1)

    async def endpoints(self, manners):
        server, self.seen = await hostile.serve(ADDRESS, self.settings["hostile_port"], lambda path, _: path[1:] if path[1:] in manners else "redirect")
        partners = [Partner(self.settings["endpoints"][name]) for name in manners]
        async with server:
            await self.orders(partners, self.settings["option"], 20)

    slow_endpoints = functools.partialmethod(endpoints, hostile.SLOW)
    loud_endpoints = functools.partialmethod(endpoints, hostile.LOUD)

    async def provider(self, manners):
        names = list(manners)
        server, self.seen = await hostile.serve(ADDRESS, self.settings["provider_port"], lambda _, number: names[number % len(names)])
        async with server:
            await self.orders([Partner(self.settings["live"])], self.settings["live_option"], 20)

    slow_provider = functools.partialmethod(provider, hostile.SLOW)
    loud_provider = functools.partialmethod(provider, hostile.LOUD)

    async def orders(self, partners, option, rate):
        """Orders of these partners by turns, in an open loop."""
        async def one(number):
            try:
                self.seen["ordered"] += 1
                reader, writer = await connect(self.port, ADDRESS)
                writer.write(partners[number % len(partners)].order(f"bait-{uuid.uuid4()}", option))
                self.seen[(await answer(reader))[0]] += 1
                writer.close()
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                self.seen[type(error).__name__] += 1

        began, number, tasks = time.monotonic(), 0, set()
        while True:
            await asyncio.sleep(max(0, began + number / rate - time.monotonic()))
            tasks.add(task := asyncio.create_task(one(number)))
            task.add_done_callback(tasks.discard)
            number += 1

    # --- with a stage's credentials of NATS ---

    async def forged_by_provisioner(self):
        """Verdicts on made-up orders and readiness of their units to an ingress, readiness of made-up deliveries, heartbeats
        of made-up providers."""
        nats = await self.nats("provisioner")
        ingresses = subjects(self.settings["monitor_port"], "topup.answer.")
        assert ingresses, "no ingress listens"

        async def burst(number):
            ids = [str(uuid.uuid4()) for _ in range(32)]
            verdicts = [{"order_id": one, "placement_id": one, "verdict": "rejected"} for one in ids]
            deliveries = [{"delivery_id": one, "partner_id": one} for one in ids]
            ready = [{"order_id": str(uuid.uuid4())} | one for one in deliveries]
            message = {"type": "topup.answer.v1", "verdicts": verdicts, "ready": ready}
            await nats.publish(ingresses[number % len(ingresses)], message)
            for provider in [f"invented-{number}", "sandbox"]:
                beat = {"type": "topup.heartbeat.v1", "provider": provider}
                await nats.publish(f"topup.heartbeat.{provider}", beat)
            await nats.publish("topup.ready.batch", {"type": "topup.ready.v1", "deliveries": deliveries})

        await self.bursts(nats, burst, 100)

    async def forged_by_ingress(self):
        """Jobs of made-up placements, readiness of made-up deliveries, and what is no message."""
        nats = await self.nats("ingress")

        async def burst(number):
            placements = [{"placement_id": str(uuid.uuid4()), "partner_id": str(uuid.uuid4()), "lane": f"lane-{number}"} for _ in range(32)]
            job = {"type": "topup.job.v1", "placements": placements}
            await nats.publish("topup.job.sandbox", job)
            await nats.publish("topup.job.sandbox", b"{" * 1000)
            deliveries = [{"delivery_id": str(uuid.uuid4()), "partner_id": str(uuid.uuid4())} for _ in range(32)]
            await nats.publish("topup.ready.batch", {"type": "topup.ready.v1", "deliveries": deliveries})

        await self.bursts(nats, burst, 100)

    async def nats(self, user):
        password = urllib.parse.urlsplit(self.settings["nats_urls"][user]).password
        return await Nats.connect(self.settings["nats_port"], user, password)

    async def bursts(self, nats, burst, rate):
        began, number = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(0, began + number / rate - time.monotonic()))
            await burst(number)
            number += 1
            self.seen["bursts"], self.seen["refused"] = number, nats.refused


# In this order; the providers' and endpoints' leave work behind, so they come last.
ATTACKS = """
    bad_signatures tampered_requests repeated_orders slow_heads slow_bodies idle_connections huge_heads large_bodies
    costly_bodies pictures pictures_with_mac pages look_ups held_connections listeners callbacks forged_by_provisioner forged_by_ingress
    slow_endpoints loud_endpoints slow_provider loud_provider
""".split()


async def main():
    attack = Attack(json.loads(sys.stdin.readline()))
    work = asyncio.create_task(getattr(attack, sys.argv[1])())
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        raise SystemExit("the attack ended by itself")
    print(json.dumps({str(key): count for key, count in attack.seen.items()}), flush=True)
    # Thousands of connections need no orderly end.
    os._exit(0)


if __name__ == "__main__":
    # An attacker's processors are its own: here the system and the good partner come first.
    os.nice(19)
    # Where each session is scheduled as one, that priority counts only within it: the session gets one, too.
    if AUTOGROUP.exists():
        os.setsid()
        AUTOGROUP.write_text("19")
    asyncio.run(main())
