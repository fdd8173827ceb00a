"""tutorial.py GUIDE: runs the commands of the guide's tutorial, as they are written there.

The keys are in the environment, so the commands that make and set them are left out. The endpoint's port is a free one.
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

WAIT = 30
guide = pathlib.Path(sys.argv[1]).read_text()
tutorial = guide.split("\n## First eSIM\n")[1].split("\n**5.")[0]
redeliver = guide.split("\n**5.")[1]


def commands(text):
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("docs/examples/")]


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])


def run(command):
    print("$", command, flush=True)
    return json.loads(subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, timeout=WAIT).stdout)


class Endpoint:
    """What the first terminal shows."""

    def __init__(self, command):
        print("$", command, flush=True)
        self.process = subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()
        self.await_(lambda: socket.socket().connect_ex(("127.0.0.1", int(port))) == 0, "the endpoint")

    def await_(self, condition, what):
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"{what}: not after {WAIT} s; the endpoint printed {self.lines}")
            time.sleep(0.05)

    def shows(self, order, topup_id):
        self.await_(lambda: f"ready {order} {topup_id}\n" in self.lines, f"webhook of {order}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


receive, webhook, order, show, again = (command.replace("3000", port) for command in commands(tutorial))
endpoint = Endpoint(receive)
try:
    assert run(webhook)["url"] == f"http://127.0.0.1:{port}/"
    topup_id = run(order)["products"][0]["topup_id"]
    endpoint.shows("A-1", topup_id)
    assert run(show)["state"] == "ready"
    assert run(again)["topups"][0]["topup_id"] == topup_id

    endpoint.stop()
    lost = run(order.replace("A-1", "A-2"))["products"][0]["topup_id"]
    endpoint = Endpoint(receive)
    command = commands(redeliver)[0]
    assert "TOPUP_ID" in command, command
    print("$", command, flush=True)
    command = command.replace("TOPUP_ID", lost)
    # 429 until the last attempt is older than REDELIVER_INTERVAL.
    again = lambda: subprocess.run(command, shell=True, capture_output=True, timeout=WAIT).returncode == 0
    endpoint.await_(again, "a redelivery")
    endpoint.shows("A-2", lost)
finally:
    endpoint.stop()
print("the tutorial works as it is written")
