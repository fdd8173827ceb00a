"""receivers.py FOLDER: whatever is sent to the guide's webhook receivers, they answer 4xx and go on.

Anybody can send anything to a webhook endpoint. So a receiver that fails at a strange signature could be made to answer
500, or to end. Afterwards each one acknowledges a webhook with a valid signature, and returns the challenge of a test,
which a host has to do to prove itself. Languages that this machine lacks are left out, and the last line names them.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
BODY = b'{"topup_id": "20000101000000000000000001", "external_order_id": "certify-1"}'
TEST = b'{"type":"webhook.test","timestamp":"2026-01-31T12:00:00Z","data":{"challenge":"7KQM-2XWB-9TRA"}}'
RECEIVERS = {"esim.py": ["python3"], "esim.mjs": ["node"], "esim.php": ["php"], "esim.go": ["go", "run"]}
WAIT = 60


def signature(webhook_id: bytes, timestamp: bytes, body: bytes) -> bytes:
    mac = hmac.new(b"k" * 24, webhook_id + b"." + timestamp + b"." + body, hashlib.sha256)
    return b"v1," + base64.b64encode(mac.digest())


def answered(
    port: int, webhook_id: bytes, timestamp: bytes, signatures: bytes, body: bytes = BODY, *further: bytes
) -> tuple[int | None, bytes]:
    """The status and the body of the answer; None if the connection ended without one."""
    head = [
        b"POST / HTTP/1.1", b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body),
        b"webhook-id: " + webhook_id, b"webhook-timestamp: " + timestamp, b"webhook-signature: " + signatures, *further,
    ]  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        try:
            connection.sendall(b"\r\n".join([*head, b"", body]))
        except OSError:
            pass  # it does not have to read all of it
        try:
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None, b""


def sent(port: int, webhook_id: bytes, timestamp: bytes, signatures: bytes, body: bytes = BODY) -> int | None:
    return answered(port, webhook_id, timestamp, signatures, body)[0]


def hostile(port: int) -> None:
    now = b"%d" % time.time()
    good = signature(b"evt_1", now, BODY)
    odd = [b"\xe4", b"\xff\xfe", "²".encode(), "²".encode("latin-1"), b"v1,\xe4 v1, v1 ,,,", b"9" * 5000, b"-1", b"1e3", b"", b"\xed\xa0\x80"]
    tried = [(b"evt_1", now, one) for one in odd] + [(b"evt_1", one, good) for one in odd] + [(one, now, good) for one in odd]
    for one in tried:
        assert sent(port, *one) == 401, one
    for body in (b"", b"[" * 60_000, b"\xff" * 10, b"x" * 65_000):
        assert sent(port, b"evt_1", now, good, body) == 401, body[:20]
    # Too much is not read, and may also end the connection.
    assert sent(port, b"evt_1", now, good, b"x" * 10_000_000) in (401, 413, None)


def checked(file: str, command: list[str], folder: pathlib.Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [*command, str(folder / file), "receive", str(port)]
    for wrong in (SECRET.removeprefix("whsec_"), "whsec_!", ""):
        refused = subprocess.run(start, env={**os.environ, "WEBHOOK_SECRET": wrong}, capture_output=True, timeout=WAIT)
        assert refused.returncode != 0, f"{file} starts with a secret that is none: {wrong!r}"
    # What it prints is long in some languages, and says nothing if the answers are right.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    receiver = subprocess.Popen(start, env={**os.environ, "WEBHOOK_SECRET": SECRET}, start_new_session=True, **quiet)
    try:
        until = time.monotonic() + WAIT
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert receiver.poll() is None and time.monotonic() < until, f"{file} does not listen"
            time.sleep(0.05)
        hostile(port)
        now = b"%d" % time.time()
        assert answered(port, b"evt_2", now, b"v1,\xe4 " + signature(b"evt_2", now, BODY)) == (200, b""), file
        status, answer = answered(port, b"evt_3", now, signature(b"evt_3", now, TEST), TEST, b"webhook-type: webhook.test")
        assert (status, json.loads(answer)) == (200, {"challenge": "7KQM-2XWB-9TRA"}), (file, answer)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(receiver.pid, signal.SIGTERM)
        receiver.wait(WAIT)


left_out = []
for name, interpreter in RECEIVERS.items():
    if shutil.which(interpreter[0]):
        checked(name, interpreter, pathlib.Path(sys.argv[1]))
        print(f"{name} refuses what is no webhook, goes on, and returns a challenge", flush=True)
    else:
        left_out.append(name)
print("left out, because their language is not here:", ", ".join(left_out) or "none")
