"""mistakes.py FOLDER: what a newcomer forgets or mistypes ends each of the guide's examples with one line that names it.

Each example runs without a variable, with one that is wrong, with wrong arguments, where nobody listens, and at a port that
is taken. A traceback would show where the example's code failed, and not what to do. An `order` must not be repeated for a
mistake that no repeat mends, so each run has a few seconds. Languages that this machine lacks are left out.
"""

import base64
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

FOLDER = pathlib.Path(sys.argv[1])
EXAMPLES = {"esim.sh": ["sh"], "esim.py": ["python3", "-B"], "esim.mjs": ["node"], "esim.php": ["php"], "esim.go": ["go"]}
#: Shorter than the waits between the repeats of an order.
WAIT = 12
OPTION_ID = "424b7b26-96e7-5c95-8df9-6654a3998070"


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


NOBODY = free_port()
KEYS = {
    "BASE_URL": f"http://127.0.0.1:{NOBODY}",
    "ACCESS_KEY": "ak_example",
    "SECRET_KEY": base64.b64encode(b"secret-key").decode(),
    "WEBHOOK_SECRET": "whsec_" + base64.b64encode(b"k" * 24).decode(),
}
CLIENT = ("BASE_URL", "ACCESS_KEY", "SECRET_KEY")


def environment(**changes: str | None) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in KEYS}
    return {**plain, **{name: value for name, value in {**KEYS, **changes}.items() if value is not None}}


def failed(command: list[str], arguments: list[str], **changes: str | None) -> str:
    """What the example prints on standard error. It prints nothing else, and fails."""
    ended = subprocess.run([*command, *arguments], env=environment(**changes), capture_output=True, text=True, timeout=WAIT)
    case = f"{command[-1]} {' '.join(arguments)} with {changes}"
    assert ended.returncode != 0, f"{case} succeeds"
    assert not ended.stdout, f"{case} prints {ended.stdout}"
    return ended.stderr


def one_line(command: list[str], arguments: list[str], *words: str, **changes: str | None) -> None:
    shown = failed(command, arguments, **changes)
    assert shown.count("\n") == 1, f"{command[-1]} {' '.join(arguments)} with {changes} prints {shown}"
    assert all(word in shown for word in words), f"{command[-1]} {' '.join(arguments)} with {changes} prints {shown}"


def client(command: list[str]) -> None:
    show, order = ["show", "A-1"], ["order", "A-1", OPTION_ID, "1"]
    for name in CLIENT:
        for nothing in (None, ""):
            one_line(command, show, f"{name} is not set", **{name: nothing})
        one_line(command, order, f"{name} is not set", **{name: None})
    # As the guide prints them, which a reader may copy as they are.
    one_line(command, show, "BASE_URL does not begin with http", BASE_URL="…")
    one_line(command, order, "BASE_URL does not begin with http", BASE_URL="esim.example.com")
    one_line(command, order, "SECRET_KEY is not Base64", SECRET_KEY="…")
    repeats(command, order)
    if command[0] == "sh":
        for id in ("A 1", "A/1", 'A"1', "ü", ".", ".."):
            one_line(command, ["show", id], "only ids of letters, digits")
            one_line(command, ["order", id, OPTION_ID, "1"], "only ids of letters, digits")
        one_line(command, ["webhook", 'https://shop.example/"'], "quotation mark")
    # curl, which the shell's example uses, says it in its own words.
    one_line(command, show, NOBODY if command[0] == "sh" else "no answer that can be read: ")
    for arguments in ([], ["orders"], ["show"], ["order", "A-1", OPTION_ID], ["show", "A-1", "A-2"], ["order", "A-1", OPTION_ID, "one"]):
        shown = failed(command, arguments)
        assert "order" in shown and "redeliver" in shown and "Traceback" not in shown, shown


def repeats(command: list[str], order: list[str]) -> None:
    """An order without an answer is repeated, and says so; the example in shell leaves that to who runs it."""
    if command[0] == "sh":
        return
    running = subprocess.Popen([*command, *order], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = running.stderr.readline()
        assert "; repeating the order in 1" in said, f"{command[-1]} says {said}"
    finally:
        running.kill()
        running.communicate()


class Asked(http.server.BaseHTTPRequestHandler):
    """Answers a look-up with an order whose id is the path that was asked for."""

    def do_GET(self):
        order = {"external_order_id": self.path}
        body = json.dumps({"orders": [order], **order} if "?" in self.path else order).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def dots(command: list[str]) -> None:
    """The ids `.` and `..` are asked for as they are: no library may take them for folders."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        for id in (".", ".."):
            shown = subprocess.run([*command, "show", id], env=environment(BASE_URL=base), capture_output=True, text=True, timeout=WAIT)
            path = json.loads(shown.stdout)["external_order_id"]
            assert path.endswith((f"/orders/{id}", f"/orders?external_order_id={id}")), f"{command[-1]} asks for {path}"
        server.shutdown()


def receiver(command: list[str]) -> None:
    for nothing in (None, ""):
        one_line(command, ["receive", free_port()], "WEBHOOK_SECRET is not set", WEBHOOK_SECRET=nothing)
    for wrong in ("whsec_…", "whsec_", KEYS["SECRET_KEY"]):
        one_line(command, ["receive", free_port()], "WEBHOOK_SECRET is not whsec_", WEBHOOK_SECRET=wrong)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        one_line(command, ["receive", port], port)
    # Ctrl-C ends it. A shell lets what it starts in the background ignore that, and so does this test then.
    port = free_port()
    running = subprocess.Popen(
        [*command, "receive", port], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        until = time.monotonic() + WAIT
        while socket.socket().connect_ex(("127.0.0.1", int(port))) != 0:
            assert running.poll() is None and time.monotonic() < until, f"{command[-1]} does not listen"
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        shown = running.communicate(timeout=WAIT)[1]
        # PHP's web server says that it starts.
        assert command[0] == "php" or not shown, shown
    finally:
        running.kill()


left_out = []
with tempfile.TemporaryDirectory() as built:
    for file, interpreter in EXAMPLES.items():
        if not shutil.which(interpreter[0]):
            left_out.append(file)
            continue
        command = [*interpreter, str(FOLDER / file)]
        if interpreter == ["go"]:
            # `go run` would add a line to what the program prints.
            command = [f"{built}/esim"]
            subprocess.run(["go", "build", "-o", *command, str(FOLDER / file)], check=True)
        client(command)
        if file != "esim.sh":
            dots(command)
            receiver(command)
        print(f"{file} names what is missing or wrong in one line", flush=True)
print("left out, because their language is not here:", ", ".join(left_out) or "none")
