"""A live partner of a running system that orders all the time, and the endpoint that takes its webhooks. What breaks shows in what
such a partner gets, and only with orders does it end: nobody asks a provider whether it is well again.
"""

import base64
import hashlib
import hmac
import http.server
import itertools
import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

ORDERS = "/api/v1/api_partner/orders"
# The provider whose part the sandbox plays, so that its orders are real ones for the system.
PROVIDER = "usimsa"
# Orders per second. Each costs a debug build some milliseconds of two cores.
RATE = 3
PATIENCE = 30


class Endpoint(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_dead = False

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(500 if Endpoint.is_dead else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Shop:
    def __init__(self, program):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/webhooks"
        command = [program, "partner", "create", "--json", "--name", "Nomad Travel", "--environment", "live", "--webhook-url", url,
                   "--webhook-http-live", "--orders-per-second", "default", "--units-per-second", "default"]
        self.keys = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        self.partner_id = self.keys["partner_id"]
        listed = subprocess.run([program, "option", "list", "--json"], check=True, stdout=subprocess.PIPE).stdout
        self.options = {one["name"]: one["option_id"] for one in json.loads(listed) if one["provider"] == PROVIDER}
        # What it orders, by turns.
        self.ordered = ("ready", "delayed")
        self.ends = threading.Event()
        self.pool = ThreadPoolExecutor(64)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()
        self.pool.shutdown(cancel_futures=True)

    def run(self):
        for number in itertools.count():
            if self.ends.wait(1 / RATE):
                return
            name = self.ordered[number % len(self.ordered)]
            self.pool.submit(self.order, f"{os.getpid()}-{number}", self.options[name])

    def order(self, external_order_id, option):
        body = json.dumps({"external_order_id": external_order_id, "products": [{"option_id": option, "qty": 1}]}).encode()
        access_key, stamp = self.keys["access_key"], str(int(time.time()))
        text = f"POST\n{ORDERS}\n{stamp}\n{access_key}".encode()
        headers = {
            "content-type": "application/json",
            "x-service-access-key": access_key,
            "x-service-timestamp": stamp,
            "x-service-signature": hmac.new(base64.b64decode(self.keys["secret_key"]), text, hashlib.sha256).hexdigest(),
        }
        request = urllib.request.Request(os.environ["BASE_URL"] + ORDERS, body, headers)
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except OSError:
            # A refusal, or no answer. The verdicts say what it was.
            pass
