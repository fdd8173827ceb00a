#!/usr/bin/env python3
"""Asks ingress for QR pictures, without keys, over many connections; prints how often each status came.

    tests/load/qr_flood.py PORT CONNECTIONS REQUESTS_AT_ONCE SECONDS

A connection sends REQUESTS_AT_ONCE requests and reads their responses before it sends again. Only 127.0.0.1 is asked.
Run it beside `tests/load/run --rate 200` and compare the latencies with a run without it.
"""

import asyncio
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "attacks"))

from wire import Flood


def picture(number):
    return f"GET /qr/LPA%3A1%24smdp.example%24AB{number}/1024 HTTP/1.1\r\nHost: ingress\r\n\r\n".encode()


async def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    port, connections, at_once, seconds = map(int, sys.argv[1:])
    # As fast as the responses come.
    flood = Flood(port, 1e9, "127.0.0.1")
    try:
        await asyncio.wait_for(flood.run(picture, connections, at_once), seconds)
    except asyncio.TimeoutError:
        print(dict(flood.seen))


asyncio.run(main())
