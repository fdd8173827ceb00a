#!/usr/bin/env python3
"""A partner's client and webhook receiver, with Python's standard library only.

  BASE_URL=… ACCESS_KEY=… SECRET_KEY=… docs/examples/esim.py order EXTERNAL_ORDER_ID OPTION_ID QTY
  … docs/examples/esim.py show EXTERNAL_ORDER_ID
  … docs/examples/esim.py redeliver TOPUP_ID
  … docs/examples/esim.py options
  … docs/examples/esim.py webhook URL
  WEBHOOK_SECRET=whsec_… docs/examples/esim.py receive PORT
"""

import base64
import hashlib
import hmac
import http.client
import http.server
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

API = "/api/v1/api_partner"


def setting(name):
    """An environment variable. If it is missing, the program ends with one line that says so."""
    return os.environ.get(name) or sys.exit(f"{name} is not set: set this environment variable to the value that we gave you")


def key_in(name, prefix=""):
    """The key in an environment variable. What is no key ends the program, because its signatures would only look forged."""
    text = setting(name)
    try:
        key = base64.b64decode(text.removeprefix(prefix), validate=True)
    except ValueError:
        key = b""
    if not key or not text.startswith(prefix):
        sys.exit(f"{name} is not {prefix and prefix + ' and '}Base64 text: use it exactly as you got it")
    return key


class Direct(urllib.request.HTTPRedirectHandler):
    """A signed request goes to no other host."""

    def redirect_request(self, *_):
        return None


def signed(method, path, body=None):
    """Sends a signed request and returns the status, the headers and the JSON of the answer. Status 0 means that there was
    no answer of the service: none that can be read, or an error without X-Service-Error, which comes from something in
    between, such as a proxy. It may have passed the request on before."""
    base_url, access_key, key = setting("BASE_URL"), setting("ACCESS_KEY"), key_in("SECRET_KEY")
    if not base_url.startswith(("http://", "https://")):
        sys.exit("BASE_URL does not begin with http:// or https://")
    timestamp = str(int(time.time()))
    content = b"" if body is None else json.dumps(body).encode()
    digest = hashlib.sha256(content).hexdigest()
    text = "\n".join([method, path, timestamp, access_key, digest])
    request = urllib.request.Request(
        base_url.rstrip("/") + path,
        method=method,
        data=content or None,
        headers={
            "X-Service-Access-Key": access_key,
            "X-Service-Timestamp": timestamp,
            "X-Service-Content-SHA256": digest,
            "X-Service-Signature": hmac.new(key, text.encode(), hashlib.sha256).hexdigest(),
            "Content-Type": "application/json",
        },
    )
    try:
        try:
            with urllib.request.build_opener(Direct).open(request, timeout=30) as answer:
                return answer.status, answer.headers, json.load(answer)
        except urllib.error.HTTPError as error:
            if not error.headers.get("X-Service-Error"):
                return 0, {}, {"error": f"the status {error.code} without X-Service-Error is not of the service"}
            return error.code, error.headers, json.loads(error.read() or b"null")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {}, {"error": str(error)}


def order(external_order_id, option_id, qty):
    """Orders until it is known whether the order is stored.

    After a 5xx, a 408, a 429 or without an answer, it sends the same id again, because another id would be a second
    order. It gives up after five requests; a real shop goes on until the answer is definite.
    """
    unanswered = None  # when the last request was sent that got no answer
    body = {"external_order_id": external_order_id, "products": [{"option_id": option_id, "qty": qty}]}
    for wait in [1, 2, 4, 8, None]:
        sent = time.time()
        status, headers, answer = signed("POST", API + "/orders", body)
        if status == 0:
            unanswered = sent
        if "external_order_id_taken" in (headers.get("X-Service-Error") or ""):
            # An earlier request stored this order, so nothing more is ordered. This shows what became of it.
            shown = show(external_order_id)
            if is_decided(shown[0]) and not is_gone(shown):
                return shown
            # It is not bought, and its id is free again, or the look-up got no answer. The repeat decides.
        elif is_decided(status):
            if status != 422 or unanswered is None:
                return status, headers, answer
            # The request without an answer may still be on its way, and be stored in spite of this refusal.
            rest = max(0, unanswered + 60 - time.time())
            print(f"HTTP status {status}; looking the order up in {rest:.0f} s", file=sys.stderr)
            time.sleep(rest)
            shown = show(external_order_id)
            return (status, headers, answer) if is_gone(shown) else shown
        if wait is None:
            print("it is unknown whether the order is stored: order it again with the same id", file=sys.stderr)
            return status, headers, answer
        why = f"HTTP status {status} {headers.get('X-Service-Error') or ''}".rstrip() if status else answer["error"]
        print(f"{why}; repeating the order in {wait} s", file=sys.stderr)
        time.sleep(wait)


