#!/usr/bin/env python3
"""Upgrades a running system of an older commit, with many finished orders, while orders go on.

  git worktree add .local/old 3dec857 && (cd .local/old && cargo build --release)
  cargo build --release
  tests/load/upgrade.py .local/old/target/release target/release --orders 2000000

OLD's deploy/local/up must belong to the checkout that holds the folder OLD. The order of the steps is that of
docs/operations.md, "Upgrade": migrate, then notifier, provisioner, ingress. Each new program starts beside the old one,
which then stops. As a proxy does, the client sends to whichever ingress accepts connections. The command fails if one
order is refused, one topup has no webhook, or one filled row changes. Disk: some 2 KiB for each order.
"""

import argparse
import base64
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

API = "/api/v1/api_partner"
PORTS = 26000
RATE = 20

FILL = """
SET synchronous_commit = off;
CREATE TEMP TABLE f AS SELECT n, gen_random_uuid() AS o, gen_random_uuid() AS p, gen_random_uuid() AS partner_id,
  now() - interval '60 days' + n * interval '1 second' AS at FROM generate_series({first}, {last}) n;
INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at) SELECT o, partner_id, 'filled-' || n, at, at FROM f;
INSERT INTO placements (placement_id, order_id, provider, state, attempt, attempted_at, placed_at, created_at)
  SELECT p, o, 'sandbox', 'placed', 1, at, at, at FROM f;
INSERT INTO topups (topup_id, placement_id, order_id, position, option_id, provider, provider_option_id, state,
  provider_unit_id, iccid, profile, ready_at)
  SELECT to_char(20000101000000, 'FM00000000000000') || lpad(n::text, 12, '0'), p, o, 0, p, 'sandbox', 'ready', 'ready',
  'unit-' || n, '89' || lpad(n::text, 17, '0'), decode(md5(n::text) || md5(n::text), 'hex'), at FROM f;
INSERT INTO deliveries (topup_id, partner_id, state, attempt, attempted_at, status, delivered_at, created_at)
  SELECT to_char(20000101000000, 'FM00000000000000') || lpad(n::text, 12, '0'), partner_id, 'delivered', 1, at, 200, at, at FROM f;
DROP TABLE f;
"""
FILLED = "topup_id < '20000102'"


class Partner:
    """Orders at a steady rate, and counts answers and webhooks."""

    def __init__(self, addresses, made, option):
        self.addresses, self.made, self.option = addresses, made, option
        self.accepted, self.refused, self.webhooks, self.sent = {}, [], {}, 0
        self.slowest, self.ended = 0.0, threading.Event()

    def order(self, number):
        body = json.dumps({"external_order_id": f"upgrade-{number}", "products": [{"option_id": self.option, "qty": 1}]})
        began, error = time.monotonic(), "no ingress accepts connections"
        while time.monotonic() - began < 10:
            for address in list(self.addresses):
                connection = http.client.HTTPConnection("127.0.0.1", address, timeout=30)
                try:
                    connection.connect()
                except OSError:
                    continue
                try:
                    stamp = str(int(time.time()))
                    text = "\n".join(["POST", API + "/orders", stamp, self.made["access_key"]])
                    key = base64.b64decode(self.made["secret_key"])
                    connection.request("POST", API + "/orders", body, {
                        "Content-Type": "application/json", "X-Service-Access-Key": self.made["access_key"],
                        "X-Service-Timestamp": stamp,
                        "X-Service-Signature": hmac.new(key, text.encode(), hashlib.sha256).hexdigest()})
                    answer = connection.getresponse()
                    content = answer.read()
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    if answer.status == 201:
                        for topup in re.findall(rb'"topup_id": *"([0-9]+)"', content):
                            self.accepted[topup.decode()] = number
                    else:
                        self.refused.append((number, answer.status, content[:200]))
                except (OSError, http.client.HTTPException) as lost:
                    self.refused.append((number, 0, repr(lost)))
                return
            time.sleep(0.02)
        self.refused.append((number, 0, error))

    def run(self):
        began, threads = time.monotonic(), []
        while not self.ended.is_set():
            threads.append(threading.Thread(target=self.order, args=(self.sent,)))
            threads[-1].start()
            self.sent += 1
            self.ended.wait(max(0, began + self.sent / RATE - time.monotonic()))
        for thread in threads:
            thread.join()

    def receiver(self):
        webhooks = self.webhooks

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                topup = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["topup_id"]
                webhooks[topup] = webhooks.get(topup, 0) + 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 512

        return Server(("127.0.0.1", PORTS + 70), Receiver)


def say(text):
    print(f"{time.strftime('%T')} {text}", flush=True)


