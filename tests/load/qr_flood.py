#!/usr/bin/env python3
"""Asks ingress for QR pictures, without keys, over many connections; prints how often each status came.

    tests/load/qr_flood.py PORT CONNECTIONS REQUESTS_AT_ONCE SECONDS

A connection sends REQUESTS_AT_ONCE requests and reads their responses before it sends again. Only 127.0.0.1 is asked.
Run it beside `tests/load/run --rate 200` and compare the latencies with a run without it.
"""

import asyncio
import collections
import sys
import time

LONGEST_READ = 10.0


async def ask(port, number, at_once, end, seen):
    count = 0
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while time.monotonic() < end:
                for _ in range(at_once):
                    count += 1
                    path = f"/qr/LPA%3A1%24smdp.example%24AB{number}X{count}/1024"
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: ingress\r\n\r\n".encode())
                await writer.drain()
                for _ in range(at_once):
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LONGEST_READ)
                    seen[head.split(b" ", 2)[1].decode()] += 1
                    for line in head.lower().split(b"\r\n"):
                        if line.startswith(b"content-length:"):
                            await reader.readexactly(int(line.split(b":")[1]))
            writer.close()
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            seen[type(error).__name__] += 1
            await asyncio.sleep(0.05)


async def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    port, connections, at_once, seconds = map(int, sys.argv[1:])
    seen, end = collections.Counter(), time.monotonic() + seconds
    await asyncio.gather(*[ask(port, number, at_once, end, seen) for number in range(connections)])
    print(dict(seen))


asyncio.run(main())