def is_decided(status):
    """Whether repeating the request would not change its answer."""
    return 0 < status < 500 and status not in (408, 429)


def is_gone(shown):
    """Whether a look-up shows that nothing is bought."""
    status, _, order = shown
    return status == 404 or (status == 200 and order["state"] in ("refused", "cancelled"))


def show(external_order_id):
    return signed("GET", f"{API}/orders/{urllib.parse.quote(external_order_id, safe='')}")


def is_ours(key, headers, body):
    """Whether one of the signatures is made with our secret, and the timestamp is at most five minutes old.

    Anybody can send anything, so nothing here may fail: headers are compared as bytes, and only ASCII digits are a number.
    """
    webhook_id, timestamp, signatures = (
        headers.get(name, "").encode(errors="replace")
        for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    )
    if not timestamp.isdigit() or len(timestamp) > 12 or abs(time.time() - int(timestamp)) > 300:
        return False
    text = webhook_id + b"." + timestamp + b"." + body
    expected = b"v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest())
    return any(hmac.compare_digest(expected, one) for one in signatures.split(b" "))


class Receiver(http.server.BaseHTTPRequestHandler):
    # The same webhook can arrive twice, with the same webhook-id. A real shop keeps these ids in its database.
    seen = set()

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        # Our webhooks have less than 64 KiB, so nobody can fill the memory.
        is_read = length.isascii() and length.isdigit() and len(length) <= 5
        body = self.rfile.read(int(length)) if is_read else b""
        answer = b""
        if not is_read or not is_ours(self.server.key, self.headers, body):
            # After an answer other than 2xx the webhook is sent again, so none is lost while the secret changes.
            self.send_response(401)
        else:
            content, webhook_id = json.loads(body), self.headers["webhook-id"]
            # Only a further event has a webhook-type; the webhook of an eSIM has none.
            kind = self.headers.get("webhook-type")
            if webhook_id not in self.seen:
                # A real shop stores the eSIM here, before it answers. Only ids are printed, because the activation
                # code is a secret.
                self.seen.add(webhook_id)
                line = f"event {kind} {webhook_id}"
                if not kind:
                    line = f"ready {content['external_order_id']} {content['topup_id']}"
                # One write, because several requests are answered at the same time.
                print(line + "\n", end="", flush=True)
            if kind == "webhook.test":
                # A host that a sandbox account has chosen proves by this answer that it wants our webhooks.
                answer = json.dumps({"challenge": content["data"].get("challenge")}).encode()
            self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def receive(port):
    key = key_in("WEBHOOK_SECRET", "whsec_")
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    except (OSError, OverflowError) as error:
        sys.exit(f"cannot listen at port {port}: {error}")
    server.key = key
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit()


def main(arguments):
    match arguments:
        case ["order", external_order_id, option_id, qty] if qty.isdecimal():
            status, headers, answer = order(external_order_id, option_id, int(qty))
        case ["show", external_order_id]:
            status, headers, answer = show(external_order_id)
        case ["redeliver", topup_id]:
            status, headers, answer = signed("POST", f"{API}/topups/{topup_id}/redeliver")
        case ["options"]:
            status, headers, answer = signed("GET", API + "/options")
        case ["webhook", url]:
            status, headers, answer = signed("PUT", API + "/webhook", {"url": url})
        case ["receive", port] if port.isdecimal():
            receive(int(port))
        case _:
            sys.exit(__doc__)
    if status == 0:
        sys.exit(f"no answer that can be read: {answer['error']}")
    print(json.dumps(answer))
    if not 200 <= status < 300:
        sys.exit(f"HTTP status {status} {headers.get('X-Service-Error') or ''}")


main(sys.argv[1:])
