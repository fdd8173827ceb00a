"""partner.py: the good partner, a process of its own. It orders at fixed times, whatever the answers do (open loop).

Standard input is one line of JSON: ingress_port, sink_port, rate, keys, option. Until its standard input ends it prints

    o INTENDED SECONDS STATUS TOPUP       an answer, INTENDED by the monotonic clock
    w TIME TOPUP QRCODE_URL               a webhook
"""

import asyncio
import collections
import json
import os
import sys
import time

from wire import Partner, answer, connect

# Less than ingress' HEAD_TIMEOUT.
LONGEST_IDLE = 20


class Good:
    def __init__(self, settings):
        self.settings = settings
        self.partner = Partner(settings["keys"])
        self.idle = collections.deque()
        self.tasks = set()

    async def order(self, number, intended):
        request = self.partner.order(f"good-{number}", self.settings["option"])
        status, topup = "none", "-"
        # Ingress may close a kept connection meanwhile; a repeated order is safe.
        for again in (False, True):
            try:
                kept = self.kept()
                reader, writer = kept if kept and not again else await connect(self.settings["ingress_port"])
                writer.write(request)
                status, body, closes = await answer(reader)
                if status == 201:
                    topup = json.loads(body)["products"][0]["topup_id"]
                if closes:
                    writer.close()
                else:
                    self.idle.append((time.monotonic(), reader, writer))
                break
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                status = type(error).__name__
        print("o", f"{intended:.6f}", f"{time.monotonic() - intended:.6f}", status, topup)

    def kept(self):
        """An idle connection, if there is one; those that idle for long are closed."""
        while self.idle and time.monotonic() - self.idle[0][0] > LONGEST_IDLE:
            self.idle.popleft()[2].close()
        return self.idle.pop()[1:] if self.idle else None

    async def hook(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(l.split(b":")[1]) for l in head.lower().split(b"\r\n") if l.startswith(b"content-length:"))
                body = json.loads(await reader.readexactly(length))
                print("w", f"{time.monotonic():.6f}", body["topup_id"], body["qrcode_img_url"])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def run(self, ended):
        server = await asyncio.start_server(self.hook, "127.0.0.1", self.settings["sink_port"])
        interval, began, number = 1 / self.settings["rate"], time.monotonic(), 0
        while not ended.done():
            intended = began + number * interval
            await asyncio.sleep(max(0, intended - time.monotonic()))
            task = asyncio.create_task(self.order(number, intended))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            number += 1
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        print("end", flush=True)
        # Webhooks still arrive until the process is stopped.
        async with server:
            await server.serve_forever()


async def main():
    settings = json.loads(sys.stdin.readline())
    try:
        # The measuring process stands for another machine: it must not wait for a processor.
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except PermissionError:
        pass
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await Good(settings).run(asyncio.ensure_future(ended))


sys.stdout.reconfigure(line_buffering=True)
asyncio.run(main())
