"""proxied.py FOLDER PROGRAM: the guide's examples in FOLDER and PROGRAM, which is esim-partner, behind a real proxy.

proxy.py runs this. The proxy throws the first answer to each request away and answers by itself, after the request has
reached the running system. Nobody may take that for an answer of the service: an order is found, and what does not repeat
a request by itself fails and says that it is unknown what the request did. Languages that this machine lacks are left out.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

FOLDER, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
PROXIES: dict[str, str] = json.loads(os.environ["PROXIES"])
EXAMPLES = {"esim.sh": ["sh"], "esim.py": ["python3", "-B"], "esim.mjs": ["node"], "esim.php": ["php"], "esim.go": ["go"]}
READY = os.environ["OPTION_ID"]
CANCELLABLE = "d18c5836-8fc1-5709-9ea8-7a6bf2ad375a"
#: An order repeats its request after 1, 2, 4 and 8 s at most.
WAIT = 60


def run(command: list[str], *arguments: str, base_url: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BASE_URL": base_url}
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=WAIT)


def topups(command: list[str], *arguments: str, base_url: str) -> list[str]:
    ended = run(command, *arguments, base_url=base_url)
    case = f"{command} {arguments}: {ended.stdout} {ended.stderr}"
    assert ended.returncode == 0, case
    shown = json.loads(ended.stdout)
    found = [one["topup_id"] for one in shown.get("topups", shown.get("products"))]
    assert found, case
    return found


def is_unknown(command: list[str], *arguments: str, base_url: str) -> None:
    ended = run(command, *arguments, base_url=base_url)
    case = f"{command} {arguments}: {ended.stdout} {ended.stderr}"
    assert ended.returncode == 1 and "X-Service-Error" in ended.stderr, case


def ordered(command: list[str], show: list[str], status: str) -> None:
    """An order that passed the proxy is found by the same command."""
    direct, proxy, id = os.environ["BASE_URL"], PROXIES[status], f"proxied-{uuid.uuid4()}"
    if command[0] == "sh":
        # It sends each request once.
        is_unknown(command, "order", id, READY, "1", base_url=proxy)
        ended = run(command, "order", id, READY, "1", base_url=proxy)
        assert ended.returncode == 1 and "external_order_id_taken" in ended.stderr, ended.stderr
        is_unknown(command, *show, id, base_url=proxy)
        assert topups(command, *show, id, base_url=proxy)
        return
    quantity = ["--qty", "2"] if show[0] == "orders" else ["2"]
    first = topups(command, "order", id, READY, *quantity, base_url=proxy)
    assert len(first) == 2 and topups(command, *show, id, base_url=direct) == first
    # The look-up of the order had its first answer already if the example asks by the path of the order. The program needs
    # none, because its repeat gets the answer of the order itself.
    if command == [PROGRAM]:
        is_unknown(command, *show, id, base_url=proxy)
    topups(command, *show, id, base_url=proxy)
    other = f"proxied-{uuid.uuid4()}"
    is_unknown(command, *show, other, base_url=proxy)


def program(status: str) -> None:
    """What else esim-partner asks for."""
    direct, proxy, id = os.environ["BASE_URL"], PROXIES[status], f"proxied-{uuid.uuid4()}"
    command = [PROGRAM]
    topup_id = topups(command, "order", id, CANCELLABLE, base_url=direct)[0]
    for arguments in (["redeliver", topup_id], ["usage", topup_id], ["cancel", id], ["endpoints", "list"], ["keys", "list"]):
        is_unknown(command, *arguments, base_url=proxy)
    # Until its purchase was rejected for the first time it cannot be cancelled.
    end = time.monotonic() + WAIT
    while (ended := run(command, "cancel", id, base_url=proxy)).returncode != 0:
        assert time.monotonic() < end, ended.stderr
    assert json.loads(ended.stdout)["state"] == "cancelled"
    assert json.loads(run(command, "orders", "show", id, base_url=direct).stdout)["state"] == "cancelled"


left_out = []
with tempfile.TemporaryDirectory() as built, concurrent.futures.ThreadPoolExecutor(8) as pool:
    commands = []
    for file, interpreter in EXAMPLES.items():
        if not shutil.which(interpreter[0]):
            left_out.append(file)
            continue
        command = [*interpreter, str(FOLDER / file)]
        if interpreter == ["go"]:
            command = [f"{built}/esim"]
            subprocess.run(["go", "build", "-o", *command, str(FOLDER / file)], check=True)
        commands.append((command, ["show"]))
    commands.append(([PROGRAM], ["orders", "show"]))
    running = [pool.submit(ordered, *command, status) for command in commands for status in PROXIES]
    running += [pool.submit(program, status) for status in PROXIES]
    for one in running:
        one.result()
print(f"behind a proxy, {len(commands)} programs believe nothing but the service after {', '.join(PROXIES)}")
print("left out, because their language is not here:", ", ".join(left_out) or "none")
