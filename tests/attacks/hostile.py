"""Servers that answer in a hostile manner, as partners' endpoints and as a provider."""

import asyncio
import collections
import gzip
import socket
import struct

OK = b"HTTP/1.1 200 OK\r\n"
BLOCK = b"x" * (1 << 16)
# Ten bytes of gzip for about ten thousand of text.
BOMB = gzip.compress(bytes(64 << 20))


async def silent(writer):
    await asyncio.sleep(3600)


async def drip_head(writer):
    await drip(writer, OK + b"x-slow: " + BLOCK)


async def drip_body(writer):
    await drip(writer, OK + b"content-length: 65536\r\n\r\n" + BLOCK)


async def drip(writer, data):
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(1)


async def endless_body(writer):
    writer.write(OK + b"content-type: application/json\r\ncontent-length: 300000000\r\n\r\n")
    for _ in range(300_000_000 // len(BLOCK)):
        writer.write(BLOCK)
        await writer.drain()


async def endless_chunks(writer):
    writer.write(OK + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"%x\r\n" % len(BLOCK) + BLOCK + b"\r\n")
        await writer.drain()


async def headers(writer):
    writer.write(OK + b"".join(b"x-%d: %s\r\n" % (number, b"y" * 100) for number in range(10_000)) + b"\r\n")


async def interim(writer):
    while True:
        writer.write(b"HTTP/1.1 102 Wait\r\n\r\n" * 1_000)
        await writer.drain()


async def status_line(writer):
    writer.write(OK[:-2] + BLOCK * 4)


async def redirect(writer):
    writer.write(b"HTTP/1.1 307 Moved\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n")


async def bomb(writer):
    writer.write(OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB) + BOMB)


async def reset(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionResetError


async def garbage(writer):
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    raise ConnectionResetError


async def later(writer):
    writer.write(b"HTTP/1.1 503 No\r\nretry-after: 31536000000\r\ncontent-length: 0\r\n\r\n")


SLOW = {"silent": silent, "drip-head": drip_head, "drip-body": drip_body}
LOUD = {
    "endless-body": endless_body, "endless-chunks": endless_chunks, "headers": headers, "interim": interim,
    "status-line": status_line, "redirect": redirect, "bomb": bomb, "reset": reset, "garbage": garbage, "later": later,
}
MANNERS = SLOW | LOUD


async def serve(address, port, choose):
    """`choose(path, number)` names the manner of a request. Returns the server and the count of requests by manner."""
    seen = collections.Counter()

    async def connection(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(lengths[0] if lengths else 0)
                name = choose(head.split(b" ", 2)[1].decode(), seen.total())
                seen[name] += 1
                await MANNERS[name](writer)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(connection, address, port), seen
