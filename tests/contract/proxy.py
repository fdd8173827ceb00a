"""proxy.py URL COMMAND…: runs the command with a real proxy (HAProxy) before the service at URL.

PROXIES is a JSON object in its environment: by status, the base URL of a proxy that passes each request on, throws the
first answer away and answers with this status itself, as a proxy may that loses patience, or whose rules look at answers.
Later requests with the same method, path and order id get the answers of the service.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

STATUSES = (401, 403, 404, 408, 413, 422, 429, 502)
WAIT = 30


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def configuration(service: str, ports: dict[int, int]) -> str:
    binds = "\n".join(f"  bind 127.0.0.1:{port}" for port in ports.values())
    # A page, except where a body that looks like one of ours would be believed most easily.
    bodies = {422: ("application/json", '{\\"errors\\":[\\"Unprocessable\\"]}'), 404: ("application/json", '{\\"error\\":\\"Not found\\"}')}
    answers = []
    for status, port in ports.items():
        kind, body = bodies.get(status, ("text/html", "<h1>No</h1>"))
        answers.append(f'  http-response return status {status} content-type {kind} string "{body}" if {{ dst_port {port} }} {{ var(txn.first) -m bool }}')
    return f"""
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-buffer-request
frontend proxies
{binds}
  stick-table type string len 512 size 10k expire 10m store http_req_cnt
  http-request set-var(txn.order) req.body,json_query('$.external_order_id') if {{ method POST }}
  http-request set-var(txn.method) method
  http-request set-var(txn.port) dst_port
  http-request set-var(txn.request) url,concat(" ",txn.method),concat(" ",txn.port),concat(" ",txn.order)
  http-request track-sc0 var(txn.request)
  http-request set-var(txn.first) bool(true) if {{ sc0_http_req_cnt eq 1 }}
{chr(10).join(answers)}
  default_backend service
backend service
  server service {service}
"""


def main() -> int:
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    assert haproxy, "haproxy is missing"
    service = urlsplit(sys.argv[1]).netloc
    ports = dict(zip(STATUSES, free_ports(len(STATUSES)), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "haproxy.cfg"
        file.write_text(configuration(service, ports))
        running = subprocess.Popen([haproxy, "-q", "-db", "-f", str(file)])
        try:
            end = time.monotonic() + WAIT
            while any(socket.socket().connect_ex(("127.0.0.1", port)) != 0 for port in ports.values()):
                assert running.poll() is None and time.monotonic() < end, "haproxy does not start"
                time.sleep(0.05)
            proxies = {str(status): f"http://127.0.0.1:{port}" for status, port in ports.items()}
            return subprocess.run(sys.argv[2:], env={**os.environ, "PROXIES": json.dumps(proxies)}, check=False).returncode
        finally:
            running.terminate()
            running.wait()


sys.exit(main())
