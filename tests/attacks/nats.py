"""The little of NATS' protocol that a forger needs."""

import asyncio
import json
import urllib.request

PATIENCE = 10.0


class Nats:
    """A connection with a stage's own credentials."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.refused = 0
        self.listening = asyncio.create_task(self.listen())

    @classmethod
    async def connect(cls, port, user, password):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.wait_for(reader.readline(), PATIENCE)
        options = {"verbose": False, "pedantic": False, "user": user, "pass": password, "lang": "python", "version": "0"}
        writer.write(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        if line != b"PONG\r\n":
            raise ConnectionRefusedError(line.decode())
        return cls(reader, writer)

    async def listen(self):
        while line := await self.reader.readline():
            if line == b"PING\r\n":
                self.writer.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self.refused += 1

    async def publish(self, subject, message):
        payload = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.writer.write(f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")
        await self.writer.drain()


def subjects(monitor_port, prefix):
    """The subjects with this prefix that somebody listens to, by the server's monitor."""
    with urllib.request.urlopen(f"http://127.0.0.1:{monitor_port}/connz?subs=1&limit=100", timeout=PATIENCE) as answer:
        connections = json.load(answer)["connections"]
    found = {one for connection in connections for one in connection.get("subscriptions_list", [])}
    return sorted(one for one in found if one.startswith(prefix) and "*" not in one)