def until(what, condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, help="folder of the old programs, inside their checkout")
    parser.add_argument("new", type=pathlib.Path, help="folder of the new programs")
    parser.add_argument("--orders", type=int, default=2_000_000, help="finished orders to fill in [default: 2000000]")
    parser.add_argument("--local-dir", type=pathlib.Path, default=pathlib.Path(".local/upgrade"))
    arguments = parser.parse_args()
    old, new, local = (path.resolve() for path in (arguments.old, arguments.new, arguments.local_dir))
    checkout = next(folder for folder in old.parents if (folder / "deploy/local/up").exists())
    environment = {**os.environ, "LOCAL_DIR": str(local), "LOCAL_PORTS": str(PORTS), "CARGO_TARGET_DIR": str(old.parent)}
    profile = ["--release"] if old.name == "release" else []
    script = lambda name, *rest: subprocess.run([checkout / "deploy/local" / name, *rest], env=environment, check=True)
    started = []
    try:
        script("up", "--no-build", *profile)
        run(old, new, local, arguments.orders, environment, started)
    finally:
        for process in started:
            process.terminate()
            process.wait()
        script("down")


def run(old, new, local, orders, environment, started):
    shell = "set -a; . ./env; env -0"
    settings = subprocess.run(["bash", "-c", shell], cwd=local, check=True, capture_output=True, env=environment).stdout
    settings = dict(one.split("=", 1) for one in settings.decode().split("\0") if "=" in one)
    psql = lambda text: subprocess.run(
        [os.path.join(settings.get("PG_BIN") or "", "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", settings["DATABASE_URL"]],
        input=text, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()
    esimctl = lambda *rest: json.loads(subprocess.run(
        [old / "esimctl", *rest, "--json"], env=settings, check=True, capture_output=True, text=True).stdout)
    option = next(one["option_id"] for one in esimctl("option", "list") if one["name"] == "ready")
    made = esimctl("partner", "create", "--name", "upgrade", "--environment", "sandbox",
                   "--webhook-url", f"http://127.0.0.1:{PORTS + 70}/hook")
    step = 50_000
    for first in range(1, orders + 1, step):
        psql(FILL.format(first=first, last=min(orders, first + step - 1)))
        say(f"{min(orders, first + step - 1)} of {orders} finished orders stored")
    psql("VACUUM (ANALYZE) orders, placements, topups, deliveries")

    partner = Partner([PORTS + 80], made, option)
    receiver = partner.receiver()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    client = threading.Thread(target=partner.run)
    client.start()
    try:
        until("the first webhooks", lambda: len(partner.webhooks) > 5 * RATE)
        began, before = time.monotonic(), partner.sent
        said = subprocess.run([new / "esimctl", "migrate"], env=settings, capture_output=True, text=True)
        if said.returncode:
            sys.exit(f"esimctl migrate: {said.stderr}")
        say(f"migrated in {time.monotonic() - began:.1f} s, while {partner.sent - before} orders were sent: {said.stdout.strip()}")
        for index, service in enumerate(["notifier", "provisioner", "ingress"]):
            pid = int((local / "run" / f"{service}.pid").read_text().split()[0])
            inherited = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            variables = dict(one.split("=", 1) for one in inherited if "=" in one)
            variables.setdefault("PUBLIC_URL", settings["PUBLIC_URL"])
            variables["ADMIN_LISTEN"] = f"127.0.0.1:{PORTS + 160 + index}"
            variables["LISTEN"] = f"127.0.0.1:{PORTS + 170 + index}"
            log = open(local / "log" / f"{service}-new.log", "w")
            started.append(subprocess.Popen([new / service], env=variables, stdout=log, stderr=log))
            until(f"the new {service}", lambda: ready(PORTS + 160 + index))
            if service == "ingress":
                partner.addresses.insert(0, PORTS + 172)
            os.kill(pid, signal.SIGTERM)
            until(f"the end of the old {service}", lambda: not pathlib.Path(f"/proc/{pid}/exe").exists())
            say(f"{service} is replaced")
        seen = partner.sent
        until("orders at the new programs", lambda: partner.sent > seen + 10 * RATE)
    finally:
        partner.ended.set()
        client.join()
    until("all webhooks", lambda: partner.accepted.keys() <= partner.webhooks.keys(), 300)
    receiver.shutdown()
    # The filled rows, as the new schema holds them.
    found = psql(f"""SELECT (SELECT count(*) FROM orders WHERE external_order_id LIKE 'filled-%'),
        (SELECT count(*) FROM esims WHERE {FILLED} AND iccid = '89' || lpad(right(topup_id, 12)::bigint::text, 17, '0')
           AND profile = decode(md5(right(topup_id, 12)::bigint::text) || md5(right(topup_id, 12)::bigint::text), 'hex')),
        (SELECT count(*) FROM placements WHERE state = 'placed'), (SELECT count(*) FROM deliveries WHERE state = 'delivered')""")
    repeats = sum(partner.webhooks.values()) - len(partner.webhooks)
    total = orders + len(partner.accepted)
    expected = f"{orders}|{orders}|{total}|{total}"
    say(f"{partner.sent} orders sent, {len(partner.accepted)} accepted, {len(partner.refused)} refused, slowest answer "
        f"{partner.slowest:.2f} s, {len(partner.webhooks)} webhooks and {repeats} repeats")
    say(f"filled orders, their profiles, bought, delivered: {found}, expected {expected}")
    for one in partner.refused[:5]:
        say(f"refused: {one}")
    if partner.refused or found != expected or len(partner.accepted) != partner.sent:
        sys.exit("the upgrade lost or refused something")


main()
